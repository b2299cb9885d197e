// chat.h: conversations as tokens, in the formats that models of the families were trained on.
//
//     chat_open()      the format of a tokenizer, and the system message of its template
//     chat_read()      a conversation from JSON: [{"role": "user", "content": ".."}, ..]
//     chat_encode()    the tokens of a conversation, and which of them are trained
//
// The formats are the table below. A conversation becomes pieces between special tokens, and each
// piece is encoded whole: its literal part and a message apart would be other tokens. A special
// token in a message is text: who types <|im_end|> does not end a turn.
// Trained are the texts of the assistant, and behind each the token that ends its turn.
// Sources: the chat templates of Qwen2.5, Llama-3, Llama-2 and SmolLM2, and mistral-common.
#ifndef TIDE_CHAT_H
#define TIDE_CHAT_H
#include "tokenizer.h"

enum { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_ROLES };
static const char *const chat_roles[CHAT_ROLES] = {"system", "user", "assistant"};

// The format number 0 is that which the tokenizer tells.
enum { CHAT_AUTO, CHAT_CHATML, CHAT_LLAMA3, CHAT_MISTRAL_V3, CHAT_MISTRAL, CHAT_LLAMA2 };

enum {
    CHAT_TRIMS = 1,        // texts are without white space around them
    CHAT_ALTERNATES = 2,   // user and assistant take turns
    CHAT_FIRST = 4, CHAT_LAST = 8,  // the system message is in front of this user's text
    CHAT_BEGINS = 16       // the token that begins a text stands before every user's turn
};

typedef struct {
    const char *name;               // of --chat-format
    const char *mark;               // a token that tells the format; NULL: none does
    const char *says[CHAT_ROLES];   // a message of each role; % is its text
    const char *tokens[3];          // special tokens of these; the first one ends a turn
    int rules;
} ChatFormat;

#define CHATML_SAYS(role) "<|im_start|>" role "\n%<|im_end|>\n"
#define LLAMA3_SAYS(role) "<|start_header_id|>" role "<|end_header_id|>\n\n%<|eot_id|>"
static const ChatFormat chat_formats[] = {  // in the order of their numbers
    {.name = "chatml", .mark = "<|im_start|>",
     .says = {CHATML_SAYS("system"), CHATML_SAYS("user"), CHATML_SAYS("assistant")},
     .tokens = {"<|im_end|>", "<|im_start|>"}, .rules = 0},
    {.name = "llama3", .mark = "<|start_header_id|>",
     .says = {LLAMA3_SAYS("system"), LLAMA3_SAYS("user"), LLAMA3_SAYS("assistant")},
     .tokens = {"<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"}, .rules = CHAT_TRIMS},
    {.name = "mistral-v3", .mark = "[INST]", .says = {"%\n\n", "[INST] %[/INST]", " %</s>"},
     .tokens = {"</s>", "[INST]", "[/INST]"}, .rules = CHAT_ALTERNATES | CHAT_LAST},
    {.name = "mistral", .mark = NULL, .says = {"%\n\n", "[INST] % [/INST]", " %</s>"},
     .tokens = {"</s>"}, .rules = CHAT_ALTERNATES | CHAT_FIRST},
    {.name = "llama2", .mark = NULL,
     .says = {"<<SYS>>\n%\n<</SYS>>\n\n", "[INST] % [/INST]", " % </s>"},
     .tokens = {"</s>"}, .rules = CHAT_TRIMS | CHAT_ALTERNATES | CHAT_FIRST | CHAT_BEGINS}};
enum { CHAT_FORMATS = sizeof chat_formats / sizeof chat_formats[0] };

// System messages that chat templates have for a conversation without one.
static const char *const chat_defaults[] = {
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",             // Qwen2.5
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",             // SmolLM2
    "You are a helpful assistant."};                                                    // Qwen2
// Llama-3.1's template begins each system message so, and has one in every conversation.
#define CHAT_DATE "Cutting Knowledge Date: December 2023"

typedef struct {
    const ChatFormat *format;
    const Tokenizer *t;
    int32_t begin;                  // begins every text of the model; -1: none
    int32_t ids[3];                 // of format->tokens; the first one ends a turn
    const char *system;             // of a conversation without a system message; NULL: none
    const char *front;              // in front of every system message
} Chat;

typedef struct {
    int role;
    const char *text;               // of n bytes; NULL: the answer begins here
    size_t n;
} ChatMessage;

// Is this literal in the chat template, which is a file of its own or in tokenizer_config.json?
static bool chat_template_has(const Tokenizer *t, const char *literal) {
    const int file = t->files[FILE_TEMPLATE].text != NULL ? FILE_TEMPLATE : FILE_CONFIG;
    const TokenizerFile *f = &t->files[file];
    return f->text != NULL && memmem(f->text, f->length, literal, strlen(literal)) != NULL;
}

// Fills *chat with the format number `asked`, or with that which the tokenizer tells. Fails if it
// tells none, or has not the format's tokens. `</s>` is whatever ends a text of this tokenizer.
static bool chat_open(Chat *chat, const Tokenizer *t, int asked, int32_t begin, Error *err) {
    const ChatFormat *f = asked != CHAT_AUTO ? &chat_formats[asked - 1] : NULL;
    const size_t defaults = sizeof chat_defaults / sizeof chat_defaults[0];
    for (int k = 0; k < CHAT_FORMATS && f == NULL; k++)
        if (chat_formats[k].mark != NULL
            && tokenizer_added(t, chat_formats[k].mark) != TOKENIZER_NONE) f = &chat_formats[k];
    if (f == NULL)
        return error_set(err, "the tokenizer has none of the tokens <|im_start|>, "
                         "<|start_header_id|> and [INST], which would tell the format of a "
                         "conversation: name it with --chat-format mistral (of v0.1 and v0.2), "
                         "llama2, or another");
    memset(chat, 0, sizeof *chat);
    chat->format = f;
    chat->t = t;
    chat->begin = begin;
    chat->front = "";
    for (int k = 0; k < 3 && f->tokens[k] != NULL; k++) {
        const bool eot = strcmp(f->tokens[k], "</s>") == 0;
        const uint32_t id = eot ? (uint32_t)t->eot : tokenizer_added(t, f->tokens[k]);
        if (id == TOKENIZER_NONE)
            return error_set(err, "the chat format %s needs %s%s, and the tokenizer has none",
                             f->name, eot ? "a token that ends a text, like " : "the token ",
                             f->tokens[k]);
        chat->ids[k] = (int32_t)id;
    }
    for (size_t k = 0; k < defaults && f == chat_formats && chat->system == NULL; k++)
        if (chat_template_has(t, chat_defaults[k])) chat->system = chat_defaults[k];
    if (f == &chat_formats[CHAT_LLAMA3 - 1] && chat_template_has(t, CHAT_DATE)) {
        chat->front = CHAT_DATE "\nToday Date: 26 Jul 2024\n\n";
        if (chat->system == NULL) chat->system = "";
    }
    return true;
}

// ---------------------------------------------------------------------------------------------
// From JSON

// Reads the list `messages` up to the assistant's last one, behind which nothing is trained.
// Returns how many messages those are; their texts are those of the JSON. A fault ends the program
// with one line that begins with `where`.
static size_t chat_read(const Chat *chat, const Json *messages, const char *where,
                        ChatMessage **out) {
    static const char *const refused[] = {"tool_calls", "function_call", "weight"};
    size_t count = 0, kept = 0;
    int before = CHAT_SYSTEM;
    char at[PATH_MAX + 64];
    if (messages->type != JSON_ARRAY || messages->count == 0)
        die("%s: \"messages\" is %s", where, messages->type != JSON_ARRAY ? "no list" : "empty");
    *out = ALLOC(ChatMessage, messages->count, "a conversation");
    for (const Json *m = messages->child; m != NULL; m = m->next, count++) {
        const Json *role = json_get(m, "role"), *content = json_get(m, "content");
        int k = 0;
        snprintf(at, sizeof at, "%s: message %zu", where, count + 1);
        if (role == NULL || role->type != JSON_STRING)
            die("%s is no object with \"role\" and \"content\"", at);
        while (k < CHAT_ROLES && !json_is(role, chat_roles[k])) k++;
        if (k == CHAT_ROLES)
            die("%s has the role \"%.40s\"%s", at, role->string,
                json_is(role, "tool") || json_is(role, "function") ? ": tools are not supported"
                : ", which is none of system, user and assistant");
        for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
            if (json_get(m, refused[i]) != NULL)
                die("%s has \"%s\", which is not supported", at, refused[i]);
        if (content == NULL) die("%s has no \"content\"", at);
        if (content->type != JSON_STRING)
            die("%s has a \"content\" that is no string%s", at, content->type == JSON_ARRAY
                ? ": write the texts of its parts as one" : "");
        if (k == CHAT_ASSISTANT && content->length == 0) die("%s, an answer, is empty", at);
        if (k == CHAT_SYSTEM && count > 0)
            die("%s is a system message, and only the first one may be", at);
        if (k == CHAT_ASSISTANT && before == CHAT_SYSTEM)
            die("%s is the assistant's, and stands before any user's", at);
        if ((chat->format->rules & CHAT_ALTERNATES) && k == before && k != CHAT_SYSTEM)
            die("%s: messages %zu and %zu are both the %s's, who takes turns in the format %s",
                where, count, count + 1, chat_roles[k], chat->format->name);
        (*out)[count].role = before = k;
        (*out)[count].text = content->string;
        (*out)[count].n = content->length;
        if (k == CHAT_ASSISTANT) kept = count + 1;
    }
    if (kept == 0) die("%s: no message is the assistant's: there is nothing to train", where);
    return kept;
}

// ---------------------------------------------------------------------------------------------
// To tokens

typedef struct {
    const Chat *chat;
    Tokens out;
    char *piece;                    // [length] bytes since the last special token
    size_t length, room;
    size_t read;                    // bytes of the piece that are not the assistant's
    bool trained;                   // what is written now is the assistant's
    ChatMessage system;             // stands in front of the next user's text, unless NULL
} ChatWriter;

// Encodes the piece. A token is the assistant's if a byte of its text is. NFC composes nothing
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
    if (w->length + n > w->room) {
        w->room = 2 * (w->length + n);
        w->piece = (char *)realloc(w->piece, w->room);
        if (w->piece == NULL) fail("out of memory: a conversation");
    }
    memcpy(w->piece + w->length, text, n);
    w->length += n;
    if (!w->trained) w->read = w->length;
}

// Writes a message, or, of one without a text, what stands before an answer.
static void chat_say(ChatWriter *w, const ChatMessage *m) {
    static const char space[] = " \t\n\r\v\f";
    const ChatFormat *f = w->chat->format;
    const bool trims = (f->rules & CHAT_TRIMS) != 0;
    const char *text = m->text;
    size_t n = m->n;
    for (; trims && n > 0 && memchr(space, *text, 6) != NULL; n--) text++;
    while (trims && n > 0 && memchr(space, text[n - 1], 6) != NULL) n--;
    for (const char *s = f->says[m->role]; *s != '\0';) {
        int k = 0;
        while (k < 3 && (f->tokens[k] == NULL || strncmp(s, f->tokens[k], strlen(f->tokens[k]))))
            k++;
        if (m->role == CHAT_ASSISTANT && s[*s == ' '] == '%') w->trained = true;
        if (w->trained && text == NULL) return;
        if (k < 3) {
            chat_token(w, w->chat->ids[k]);
            s += strlen(f->tokens[k]);
        } else if (*s++ != '%') {
            chat_bytes(w, s - 1, 1);
        } else {
            const ChatMessage system = w->system;
            if (m->role == CHAT_SYSTEM) chat_bytes(w, w->chat->front, strlen(w->chat->front));
            if (m->role == CHAT_USER) w->system.text = NULL;
            if (m->role == CHAT_USER && system.text != NULL) chat_say(w, &system);
            chat_bytes(w, text, n);
        }
    }
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
    size_t carrier = n;  // the user's message with the system's
    memset(&w, 0, sizeof w);
    w.chat = chat;
    if (chat->system != NULL) system.n = strlen(chat->system);
    if (given) system = m[0];
    for (size_t i = 0; i < n; i++)
        if (m[i].role == CHAT_USER && (carrier == n || (rules & CHAT_LAST))) carrier = i;
    if (chat->begin >= 0) chat_token(&w, chat->begin);
    if (!(rules & (CHAT_FIRST | CHAT_LAST)) && system.text != NULL) chat_say(&w, &system);
    for (size_t i = given; i < n; i++) {
        if ((rules & CHAT_BEGINS) && m[i].role == CHAT_USER && i > given && chat->begin >= 0)
            chat_token(&w, chat->begin);
        if ((rules & (CHAT_FIRST | CHAT_LAST)) && i == carrier && system.n > 0) w.system = system;
        chat_say(&w, &m[i]);
    }
    chat_flush(&w);
    free(w.piece);
    *count = w.out.count;
    return (int32_t *)w.out.ids;
}

#endif
