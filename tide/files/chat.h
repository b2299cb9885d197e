// chat.h: conversations as tokens, in the formats that models were trained on.
//
//     chat_open()      finds the format of a model, by its chat template or its special tokens
//     chat_read()      reads a conversation from JSON: [{"role": "user", "content": ".."}, ..]
//     chat_encode()    makes the tokens of a conversation, and marks those that are trained
//     chat_export()    adds the format's chat template to a tokenizer that has none
//
// Each format is a function that writes one message, and a row of the table behind the functions.
// A conversation becomes pieces of text between special tokens. A piece is a message and the
// characters that the format adds to it. Both are encoded together, because a token may span their
// border. A special token's name in a message is text: who types <|im_end|> does not end a turn.
// An answer's text and the token that ends its turn are trained, unless the answer's weight is 0.
// Sources: the published chat templates of the models that doc/chat.md names; mistral-common.
#ifndef TIDE_CHAT_H
#define TIDE_CHAT_H
#include "tokenizer.h"

enum { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL, CHAT_ROLES };
static const char *const chat_roles[CHAT_ROLES] = {"system", "user", "assistant", "tool"};

typedef struct {
    int role;
    const char *text;               // of n bytes; NULL: the answer is yet to be written
    size_t n;
    bool read;                      // the message is only read: it is not trained
} ChatMessage;

typedef struct {
    const struct ChatFormat *format;
    const Tokenizer *t;
    int32_t begin;                  // the token that begins every conversation; -1: none
    int32_t ids[5];                 // the ids of format->tokens; ids[0] ends a turn
    bool has_template;              // the model's files have a chat template
    bool tools;                     // the template has turns of tools
    bool drops;                     // the template leaves out an empty system message
    const char *system;             // the template's default system message; NULL: none
    bool unread;                    // the template seems to have a default that we cannot read
    char front[96];                 // stands in front of every system message
} Chat;

// A conversation while it becomes tokens.
typedef struct {
    const Chat *chat;
    const ChatMessage *system;      // the system message; NULL: none
    const ChatMessage *first, *end; // the other messages: first .. end - 1
    const ChatMessage *carrier;     // the user's message that has *system in it; NULL: none
    Tokens out;
    char *piece;                    // [length] the bytes behind the last special token
    size_t length;
    size_t read;                    // how many bytes at the piece's start are not trained
    bool trained;                   // the next bytes and the next special token are trained
    bool strips;                    // white space after the last special token is left out
} ChatWriter;

enum {
    CHAT_TRIMS = 1,        // texts are without white space around them
    CHAT_CUTS = 2,         // an answer is without spaces at its end
    CHAT_TURNS = 4,        // user and assistant take turns; the system message is in a user's turn
    CHAT_FIRST = 8,        // .. in the user's first turn; without this flag: in the last one
    CHAT_SPACED = 16,      // an answer begins with a space
    CHAT_MARKED = 32       // the system message is between <<SYS>> and <</SYS>>
};

typedef struct ChatFormat {
    const char *name;               // for --chat-format
    void (*write)(ChatWriter *w, const ChatMessage *m);
    int rules;
    const char *marks[5];           // strings of its template; "!x": the template has no x
    const char *tools;              // a string of a template that has turns of tools; NULL: none
    const char *tokens[5];          // the special tokens that write() writes: [0] ends a turn; [1]
                                    // tells the format of a tokenizer without a chat template
    const char *jinja;              // a chat template, for models that have none
} ChatFormat;

// ---------------------------------------------------------------------------------------------
// Pieces

// Encodes the piece. A token is trained if a byte of its text is. The first w->read bytes are not;
// encoding them alone tells their number after NFC, which composes nothing across their end.
static void chat_flush(ChatWriter *w) {
    const Tokenizer *t = w->chat->t;
    const int how = TOKENIZER_PLAIN | (w->out.count > 0 ? TOKENIZER_INSIDE : 0);
    const size_t first = w->out.count;
    const size_t white = w->strips ? encode_white(w->piece, w->length, false, true) : 0;
    size_t read = 0, at = 0, length;
    if (w->read > white)
        tokenizer_encode(t, w->piece + white, w->read - white, how, &w->out);
    for (size_t i = first; i < w->out.count; i++, read += length)
        tokenizer_token(t, w->out.ids[i], &length);
    w->out.count = first;
    tokenizer_encode(t, w->piece + white, w->length - white, how, &w->out);
    for (uint32_t *id = w->out.ids + first; id < w->out.ids + w->out.count; id++) {
        tokenizer_token(t, *id, &length);
        at += length;
        if (at <= read) *id = ~*id;
    }
    w->length = w->read = 0;
}

static void chat_token(ChatWriter *w, int32_t id) {
    const AddedToken *a = added_token(w->chat->t, id);
    chat_flush(w);
    tokens_add(&w->out, (uint32_t)(w->trained ? id : ~id));
    w->trained = false;
    w->strips = a != NULL && a->rstrip;
}

static void chat_bytes(ChatWriter *w, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        w->piece = (char *)array_grow(w->piece, w->length, 1, "a conversation");
        w->piece[w->length++] = text[i];
    }
    if (!w->trained) w->read = w->length;
}

// Writes a literal of at most 255 bytes. The names of format->tokens in it become special tokens.
static void chat_put(ChatWriter *w, const char *format, ...) {
    const char *const *tokens = w->chat->format->tokens;
    char literal[256];
    va_list list;
    va_start(list, format);
    vsnprintf(literal, sizeof literal, format, list);
    va_end(list);
    for (const char *s = literal; *s != '\0';) {
        int k = 0;
        while (k < 5 && (tokens[k] == NULL || strncmp(s, tokens[k], strlen(tokens[k])) != 0)) k++;
        if (k < 5) chat_token(w, w->chat->ids[k]);
        else chat_bytes(w, s, 1);
        s += k < 5 ? strlen(tokens[k]) : 1;
    }
}

// Writes the text of a message between two literals. Writes nothing if the message is an answer
// that is yet to be written.
static void chat_text(ChatWriter *w, const ChatMessage *m, const char *before, const char *after) {
    const int rules = w->chat->format->rules;
    const bool trims = (rules & CHAT_TRIMS) != 0, answer = m->role == CHAT_ASSISTANT;
    const size_t white = trims ? encode_white(m->text, m->n, false, true) : 0;
    const char *text = m->text + white;
    size_t n = m->n - white;
    if (m->text == NULL) return;
    if (trims) n -= encode_white(text, n, true, true);
    while ((rules & CHAT_CUTS) && answer && n > 0 && text[n - 1] == ' ') n--;
    w->trained = answer && !m->read;
    chat_put(w, "%s", before);
    chat_bytes(w, text, n);
    chat_put(w, "%s", after);
}

// ---------------------------------------------------------------------------------------------
// The formats

// <|im_start|>ROLE\nTEXT<|im_end|>\n. Answers of tools that follow each other are one user's turn.
static void write_chatml(ChatWriter *w, const ChatMessage *m) {
    const bool tool = m->role == CHAT_TOOL;
    if (!tool || m == w->first || m[-1].role != CHAT_TOOL)
        chat_put(w, "<|im_start|>%s\n", chat_roles[tool ? CHAT_USER : m->role]);
    else chat_put(w, "\n");
    chat_text(w, m, tool ? "<tool_response>\n" : "", tool ? "\n</tool_response>" : "<|im_end|>\n");
    if (tool && (m + 1 == w->end || m[1].role != CHAT_TOOL)) chat_put(w, "<|im_end|>\n");
}

// Returns the text after the last `mark` in s .. end, or s if there is no mark.
static const char *chat_behind(const char *s, const char *end, const char *mark) {
    const size_t n = strlen(mark);
    for (const char *at; (at = (const char *)memmem(s, (size_t)(end - s), mark, n)) != NULL;)
        s = at + n;
    return s;
}

// Is `answer` after the user's last question? A <tool_response> from the user is no question.
static bool qwen3_thinks(const ChatWriter *w, const ChatMessage *answer) {
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    bool behind = false;
    for (const ChatMessage *m = w->first; m < w->end; m++) {
        const bool passes = m->n >= sizeof close && memcmp(m->text, open, strlen(open)) == 0
                         && memcmp(m->text + m->n - strlen(close), close, strlen(close)) == 0;
        if (m->role == CHAT_USER && !passes) behind = m < answer;
    }
    return behind;
}

// Writes ChatML, in which only answers after the user's last question have their thoughts. If the
// last answer has no thought, an empty one is written.
static void write_qwen3(ChatWriter *w, const ChatMessage *m) {
    if (m->role != CHAT_ASSISTANT) {
        write_chatml(w, m);
        return;
    }
    const bool thinks = qwen3_thinks(w, m), last = m + 1 == w->end;
    const char *end = m->text + m->n, *close = NULL, *thought = NULL;
    ChatMessage said = *m, part = *m;
    if (m->text != NULL) close = (const char *)memmem(m->text, m->n, "</think>", 8);
    if (close != NULL) thought = chat_behind(m->text, close, "<think>");
    while (thought < close && *thought == '\n') thought++;
    while (thought < close && close[-1] == '\n') close--;
    if (m->text != NULL) said.text = chat_behind(m->text, end, "</think>");
    if (thought != NULL || (thinks && last))
        while (said.text < end && *said.text == '\n') said.text++;
    said.n = (size_t)(end - said.text);
    part.text = thought;
    part.n = (size_t)(close - thought);
    chat_put(w, "<|im_start|>assistant\n");
    if (thinks && part.n > 0) chat_text(w, &part, "<think>\n", "\n</think>\n\n");
    else if (last && (thinks || m->text == NULL)) chat_put(w, "<think>\n\n</think>\n\n");
    chat_text(w, &said, "", "<|im_end|>\n");
}

// <|start_header_id|>ROLE<|end_header_id|>\n\nTEXT<|eot_id|>. A tool's answer is a JSON string.
static void write_llama3(ChatWriter *w, const ChatMessage *m) {
    const bool tool = m->role == CHAT_TOOL, system = m->role == CHAT_SYSTEM;
    ChatMessage text = *m;
    char *json = NULL;
    if (tool) {
        FILE *f = text_open(&json, &text.n);
        json_write_string(f, m->text, m->n);
        text_close(f);
        text.text = json;
    }
    chat_put(w, "<|start_header_id|>%s<|end_header_id|>\n\n%s",
             tool ? "ipython" : chat_roles[m->role], system ? w->chat->front : "");
    chat_text(w, &text, "", "<|eot_id|>");
    free(json);
}

// Mistral's formats: [INST] S\n\nU[/INST] A</s>. The system message S is in the user's first or
// last turn, or in front: [SYSTEM_PROMPT] S[/SYSTEM_PROMPT]. Only CHAT_SPACED formats have spaces.
// Llama-2's: <s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s>; <s> begins each user's turn.
static void write_inst(ChatWriter *w, const ChatMessage *m) {
    const int rules = w->chat->format->rules;
    const bool marked = (rules & CHAT_MARKED) != 0;
    const char *space = rules & CHAT_SPACED ? " " : "";
    if (m->role == CHAT_ASSISTANT) {
        chat_text(w, m, space, marked ? " </s>" : "</s>");
    } else if (m->role == CHAT_SYSTEM) {
        chat_put(w, "[SYSTEM_PROMPT]%s", space);
        chat_text(w, m, "", "[/SYSTEM_PROMPT]");
    } else {
        if (marked && w->chat->begin >= 0 && m > w->first) chat_token(w, w->chat->begin);
        chat_put(w, "[INST]%s", space);
        if (m == w->carrier)
            chat_text(w, w->system, marked ? "<<SYS>>\n" : "", marked ? "\n<</SYS>>\n\n" : "\n\n");
        chat_text(w, m, "", rules & CHAT_FIRST ? " [/INST]" : "[/INST]");
    }
}

// <|ROLE|>\nTEXT</s>\n. Phi-3 has <|end|> instead of </s>.
static void write_zephyr(ChatWriter *w, const ChatMessage *m) {
    if (w->chat->drops && m->role == CHAT_SYSTEM && m->n == 0) return;
    chat_put(w, "<|%s|>\n", chat_roles[m->role]);
    chat_text(w, m, "", w->chat->format->tokens[0]);
    if (m->text != NULL) chat_put(w, "\n");
}

// Numbers of formats that --chat-format takes. CHAT_AUTO: the format that the model's files tell.
enum { CHAT_AUTO, CHAT_CHATML, CHAT_LLAMA3, CHAT_MISTRAL_V3, CHAT_MISTRAL, CHAT_LLAMA2 };

// Chat templates, in which `begin` and `end` are the tokens that begin a text and end a turn.
#define JINJA_TURNS(open, close, text) \
    "{{- begin }}{%- for m in messages %}{{- '" open "' + m.role + '" close "' + " text " }}" \
    "{%- endfor %}{%- if add_generation_prompt %}{{- '" open "assistant" close "' }}{%- endif %}\n"
#define JINJA_INST(first, user, system, where, close, answer) first \
    "{%- set s = messages[0].content if messages[0].role == 'system' else '' %}" \
    "{%- for m in messages %}{%- if m.role == 'user' %}" \
    "{{- " user "'[INST] ' + (" system " if s and loop." where " < 3 else '') + m.content" close \
    " }}{%- endif %}{%- if m.role == 'assistant' %}{{- ' ' + m.content" answer " + end }}" \
    "{%- endif %}{%- endfor %}\n"

static const ChatFormat chat_formats[] = {  // in the order of their numbers
    {.name = "chatml", .write = write_chatml,
     .marks = {"<|im_start|>", "<|im_end|>", "!<|im_sep|>", "!think>"},
     .tools = "'\n<tool_response>\n'",
     .tokens = {"<|im_end|>", "<|im_start|>"},
     .jinja = JINJA_TURNS("<|im_start|>", "\\n", "m.content + '<|im_end|>\\n'")},
    {.name = "llama3", .write = write_llama3, .rules = CHAT_TRIMS,
     .marks = {"<|start_header_id|>", "<|eot_id|>", "!think>"},
     .tools = "message.content | tojson",
     .tokens = {"<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"},
     .jinja = JINJA_TURNS("<|start_header_id|>", "<|end_header_id|>\\n\\n",
                          "m.content | trim + '<|eot_id|>'")},
    {.name = "mistral-v3", .write = write_inst,
     .rules = CHAT_TURNS | CHAT_CUTS | CHAT_SPACED,
     .marks = {"[INST] ", "[/INST]", "! [/INST]", "![SYSTEM_PROMPT]"},
     .tokens = {"</s>", "[INST]", "[/INST]"},
     .jinja = JINJA_INST("{{- begin }}", "", "s + '\\n\\n'", "revindex", " + '[/INST]'",
                         ".rstrip(' ')")},
    {.name = "mistral", .write = write_inst,
     .rules = CHAT_TURNS | CHAT_FIRST | CHAT_SPACED,
     .marks = {"[INST] ", " [/INST]", "!<<SYS>>"}, .tokens = {"</s>"},
     .jinja = JINJA_INST("{{- begin }}", "", "s + '\\n\\n'", "index", " + ' [/INST]'", "")},
    {.name = "llama2", .write = write_inst,
     .rules = CHAT_TURNS | CHAT_FIRST | CHAT_SPACED | CHAT_TRIMS | CHAT_MARKED,
     .marks = {"[INST] ", " [/INST]", "<<SYS>>"}, .tokens = {"</s>"},
     .jinja = JINJA_INST("", "begin + ", "'<<SYS>>\\n' + s | trim + '\\n<</SYS>>\\n\\n'", "index",
                         " | trim + ' [/INST]'", " | trim + ' '")},
    {.name = "qwen3", .write = write_qwen3,
     .marks = {"<|im_start|>", "<|im_end|>", "\n</think>\n\n", "!assistant\n<think>"},
     .tools = "'\n<tool_response>\n'", .tokens = {"<|im_end|>", "<|im_start|>"}},
    {.name = "mistral-nemo", .write = write_inst, .rules = CHAT_TURNS,
     .marks = {"'[INST]' + message['content'] + '[/INST]'", " message['content'] + eos_token",
               "system_message + '\n\n' + message['content']", "!' ' + message['content']",
               "![SYSTEM_PROMPT]"},
     .tokens = {"</s>", "[INST]", "[/INST]"}},
    {.name = "mistral-v7", .write = write_inst, .rules = CHAT_SPACED,
     .marks = {"'[INST] ' + message['content'] + '[/INST]'", "' ' + message['content'] + eos_token",
               "'[SYSTEM_PROMPT] ' + message['content'] + '[/SYSTEM_PROMPT]'"},
     .tokens = {"</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"}},
    {.name = "mistral-v7-tekken", .write = write_inst,
     .marks = {"'[INST]' + message['content'] + '[/INST]'", " message['content'] + eos_token",
               "'[SYSTEM_PROMPT]' + ", "!' ' + message['content']", "![THINK]"},
     .tokens = {"</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"}},
    {.name = "zephyr", .write = write_zephyr,
     .marks = {"'<|user|>\n' + message['content'] + eos_token }}\n",
               "'<|assistant|>\n'  + message['content'] + eos_token }}\n",
               "'<|system|>\n' + message['content'] + eos_token }}\n", "{{ '<|assistant|>' }}\n"},
     .tokens = {"</s>"}},
    {.name = "phi3", .write = write_zephyr,
     .marks = {"'<|user|>\n' + message['content'] + '<|end|>\n'}}",
               "'<|assistant|>\n' + message['content'] + '<|end|>\n'}}",
               "'<|system|>\n' + message['content'] + '<|end|>\n'}}", "{{ '<|assistant|>\n' }}",
               "!bos_token"},
     .tokens = {"<|end|>", "<|user|>", "<|assistant|>", "<|system|>"}}};
enum { CHAT_FORMATS = sizeof chat_formats / sizeof chat_formats[0] };

// Llama-3.1's template begins each system message with this line and a date, and gives each
// conversation a system message. The date is CHAT_DATE; Llama-3.2's may be today's (chat_open()).
#define CHAT_KNOWLEDGE "Cutting Knowledge Date: December 2023"
#define CHAT_DATE "26 Jul 2024"

// ---------------------------------------------------------------------------------------------
// The format

// Returns the chat template, without its comments: the text of its own file, or else a member of
// tokenizer_config.json. If that member is a list, returns the entry "default", or " " if the list
// has none. Returns "" if the model has no template.
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
    free(root);
    while ((at = strstr(text, "{#")) != NULL) {
        const char *end = strstr(at, "#}"), *rest = end != NULL ? end + 2 : "";
        memmove(at, rest, strlen(rest) + 1);
    }
    return text;
}

// Is `mark` in a template? A ' of the mark may be a " there, and a line's end may be written \n.
static bool chat_has(const char *text, const char *mark) {
    size_t i = 0, at = 0;
    for (; *text != '\0' && mark[i] != '\0'; text++)
        for (i = at = 0; mark[i] != '\0'; i++, at++) {
            const bool line = mark[i] == '\n' && text[at] == '\\' && text[at + 1] == 'n';
            if (text[at] != mark[i] && !line && !(mark[i] == '\'' && text[at] == '"')) break;
            at += line;
        }
    return mark[i] == '\0';
}

// Has a template the marks of a format?
static bool chat_fits(const ChatFormat *f, const char *text) {
    for (int k = 0; k < 5 && f->marks[k] != NULL; k++) {
        const bool lacks = f->marks[k][0] == '!';
        if (chat_has(text, f->marks[k] + lacks) == lacks) return false;
    }
    return true;
}

// Finds the template's default system message: literal text behind the words that begin a system
// message (`open`). If the template has two different ones, none is taken.
static void chat_default(Chat *chat, const char *text) {
    const char *const *tokens = chat->format->tokens, *end = tokens[0];
    const char *head = tokens[1] != NULL ? tokens[1] : "";
    char open[96];
    snprintf(open, sizeof open, "%ssystem%s", head, tokens[2] != NULL ? tokens[2] : "");
    for (const char *at = text; *head != '\0' && (at = strstr(at, open)) != NULL;) {
        const char quote = at > text && strchr("'\"", at[-1]) != NULL ? at[-1] : '{';
        for (at += strlen(open); *at == '\n' || strncmp(at, "\\n", 2) == 0;)
            at += *at == '\n' ? 1 : 2;
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
}

// Returns the token that begins a conversation: `begin`, which begins this tokenizer's other texts,
// or else bos_token. Returns -1 if the template does not write this token.
static int32_t chat_begin(const Tokenizer *t, const char *text, int32_t begin) {
    const AddedToken *a = added_token(t, begin);
    if (strstr(text, "bos_token") != NULL) return begin >= 0 ? begin : t->named_bos;
    return a != NULL && strstr(text, a->name) != NULL ? begin : -1;
}

// Makes an added token special: its name, typed by a user, is encoded as text.
static void added_hide(const Tokenizer *t, int32_t id) {
    AddedToken *a = added_token(t, id);
    if (a != NULL) a->special = true;
}

// Returns format number `asked`. If CHAT_AUTO: the format whose marks the template `text` has; if
// text is "": one with a template of ours, whose tokens[1] the tokenizer has. NULL, and err: none.
static const ChatFormat *chat_find(const Tokenizer *t, int asked, const char *text, Error *err) {
    static const char *const others[] = {"<｜User｜>", "[SYSTEM_PROMPT]", "<|user|>", "</think>",
                                         "<start_of_turn>", "<|im_sep|>", "[INST]", ""};
    const bool inst = tokenizer_added(t, "[INST]") != TOKENIZER_NONE;  // then CHAT_FIRST never fits
    int other = 0;
    if (asked != CHAT_AUTO) return &chat_formats[asked - 1];
    for (const ChatFormat *f = chat_formats; f < chat_formats + CHAT_FORMATS; f++)
        if (*text != '\0' ? chat_fits(f, text) && !(inst && (f->rules & CHAT_FIRST))
                : f->jinja != NULL && f->tokens[1] != NULL
                  && tokenizer_added(t, f->tokens[1]) != TOKENIZER_NONE) return f;
    while (strstr(text, others[other]) == NULL) other++;
    if (*text != '\0')
        error_set(err, "the model's chat template is of no format that is known here%s%s: "
                  "--chat-format chatml, llama3, mistral-v3, mistral or llama2 takes that one "
                  "instead", *others[other] ? ": it has " : "", others[other]);
    else
        error_set(err, "the tokenizer has none of the tokens <|im_start|>, <|start_header_id|> and "
                  "[INST], which would tell the format of a conversation%s", t->eot < 0
                  ? ", nor one that could end a turn: take that of a model (--tokenizer)"
                  : ": name it with --chat-format mistral (of v0.1 and v0.2), llama2, or another");
    return NULL;
}

// Fills *chat with the format that chat_find() finds, and with what the template says. Fails if no
// format is found, or if the tokenizer lacks a token of the format. The format's token `</s>` means
// the tokenizer's end-of-text token. now: the time, for a template that writes today's date; 0: the
// template writes CHAT_DATE, so that a training run has the same tokens on every day.
static bool chat_open(Chat *chat, const Tokenizer *t, int asked, int32_t begin, time_t now,
                      Error *err) {
    char *text = chat_template(t), today[16] = CHAT_DATE;
    const ChatFormat *f = chat_find(t, asked, text, err);
    const bool fits = f != NULL && chat_fits(f, text);
    *chat = (Chat){.format = f, .t = t, .begin = fits ? chat_begin(t, text, begin) : begin,
                   .has_template = *text != '\0'};
    for (int k = 0; f != NULL && k < 5 && f->tokens[k] != NULL; k++) {
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
    added_hide(t, chat->begin);
    if (fits) {
        chat_default(chat, text);
        chat->tools = f->tools != NULL && chat_has(text, f->tools);
        chat->drops = chat_has(text, "'system' and message['content']");
        if (now != 0 && chat_has(text, "strftime_now('%d %b %Y')"))
            strftime(today, sizeof today, "%d %b %Y", localtime(&now));
        if (f->write == write_llama3 && strstr(text, CHAT_KNOWLEDGE) != NULL) {
            snprintf(chat->front, sizeof chat->front, CHAT_KNOWLEDGE "\nToday Date: %s\n\n", today);
            if (chat->system == NULL) chat->system = "";
        }
    }
    free(text);
    return f != NULL;
}

// ---------------------------------------------------------------------------------------------
// From JSON

// Reads one message. Its text stays in the JSON's memory. shared: it has ShareGPT's form, else
// OpenAI's. An answer is trained if its "weight" is 1 or missing, and not if it is 0.
static ChatMessage chat_message(const Chat *chat, const Json *m, bool shared, const char *at) {
    static const char *const shared_roles[CHAT_ROLES] = {"system", "human", "gpt", "tool"};
    const char *const known[6] = {shared ? "from" : "role", shared ? "value" : "content", "name",
                                  "id", "weight", "tool_call_id"};
    const char *const *roles = shared ? shared_roles : chat_roles;
    const Json *role = json_get(m, known[0]), *content = json_get(m, known[1]);
    const Json *weight = json_get(m, "weight");
    int k = 0;
    if (role == NULL || role->type != JSON_STRING)
        die("%s is no object with \"%s\" and \"%s\"", at, known[0], known[1]);
    while (k < CHAT_ROLES && !json_is(role, roles[k])) k++;
    if (k == CHAT_TOOL && !chat->tools)
        die("%s has the role \"tool\": the format %s has none, or the model's template writes it "
            "in a way that is not known here", at, chat->format->name);
    if (k == CHAT_ROLES)
        die("%s has the role \"%.40s\", which is none of %s, %s, %s and tool", at, role->string,
            roles[0], roles[1], roles[2]);
    for (const Json *v = m->child; v != NULL; v = v->next) {
        int i = 0;
        while (i < 6 && strcmp(v->key, known[i]) != 0) i++;
        if (i == 6 && !json_empty(v))
            die("%s has \"%.40s\", which is not supported: leave it out, or write into \"%s\" what "
                "is to be read or learned of it", at, v->key, known[1]);
    }
    if (content == NULL) die("%s has no \"%s\"", at, known[1]);
    if (content->type != JSON_STRING)
        die("%s has a \"%s\" that is no string%s", at, known[1], content->type == JSON_ARRAY
            ? ": write the texts of its parts as one" : "");
    const bool answer = k == CHAT_ASSISTANT;
    if (answer && content->length == encode_white(content->string, content->length, true, true))
        die("%s, an answer, is empty", at);
    double trained = answer;
    if (weight != NULL) trained = weight->type == JSON_NUMBER ? weight->number : -1;
    if (trained != 0 && (trained != 1 || !answer))
        die("%s has a \"weight\" that is not 0, or 1 for an answer", at);
    return (ChatMessage){k, content->string, content->length, trained == 0};
}

// Reads the list `messages`. Returns how many messages the conversation has: it ends with the last
// trained answer. last: only this answer is trained. A fault ends the program with one line that
// begins with `where`.
static size_t chat_read(const Chat *chat, const Json *messages, bool last, const char *where,
                        ChatMessage **out) {
    size_t count = 0, kept = 0;
    char at[PATH_MAX + 64];
    if (messages->type != JSON_ARRAY || messages->count == 0)
        die("%s: \"%s\" is %s", where, messages->key,
            messages->type != JSON_ARRAY ? "no list" : "empty");
    const bool shared = json_get(messages->child, "from") != NULL;
    ChatMessage *list = *out = ALLOC(ChatMessage, messages->count, "a conversation");
    for (const Json *m = messages->child; m != NULL; m = m->next, count++) {
        snprintf(at, sizeof at, "%s: message %zu", where, count + 1);
        list[count] = chat_message(chat, m, shared, at);
        const int role = list[count].role, before = count > 0 ? list[count - 1].role : CHAT_SYSTEM;
        if (role == CHAT_SYSTEM && count > 0)
            die("%s is a system message, and only the first one may be", at);
        if (role > CHAT_USER && before == CHAT_SYSTEM)
            die("%s is the %s's, and stands before any user's", at, chat_roles[role]);
        if ((chat->format->rules & CHAT_TURNS) && role == before && role != CHAT_SYSTEM)
            die("%s: messages %zu and %zu are both the %s's, who takes turns in the format %s",
                where, count, count + 1, chat_roles[role], chat->format->name);
        if (!list[count].read) kept = count + 1;
    }
    if (kept == 0)
        die("%s: no message is the assistant's, or none has a weight: there is nothing to train",
            where);
    for (size_t i = 0; last && i + 1 < kept; i++) list[i].read = true;
    return kept;
}

// ---------------------------------------------------------------------------------------------
// To tokens

// Returns the id of a token of chat_encode(), which stores an untrained token as ~id.
static int32_t token_id(int32_t token) { return token < 0 ? ~token : token; }

// Encodes a conversation. A trained token is stored as its id, an untrained one as ~id. The last
// message may be an answer that is yet to be written. Returns *count tokens, to be freed.
static int32_t *chat_encode(const Chat *chat, const ChatMessage *m, size_t n, size_t *count) {
    const ChatFormat *f = chat->format;
    const bool given = n > 0 && m[0].role == CHAT_SYSTEM;
    ChatMessage own = {.role = CHAT_SYSTEM, .text = chat->system};
    ChatWriter w = {.chat = chat, .first = m + given, .end = m + n};
    if (chat->system != NULL) own.n = strlen(chat->system);
    if (given || chat->system != NULL) w.system = given ? m : &own;
    // An empty system message is put into a user's turn only if the format has no spaces.
    const bool carried = (f->rules & CHAT_TURNS) && w.system != NULL
                      && (w.system->n > 0 || !(f->rules & CHAT_SPACED));
    for (m = w.first; carried && m < w.end; m++)
        if (m->role == CHAT_USER && (w.carrier == NULL || !(f->rules & CHAT_FIRST))) w.carrier = m;
    if (chat->begin >= 0) chat_token(&w, chat->begin);
    if (!(f->rules & CHAT_TURNS) && w.system != NULL) f->write(&w, w.system);
    for (m = w.first; m < w.end; m++) f->write(&w, m);
    chat_flush(&w);
    free(w.piece);
    *count = w.out.count;
    return (int32_t *)w.out.ids;
}

// ---------------------------------------------------------------------------------------------
// For other programs

// Does this token end an answer in other programs? They read generation_config.json, if there is
// one.
static bool chat_stops(const Tokenizer *t, int32_t id) {
    const bool file = t->files[FILE_GENERATION].text != NULL;
    for (size_t i = 0; i < t->stops.count; i++)
        if ((int32_t)t->stops.ids[i] == id) return !file || t->generation_stops;
    return !file && id == t->eot;
}

// Adds the format's chat template to a tokenizer that has none. Also adds the token that ends a
// turn to the tokens that end an answer in generation_config.json.
static void chat_export(const Chat *chat, Tokenizer *t) {
    static const char *const stops[] = {"eos_token_id", NULL};
    TokenizerFile *own = &t->files[FILE_TEMPLATE], *file = &t->files[FILE_GENERATION];
    const AddedToken *begin = added_token(t, chat->begin), *end = added_token(t, chat->ids[0]);
    Error err;
    if (chat->has_template) return;
    FILE *f = text_open(&own->text, &own->length);
    fprintf(f, "{%%- set begin = '%s' %%}{%%- set end = '%s' %%}%s",
            begin != NULL ? begin->name : "", end != NULL ? end->name : "", chat->format->jinja);
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
    free(root);
}

#endif
