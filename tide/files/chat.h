// chat.h: conversations as tokens, in the formats that models of the families were trained on.
//
//     chat_open()      the format and the system message of a chat template, or of a tokenizer
//     chat_read()      a conversation from JSON: [{"role": "user", "content": ".."}, ..]
//     chat_encode()    the tokens of a conversation, and which of them are trained
//     chat_export()    gives a tokenizer without a chat template that of the format
//
// The formats are the table below. A conversation becomes pieces between special tokens, and each
// piece is encoded whole: its literal part and a message apart would be other tokens. A special
// token in a message is text: who types <|im_end|> does not end a turn.
// Trained are the assistant's texts, but those of weight 0, and the token that ends each's turn.
// Sources: the chat templates of Qwen2.5, Qwen3, Llama-3, Llama-2 and SmolLM2; mistral-common.
#ifndef TIDE_CHAT_H
#define TIDE_CHAT_H
#include "tokenizer.h"

// A format with CHAT_UNTHINKING has an empty thought in front of an answer without one.
enum { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_ROLES, CHAT_UNTHINKING = CHAT_ROLES };
static const char *const chat_roles[CHAT_ROLES] = {"system", "user", "assistant"};

// The format number 0 is that which the model's files tell. Qwen3's is told by its template only.
enum { CHAT_AUTO, CHAT_CHATML, CHAT_LLAMA3, CHAT_MISTRAL_V3, CHAT_MISTRAL, CHAT_LLAMA2,
       CHAT_QWEN3 };

enum {
    CHAT_TRIMS = 1,        // texts are without white space around them
    CHAT_CUTS = 2,         // an answer is without spaces at its end
    CHAT_TURNS = 4,        // user and assistant take turns, and the system message is in front of
    CHAT_LAST = 8,         // the first user's text, or the last one's
    CHAT_BEGINS = 16       // the token that begins a text stands before every user's turn
};

typedef struct {
    const char *name;               // of --chat-format
    const char *literals[4];        // of its template; "!x": the template has no x
    const char *says[CHAT_ROLES + 1];  // a message of each role; % is its text, and from ^ on an
                                    // answer is trained
    const char *tokens[3];          // special tokens of these; the first one ends a turn, the
                                    // second one tells the format
    int rules;
} ChatFormat;

#define CHATML_SAYS(role) "<|im_start|>" role "\n^%<|im_end|>\n"
#define LLAMA3_SAYS(role) "<|start_header_id|>" role "<|end_header_id|>\n\n^%<|eot_id|>"
static const ChatFormat chat_formats[] = {  // in the order of their numbers
    {.name = "chatml",
     .literals = {"<|im_start|>", "<|im_end|>", "!<|im_sep|>", "!think>"},
     .says = {CHATML_SAYS("system"), CHATML_SAYS("user"), CHATML_SAYS("assistant")},
     .tokens = {"<|im_end|>", "<|im_start|>"}},
    {.name = "llama3",
     .literals = {"<|start_header_id|>", "<|eot_id|>", "!think>"},
     .says = {LLAMA3_SAYS("system"), LLAMA3_SAYS("user"), LLAMA3_SAYS("assistant")},
     .tokens = {"<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"}, .rules = CHAT_TRIMS},
    {.name = "mistral-v3",
     .literals = {"[INST] ", "[/INST]", "! [/INST]", "![SYSTEM_PROMPT]"},
     .says = {"%\n\n", "[INST] %[/INST]", "^ %</s>"},
     .tokens = {"</s>", "[INST]", "[/INST]"}, .rules = CHAT_TURNS | CHAT_LAST | CHAT_CUTS},
    {.name = "mistral", .literals = {"[INST] ", " [/INST]", "!<<SYS>>"},
     .says = {"%\n\n", "[INST] % [/INST]", "^ %</s>"},
     .tokens = {"</s>"}, .rules = CHAT_TURNS},
    {.name = "llama2", .literals = {"[INST] ", " [/INST]", "<<SYS>>"},
     .says = {"<<SYS>>\n%\n<</SYS>>\n\n", "[INST] % [/INST]", "^ % </s>"},
     .tokens = {"</s>"}, .rules = CHAT_TRIMS | CHAT_TURNS | CHAT_BEGINS},
    {.name = "qwen3",
     .literals = {"<|im_start|>", "<|im_end|>", "\\n</think>\\n\\n", "!assistant\\n<think>"},
     .says = {CHATML_SAYS("system"), CHATML_SAYS("user"), CHATML_SAYS("assistant"),
              "<|im_start|>assistant\n<think>\n\n</think>\n\n^%<|im_end|>\n"},
     .tokens = {"<|im_end|>", "<|im_start|>"}}};
enum { CHAT_FORMATS = sizeof chat_formats / sizeof chat_formats[0] };

// Llama-3.1's template begins each system message so, and has one in every conversation.
#define CHAT_DATE "Cutting Knowledge Date: December 2023"

typedef struct {
    const ChatFormat *format;
    const Tokenizer *t;
    int32_t begin;                  // begins every text of the model; -1: none
    int32_t ids[3];                 // of format->tokens; the first one ends a turn
    bool has_template;              // the model's files have a chat template
    const char *system;             // of a conversation without a system message; NULL: none
    bool unread;                    // the template seems to have one, which is no literal
    const char *front;              // in front of every system message
} Chat;

typedef struct {
    int role;
    const char *text;               // of n bytes; NULL: the answer begins here
    size_t n;
    bool read;                      // an answer that is not trained
} ChatMessage;

// Returns the chat template in use, without comments: a file of its own, or in
// tokenizer_config.json, which may have a list of them; "": the model has none, " ": none of the
// list is the default.
static char *chat_template(const Tokenizer *t) {
    const TokenizerFile *own = &t->files[FILE_TEMPLATE], *config = &t->files[FILE_CONFIG];
    Error err;
    Json *root = config->text != NULL ? json_parse(config->text, config->length, &err) : NULL;
    const Json *one = json_get(root, "chat_template");
    const bool list = one != NULL && one->type == JSON_ARRAY;
    if (list) {
        one = one->child;
        while (one != NULL && !json_is(json_get(one, "name"), "default")) one = one->next;
        one = json_get(one, "template");
    }
    char *text = strdup(own->text != NULL ? own->text : one != NULL && one->type == JSON_STRING
                        ? one->string : list ? " " : ""), *at;
    json_free(root);
    while ((at = strstr(text, "{#")) != NULL) {
        const char *end = strstr(at, "#}"), *rest = end != NULL ? end + 2 : "";
        memmove(at, rest, strlen(rest) + 1);
    }
    return text;
}

// Has the template the literals of a format?
static bool chat_fits(const ChatFormat *f, const char *text) {
    for (int k = 0; k < 4 && f->literals[k] != NULL; k++) {
        const bool lacks = f->literals[k][0] == '!';
        if ((strstr(text, f->literals[k] + lacks) == NULL) != lacks) return false;
    }
    return true;
}

// Finds the system message that the template has for a conversation without one: a string, or a
// part of one, where the text of a system message is.
static void chat_default(Chat *chat, const char *text) {
    const ChatFormat *f = chat->format;
    const size_t n = strcspn(f->says[CHAT_SYSTEM], "\n%");
    const char *open = strndup(f->says[CHAT_SYSTEM], n), *end = f->tokens[0];
    for (const char *at = n > 0 ? strstr(text, open) : NULL; at != NULL; at = strstr(at, open)) {
        const char quote = at > text && strchr("'\"", at[-1]) != NULL ? at[-1] : '{';
        for (at += n; *at == '\n' || strncmp(at, "\\n", 2) == 0;) at += *at == '\n' ? 1 : 2;
        char *found = strdup(at), *to = found;
        for (; *at != '\0' && *at != quote && strncmp(at, end, strlen(end)) != 0; at++) {
            const bool escape = *at == '\\' && at[1] != '\0';
            at += escape;
            *to++ = escape && *at == 'n' ? '\n' : *at;
        }
        *to = '\0';
        if (*at == '\0' || *at == quote) continue;
        chat->unread |= chat->system != NULL && strcmp(chat->system, found) != 0;
        chat->system = found;
    }
    if (chat->unread) chat->system = NULL;
    chat->unread = chat->system == NULL && strstr(text, "You are") != NULL;
    if (f != &chat_formats[CHAT_LLAMA3 - 1] || strstr(text, CHAT_DATE) == NULL) return;
    chat->front = CHAT_DATE "\nToday Date: 26 Jul 2024\n\n";
    if (chat->system == NULL) chat->system = "";
}

// Makes an added token a special one: who types it writes text.
static void added_hide(const Tokenizer *t, int32_t id) {
    AddedToken *a = added_token(t, id);
    if (a != NULL) a->special = true;
}

// Fills *chat with the format number `asked`, or with that which the chat template tells, or, of a
// model without one, its tokens. Fails if none is told, or if the tokenizer has not the format's
// tokens. `</s>` is whatever ends a text of this tokenizer.
static bool chat_open(Chat *chat, const Tokenizer *t, int asked, int32_t begin, Error *err) {
    static const char *const others[] = {"<｜User｜>", "[SYSTEM_PROMPT]", "<|user|>", "</think>",
                                         "<start_of_turn>", "<|im_sep|>", "[INST]", ""};
    const ChatFormat *f = asked != CHAT_AUTO ? &chat_formats[asked - 1] : NULL;
    const bool inst = tokenizer_added(t, "[INST]") != TOKENIZER_NONE;  // so it is no text
    char *text = chat_template(t);
    const bool has = *text != '\0';
    int other = 0;
    for (const ChatFormat *k = chat_formats; k < chat_formats + CHAT_FORMATS && f == NULL; k++)
        if (has ? chat_fits(k, text) && !(inst && k->tokens[1] == NULL)
                : k->tokens[1] && tokenizer_added(t, k->tokens[1]) != TOKENIZER_NONE) f = k;
    while (strstr(text, others[other]) == NULL) other++;
    if (f == NULL && has)
        return error_set(err, "the model's chat template is of no format that is known here%s%s: "
                         "--chat-format chatml, llama3, mistral-v3, mistral or llama2 takes that "
                         "one instead", *others[other] ? ": it has " : "", others[other]);
    if (f == NULL)
        return error_set(err, "the tokenizer has none of the tokens <|im_start|>, "
                         "<|start_header_id|> and [INST], which would tell the format of a "
                         "conversation%s", t->eot < 0 ? ", nor one that could end a turn: take "
                         "that of a model (--tokenizer)" : ": name it with --chat-format mistral "
                         "(of v0.1 and v0.2), llama2, or another");
    memset(chat, 0, sizeof *chat);
    chat->format = f;
    chat->t = t;
    chat->begin = begin;
    chat->front = "";
    chat->has_template = has;
    for (int k = 0; k < 3 && f->tokens[k] != NULL; k++) {
        const bool eot = strcmp(f->tokens[k], "</s>") == 0;
        const uint32_t id = eot ? (uint32_t)t->eot : tokenizer_added(t, f->tokens[k]);
        if (id == TOKENIZER_NONE)
            return error_set(err, "the chat format %s needs %s%s, and the tokenizer has none",
                             f->name, eot ? "a token that ends a text, like " : "the token ",
                             f->tokens[k]);
        chat->ids[k] = (int32_t)id;
        added_hide(t, chat->ids[k]);
    }
    added_hide(t, begin);
    if (chat_fits(f, text)) chat_default(chat, text);
    free(text);
    return true;
}

// ---------------------------------------------------------------------------------------------
// From JSON

// The members of a message, and its roles: OpenAI's form, and ShareGPT's.
static const struct { const char *role, *content, *roles[CHAT_ROLES]; } chat_members[2] = {
    {"role", "content", {"system", "user", "assistant"}},
    {"from", "value", {"system", "human", "gpt"}}};

// Is an answer trained? By its "weight", 1 or 0; without one it is.
static bool chat_weight(const Json *message, bool answer, const char *at) {
    const Json *weight = json_get(message, "weight");
    if (weight == NULL) return answer;
    const bool number = weight->type == JSON_NUMBER;
    if (!number || (weight->number != 0 && (weight->number != 1 || !answer)))
        die("%s has a \"weight\" that is not 0, or 1 for an answer", at);
    return weight->number == 1;
}

// Reads the list `messages` up to the last answer that is trained; nothing is behind it.
// Returns how many messages those are; their texts are those of the JSON. A fault ends the program
// with one line that begins with `where`.
static size_t chat_read(const Chat *chat, const Json *messages, const char *where,
                        ChatMessage **out) {
    size_t count = 0, kept = 0;
    int before = CHAT_SYSTEM;
    char at[PATH_MAX + 64];
    if (messages->type != JSON_ARRAY || messages->count == 0)
        die("%s: \"%s\" is %s", where, messages->key,
            messages->type != JSON_ARRAY ? "no list" : "empty");
    const bool shared = json_get(messages->child, "from") != NULL;
    const char *const harmless[5] = {chat_members[shared].role, chat_members[shared].content,
                                     "name", "id", "weight"};
    const char *const *roles = chat_members[shared].roles;
    *out = ALLOC(ChatMessage, messages->count, "a conversation");
    for (const Json *m = messages->child; m != NULL; m = m->next, count++) {
        const Json *role = json_get(m, harmless[0]), *content = json_get(m, harmless[1]);
        int k = 0;
        snprintf(at, sizeof at, "%s: message %zu", where, count + 1);
        if (role == NULL || role->type != JSON_STRING)
            die("%s is no object with \"%s\" and \"%s\"", at, harmless[0], harmless[1]);
        while (k < CHAT_ROLES && !json_is(role, roles[k])) k++;
        if (k == CHAT_ROLES)
            die("%s has the role \"%.40s\"%s%s, %s and %s", at, role->string,
                json_is(role, "tool") || json_is(role, "function")
                ? ": tools are not supported, only " : ", which is none of ",
                roles[0], roles[1], roles[2]);
        for (const Json *v = m->child; v != NULL; v = v->next) {
            int i = 0;
            while (i < 5 && strcmp(v->key, harmless[i]) != 0) i++;
            if (i == 5 && !json_empty(v))
                die("%s has \"%.40s\", which is not supported: leave it out, or write into "
                    "\"%s\" what is to be read or learned of it", at, v->key, harmless[1]);
        }
        if (content == NULL) die("%s has no \"%s\"", at, harmless[1]);
        if (content->type != JSON_STRING)
            die("%s has a \"%s\" that is no string%s", at, harmless[1], content->type == JSON_ARRAY
                ? ": write the texts of its parts as one" : "");
        if (k == CHAT_ASSISTANT && content->length == encode_white(chat->t, content->string,
                                                                   content->length, true, true))
            die("%s, an answer, is empty", at);
        if (k == CHAT_SYSTEM && count > 0)
            die("%s is a system message, and only the first one may be", at);
        if (k == CHAT_ASSISTANT && before == CHAT_SYSTEM)
            die("%s is the assistant's, and stands before any user's", at);
        if ((chat->format->rules & CHAT_TURNS) && k == before && k != CHAT_SYSTEM)
            die("%s: messages %zu and %zu are both the %s's, who takes turns in the format %s",
                where, count, count + 1, chat_roles[k], chat->format->name);
        (*out)[count].role = before = k;
        (*out)[count].text = content->string;
        (*out)[count].n = content->length;
        (*out)[count].read = !chat_weight(m, k == CHAT_ASSISTANT, at);
        if (!(*out)[count].read) kept = count + 1;
    }
    if (kept == 0)
        die("%s: no message is the assistant's, or none has a weight: there is nothing to train",
            where);
    return kept;
}

// ---------------------------------------------------------------------------------------------
// To tokens

typedef struct {
    const Chat *chat;
    Tokens out;
    char *piece;                    // [length] bytes since the last special token
    size_t length;
    size_t read;                    // bytes of the piece that are only read
    bool trained;                   // what is written now is trained
} ChatWriter;

// Encodes the piece. A token is trained if a byte of its text is. NFC composes nothing
// across the border, so that the part that is read has as many bytes in the whole as by itself.
static void chat_flush(ChatWriter *w) {
    const Tokenizer *t = w->chat->t;
    const int how = TOKENIZER_PLAIN | TOKENIZER_INSIDE;
    const size_t first = w->out.count;
    size_t read = 0, at = 0, length;
    tokenizer_encode(t, w->piece, w->read, how, &w->out);
    for (size_t i = first; i < w->out.count; i++, read += length)
        tokenizer_token(t, w->out.ids[i], &length);
    w->out.count = first;
    tokenizer_encode(t, w->piece, w->length, how, &w->out);
    for (uint32_t *id = w->out.ids + first; id < w->out.ids + w->out.count; id++) {
        tokenizer_token(t, *id, &length);
        at += length;
        if (at <= read) *id = ~*id;
    }
    w->length = w->read = 0;
}

static void chat_token(ChatWriter *w, int32_t id) {
    chat_flush(w);
    tokens_add(&w->out, (uint32_t)(w->trained ? id : ~id));
    w->trained = false;
}

static void chat_bytes(ChatWriter *w, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        w->piece = (char *)array_grow(w->piece, w->length, 1, "a conversation");
        w->piece[w->length++] = text[i];
    }
    if (!w->trained) w->read = w->length;
}

// Writes a message, with a system message in front of its text unless that is NULL; or, of one
// without a text, what stands before an answer.
static void chat_say(ChatWriter *w, const ChatMessage *m, const ChatMessage *system) {
    const ChatFormat *f = w->chat->format;
    const bool trims = (f->rules & CHAT_TRIMS) != 0, answer = m->role >= CHAT_ASSISTANT;
    const size_t front = trims ? encode_white(w->chat->t, m->text, m->n, false, true) : 0;
    const char *text = m->text != NULL ? m->text + front : NULL;
    size_t n = m->n - front;
    if (trims) n -= encode_white(w->chat->t, text, n, true, true);
    while (answer && (f->rules & CHAT_CUTS) && n > 0 && text[n - 1] == ' ') n--;
    for (const char *s = f->says[m->role]; *s != '\0' && !(w->trained && text == NULL);) {
        int k = 0;
        while (k < 3 && (f->tokens[k] == NULL || strncmp(s, f->tokens[k], strlen(f->tokens[k]))))
            k++;
        if (k < 3) {
            chat_token(w, w->chat->ids[k]);
            s += strlen(f->tokens[k]);
        } else if (*s == '^') {
            w->trained = answer && !m->read;
            s++;
        } else if (*s++ != '%') {
            chat_bytes(w, s - 1, 1);
        } else {
            if (m->role == CHAT_SYSTEM) chat_bytes(w, w->chat->front, strlen(w->chat->front));
            if (system != NULL) chat_say(w, system, NULL);
            chat_bytes(w, text, n);
        }
    }
}

// Returns what stands behind the last such mark in a text, or its beginning.
static const char *chat_behind(const char *s, const char *end, const char *mark) {
    const size_t n = strlen(mark);
    for (const char *at; (at = (const char *)memmem(s, (size_t)(end - s), mark, n)) != NULL;)
        s = at + n;
    return s;
}

// Returns an answer as Qwen3's template has it: behind the last question with its thought, of which
// the last answer has an empty one at least; in front of it without. *room is to be freed.
static ChatMessage chat_thought(const ChatMessage *m, bool behind, bool last, char **room) {
    ChatMessage out = *m;
    if (last) out.role = CHAT_UNTHINKING;
    if (m->text == NULL) return out;
    const char *end = m->text + m->n, *said = chat_behind(m->text, end, "</think>");
    const char *to = (const char *)memmem(m->text, m->n, "</think>", 8);
    const char *thought = to != NULL ? chat_behind(m->text, to, "<think>") : NULL;
    while (thought < to && *thought == '\n') thought++;
    while (thought < to && to[-1] == '\n') to--;
    if (to != NULL || out.role == CHAT_UNTHINKING) while (said < end && *said == '\n') said++;
    out.text = said;
    out.n = (size_t)(end - said);
    if (!behind || thought == to) return out;
    *room = ALLOC(char, m->n + 32, "a conversation");
    char *at = (char *)mempcpy(stpcpy(*room, "<think>\n"), thought, (size_t)(to - thought));
    at = (char *)mempcpy(stpcpy(at, "\n</think>\n\n"), said, out.n);
    out.role = CHAT_ASSISTANT;
    out.text = *room;
    out.n = (size_t)(at - *room);
    return out;
}

// The id of a token, which may be only read.
static int32_t token_id(int32_t token) { return token < 0 ? ~token : token; }

// Encodes a conversation: a token that is only read is ~token, a trained one is itself. The last
// message may be an answer that is yet to be written. Returns *count tokens, to be freed.
static int32_t *chat_encode(const Chat *chat, const ChatMessage *m, size_t n, size_t *count) {
    const int rules = chat->format->rules;
    const bool given = n > 0 && m[0].role == CHAT_SYSTEM;
    ChatWriter w;
    ChatMessage system = {CHAT_SYSTEM, chat->system, 0};
    size_t question = given;  // the last user's message
    memset(&w, 0, sizeof w);
    w.chat = chat;
    if (chat->system != NULL) system.n = strlen(chat->system);
    if (given) system = m[0];
    for (size_t i = given; i < n; i++) if (m[i].role == CHAT_USER) question = i;
    const size_t carrier = rules & CHAT_LAST ? question : given;
    if (chat->begin >= 0) chat_token(&w, chat->begin);
    if (!(rules & CHAT_TURNS) && system.text != NULL) chat_say(&w, &system, NULL);
    for (size_t i = given; i < n; i++) {
        if ((rules & CHAT_BEGINS) && m[i].role == CHAT_USER && i > given && chat->begin >= 0)
            chat_token(&w, chat->begin);
        const bool carries = (rules & CHAT_TURNS) && i == carrier && system.n > 0;
        char *room = NULL;
        const bool thinks = m[i].role == CHAT_ASSISTANT && chat->format->says[CHAT_UNTHINKING];
        const ChatMessage changed = thinks ? chat_thought(&m[i], i > question, i + 1 == n, &room)
                                           : m[i];
        chat_say(&w, &changed, carries ? &system : NULL);
        free(room);
    }
    chat_flush(&w);
    free(w.piece);
    *count = w.out.count;
    return (int32_t *)w.out.ids;
}

// ---------------------------------------------------------------------------------------------
// For other programs

// Finds an added token's content as the files have it.
static const char *chat_name(const Chat *chat, int32_t id) {
    const AddedToken *a = added_token(chat->t, id);
    return a != NULL ? a->name : "";
}

// Writes a role's message as an expression of Jinja, in which its text is called `text`; or, if
// that is NULL, what stands before an answer.
static void jinja_says(FILE *f, const Chat *chat, int role, const char *text) {
    const char *end = chat->format->tokens[0];
    const int rules = chat->format->rules;
    fputc('\'', f);
    for (const char *s = chat->format->says[role]; *s != '\0' && (text != NULL || *s != '^'); s++)
        if (*s == '%') {
            fputs("' + ", f);
            if (role == CHAT_USER && (rules & CHAT_TURNS)) {
                fputc('(', f);
                jinja_says(f, chat, CHAT_SYSTEM, "s");
                fprintf(f, " if s and loop.%s < 3 else '') + ",
                        rules & CHAT_LAST ? "revindex" : "index");
            }
            fprintf(f, "%s%s + '", text, rules & CHAT_TRIMS ? " | trim"
                    : (rules & CHAT_CUTS) && role == CHAT_ASSISTANT ? ".rstrip(' ')" : "");
        } else if (strncmp(s, end, strlen(end)) == 0) {
            fputs(chat_name(chat, chat->ids[0]), f);
            s += strlen(end) - 1;
        } else if (*s != '^') {
            fprintf(f, *s == '\n' ? "\\n" : "%c", *s);
        }
    fputc('\'', f);
}

// Writes the format's chat template.
static void jinja_write(FILE *f, const Chat *chat) {
    const int rules = chat->format->rules;
    char begin[256] = "";
    if (chat->begin >= 0)
        snprintf(begin, sizeof begin, "{{- '%s' }}", chat_name(chat, chat->begin));
    if (!(rules & CHAT_BEGINS)) fputs(begin, f);
    if (rules & CHAT_TURNS)
        fputs("{%- set s = messages[0].content if messages[0].role == 'system' else '' %}", f);
    fputs("{%- for m in messages %}", f);
    for (int role = rules & CHAT_TURNS ? CHAT_USER : CHAT_SYSTEM; role < CHAT_ROLES; role++) {
        fprintf(f, "{%%- if m.role == '%s' %%}%s{{- ", chat_roles[role],
                role == CHAT_USER && (rules & CHAT_BEGINS) ? begin : "");
        jinja_says(f, chat, role, "m.content");
        fputs(" }}{%- endif %}", f);
    }
    fputs("{%- endfor %}{%- if add_generation_prompt %}{{- ", f);
    jinja_says(f, chat, CHAT_ASSISTANT, NULL);
    fputs(" }}{%- endif %}\n", f);
}

// Does this token end an answer in other programs? They read generation_config.json, if there is
// one.
static bool chat_stops(const Tokenizer *t, int32_t id) {
    const bool file = t->files[FILE_GENERATION].text != NULL;
    for (size_t i = 0; i < t->stops.count; i++)
        if ((int32_t)t->stops.ids[i] == id) return !file || t->generation_stops;
    return !file && id == t->eot;
}

// Gives a tokenizer without a chat template that of the format, and to its generation_config.json
// the token that ends a turn, beside those that end an answer there.
static void chat_export(const Chat *chat, Tokenizer *t) {
    static const char *const stops[] = {"eos_token_id", NULL};
    TokenizerFile *own = &t->files[FILE_TEMPLATE], *file = &t->files[FILE_GENERATION];
    Error err;
    if (chat->has_template) return;
    FILE *f = text_open(&own->text, &own->length);
    jinja_write(f, chat);
    text_close(f);
    if (chat_stops(t, chat->ids[0])) return;
    Json *root = file->text != NULL ? json_parse(file->text, file->length, &err) : NULL;
    free(file->text);
    f = text_open(&file->text, &file->length);
    fprintf(f, "{\n");
    json_write_others(f, root, stops);
    fprintf(f, "  \"eos_token_id\": [");
    for (size_t i = 0; i < t->stops.count; i++)
        if ((int32_t)t->stops.ids[i] != chat->ids[0]) fprintf(f, "%u, ", t->stops.ids[i]);
    if (t->stops.count == 0 && t->eot >= 0 && t->eot != chat->ids[0]) fprintf(f, "%d, ", t->eot);
    fprintf(f, "%d]\n}\n", chat->ids[0]);
    text_close(f);
    json_free(root);
}

#endif
