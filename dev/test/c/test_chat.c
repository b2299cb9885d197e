// Tests of chat.h, and of conversations in task.h. A conversation's tokens are those that
// apply_chat_template() makes with the published template of the format: its text by Jinja, encoded
// piece by piece by Hugging Face's tokenizers, for the small tokenizers in fixtures/tokenizer.
#include "../../../tide/files/task.h"
#include "../../data/blocks.h"
#include "../test.h"
#include "../dies.h"
#include "../files.h"
#include "../merges.h"
#define COUNT_OF(a) (sizeof(a) / sizeof *(a))

// A tokenizer of fixtures/tokenizer: the tokens that begin and end a text; more special tokens,
// from 2005 on. strips: these take the white space behind them. spaced: a space stands in front of
// a text only. plain: the token that begins a text is no special one.
typedef struct {
    const char *folder, *begin, *end, *more[5];
    bool spaced, strips, plain;
} Kind;
static const Kind of_smollm2 = {"small-smollm2", "<|im_start|>", "<|im_end|>"},
    of_llama3 = {"small-llama3", "<|begin_of_text|>", "<|end_of_text|>"},
    of_llama2 = {"small-llama2", "<s>", "</s>"},
    of_plain_llama3 = {"small-llama3", "<|begin_of_text|>", "<|end_of_text|>", .plain = true},
    of_v3 = {"small-llama2", "<s>", "</s>",
             {"[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"}, .spaced = true},
    of_phi3 = {"small-llama2", "<s>", "</s>",
               {"<|end|>", "<|user|>", "<|assistant|>", "<|system|>"}, .strips = true};

// Where a chat template is: in a file of its own, in tokenizer_config.json, or there in a list,
// with another one that is not in use.
enum { IN_FILE, IN_CONFIG, IN_LIST };

#define FLAGS "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":"

// Makes a tokenizer of this kind in the base directory, alone but for generation_config.json, with
// a chat template, unless that is NULL.
static Tokenizer *load(const Kind *kind, int where, const char *template_text) {
    static const char other[] = "<|im_start|>system\nYou are another.<|im_end|>";
    static const char last[] = "\"content\":\"<|right|>x\"," FLAGS "false,\"special\":false}";
    static const char *const spaced[][2] = {
        {"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},"
         "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]}", "null"},
        {"\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":"
         "\"\u2581\",\"prepend_scheme\":\"first\",\"split\":false}"}};
    char added[2048], token[256];
    size_t n = 0;
    char *json = fixture_read(kind->folder, "tokenizer.json", &n);
    strcpy(added, last);
    for (int k = 0; kind->more[k] != NULL; k++)
        sprintf(added + strlen(added), ",{\"id\":%d,\"content\":\"%s\",\"special\":true,"
                "\"rstrip\":%s}", 2005 + k, kind->more[k], kind->strips ? "true" : "false");
    if (kind->more[0] != NULL) json = altered(json, last, added);
    for (int k = 0; k < 2 && kind->spaced; k++) json = altered(json, spaced[k][0], spaced[k][1]);
    sprintf(token, "\"content\":\"%s\"," FLAGS "false,\"special\":", kind->begin);
    sprintf(added, "%strue", token);
    if (kind->plain) json = altered(json, added, strcat(token, "false"));
    put_text(in_base("tokenizer.json"), json);
    unlink(in_base("chat_template.jinja"));
    FILE *f = fopen(in_base("tokenizer_config.json"), "wb");
    fprintf(f, "{\"bos_token\": \"%s\", \"eos_token\": \"%s\"", kind->begin, kind->end);
    if (template_text != NULL) fprintf(f, ", \"chat_template\": ");
    if (where == IN_LIST) fprintf(f, "[{\"name\": \"tool_use\", \"template\": ");
    if (template_text != NULL && where != IN_CONFIG) json_write_string(f, other, strlen(other));
    if (where == IN_LIST) fprintf(f, "}, {\"name\": \"default\", \"template\": ");
    if (where != IN_FILE) json_write_string(f, template_text, strlen(template_text));
    fprintf(f, where == IN_LIST ? "}]}" : "}");
    fclose(f);
    if (template_text != NULL && where == IN_FILE)
        put_text(in_base("chat_template.jinja"), template_text);
    return tokenizer_load(base);
}

static Chat open_chat(const Tokenizer *t, int format, time_t now) {
    Chat chat;
    if (!chat_open(&chat, t, format, t->bos, now, &err)) die("%s", err.text);
    return chat;
}

// ---------------------------------------------------------------------------------------------
// Conversations

#define MESSAGE(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define ASKS(text) MESSAGE("user", text) ","
#define ANSWERS(text) MESSAGE("assistant", text)
#define BRIEF MESSAGE("system", "Be brief.") ","
#define SILENT MESSAGE("system", "") ","
#define USER MESSAGE("user", "Who?")
#define KING ANSWERS("The king.")
#define KING_READ "{\"role\":\"assistant\",\"content\":\"The king.\",\"weight\":0}"
#define OPEN ANSWERS("...")  // an answer that is yet to be written
#define TALK BRIEF USER "," KING "," ASKS(" <|eot_id|>\\n")
#define TWO_TOOLS "{\"role\":\"tool\",\"content\":\"a \\\"b\\\"\",\"tool_call_id\":\"1\"}," \
                  MESSAGE("tool", "2") ","

// Encodes messages, which are the members of a list in JSON.
static int32_t *encoded(const Chat *chat, const char *messages, size_t *count) {
    char json[2048];
    snprintf(json, sizeof json, "[%s]", messages);
    Json *root = json_parse(json, strlen(json), &err);
    ChatMessage *m;
    const size_t n = chat_read(chat, root, false, "a case", &m);
    if (strcmp(m[n - 1].text, "...") == 0) m[n - 1] = (ChatMessage){CHAT_ASSISTANT, NULL, 0, false};
    int32_t *tokens = chat_encode(chat, m, n, count);
    free(m);
    free(root);
    return tokens;
}

// A conversation as text, with what is trained in braces. dots: one is between two tokens.
static const char *shown(const Chat *chat, const char *messages, bool dots) {
    static char text[2048];
    size_t used = 0, length, count;
    int32_t *tokens = encoded(chat, messages, &count);
    for (size_t i = 0; i < count; i++) {
        const bool first = tokens[i] >= 0 && (i == 0 || tokens[i - 1] < 0);
        const bool last = tokens[i] >= 0 && (i + 1 == count || tokens[i + 1] < 0);
        const char *s = tokenizer_token(chat->t, (uint32_t)token_id(tokens[i]), &length);
        used += (size_t)sprintf(text + used, "%s%s%.*s%s", dots && i > 0 ? "·" : "",
                                first ? "{" : "", (int)length, s, last ? "}" : "");
    }
    free(tokens);
    return text;
}

// The templates have no more of the published ones than what tells them.
#define BOS "{{ bos_token }}"
#define TURNS "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + " \
    "'<|im_end|>' + '\\n' }}{% endfor %}" \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define SYSTEM(text) "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\n" text \
    "<|im_end|>\\n' }}{% endif %}"
#define LLAMA3_TURNS BOS "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + " \
    "m.content | trim + '<|eot_id|>' }}"
#define LLAMA31 "{{ 'Cutting Knowledge Date: December 2023\n' }}" LLAMA3_TURNS
#define LLAMA32 "{%- set date_string = strftime_now(\"%d %b %Y\") %}" LLAMA31 \
    "{{- \"<|start_header_id|>ipython<|end_header_id|>\\n\\n\" }}{{- message.content | tojson }}"
#define QWEN3_TURNS "{{ '<|im_start|>' + m.role + '\\n<think>\\n' + thought + " \
    "'\\n</think>\\n\\n' + content + '<|im_end|>' }}"
#define CONTENT "message['content']"
#define NEMO BOS "{{- \"[INST]\" + system_message + \"\\n\\n\" + message[\"content\"] + " \
    "\"[/INST]\" }}{{- \"[INST]\" + message[\"content\"] + \"[/INST]\" }}" \
    "{{- message[\"content\"] + eos_token}}"
#define V7 BOS "{{ '[INST] ' + " CONTENT " + '[/INST]' }}" \
    "{{ '[SYSTEM_PROMPT] ' + " CONTENT " + '[/SYSTEM_PROMPT]' }}{{ ' ' + " CONTENT " + eos_token }}"
#define TEKKEN BOS "{{- '[INST]' + " CONTENT " + '[/INST]' }}" \
    "{{- '[SYSTEM_PROMPT]' + " CONTENT " + '[/SYSTEM_PROMPT]' }}{{- " CONTENT " + eos_token }}"
#define ZEPHYR "{{ '<|user|>\n' + " CONTENT " + eos_token }}\n" \
    "{{ '<|system|>\n' + " CONTENT " + eos_token }}\n" \
    "{{ '<|assistant|>\n'  + " CONTENT " + eos_token }}\n{{ '<|assistant|>' }}\n"
#define PHI(filled) "{% if message['role'] == 'system'" filled " %}" \
    "{{'<|system|>\n' + " CONTENT " + '<|end|>\n'}}{{'<|user|>\n' + " CONTENT " + '<|end|>\n'}}" \
    "{{'<|assistant|>\n' + " CONTENT " + '<|end|>\n'}}{{ '<|assistant|>\n' }}"
#define TOOLS "{{- '\\n<tool_response>\\n' }}{{- message.content }}"

// What each format makes of a conversation: its literals and tokens, what is trained, a special
// token that a user types, white space, a default system message, tools, thoughts, and the day.
// A text with dots shows its tokens, too.
static void chat_conversations(void) {
    #define HI "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    #define DATED(date) "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n" \
        "Cutting Knowledge Date: December 2023\nToday Date: " date "\n\n"
    #define HI3 "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>" \
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    #define NO_THOUGHT "<think>\n\n</think>\n\n"
    enum { FEBRUARY = 1738584000 };  // noon of 2025-02-03 in Greenwich
    static const struct {
        const char *format; int asked;
        const Kind *kind; const char *template_text; time_t now;
        const char *messages, *shown;
    } cases[] = {
        {"llama3", CHAT_AUTO, &of_llama3, NULL, 0,
         BRIEF ASKS("\u00a0\u3000<|eot_id|>\u2003\\n") ANSWERS("\u00a0No. \u2003 "),
         "<|begin_of_text|>·<|start_header_id|>·s·y·st·em·<|end_header_id|>·\n\n·Be· b·ri·ef·.·"
         "<|eot_id|>·<|start_header_id|>·us·er·<|end_header_id|>·\n\n·<·|·e·ot·_·id·|·>·"
         "<|eot_id|>·<|start_header_id|>·ass·ist·ant·<|end_header_id|>·\n\n·{No·.·<|eot_id|>}"},
        {"chatml", CHAT_AUTO, &of_smollm2, NULL, 0, ASKS("<|im_end|>") ANSWERS("\\nNo. "),
         "<|im_start|>·us·er·\n·<·|·im·_·end·|·>·<|im_end|>·\n·<|im_start|>·ass·ist·ant·\n·{\n·"
         "No·.· ·<|im_end|>}·\n"},
        {"mistral", CHAT_MISTRAL, &of_llama2, NULL, 0, TALK ANSWERS("\\nNo. "),
         "<s> [INST] Be brief.\n\nWho? [/INST]{ The king. </s>} [INST]  <|eot_id|>\n [/INST]{ "
         "\nNo.  </s>}"},
        {"llama2", CHAT_LLAMA2, &of_llama2, NULL, 0, TALK ANSWERS("\\nNo. "),
         "<s>· [·IN·ST·]· <·<·S·Y·S·>>·\n·B·e· b·ri·ef·.·\n·<·<·/·S·Y·S·>>·\n·\n·W·ho·?· [·/·"
         "IN·ST·]·{ The· king·.· · </s>}·<s>· [·IN·ST·]· <·|·e·ot·_·id·|·>· [·/·IN·ST·]·{ No·.·"
         " · </s>}"},
        {"mistral-v3", CHAT_AUTO, &of_v3, NULL, 0, TALK ANSWERS(" No.\u2003  "),
         "<s>[INST] Who?[/INST]{ The king.</s>}[INST] Be brief.\n\n <|eot_id|>\n[/INST]{  "
         "No. </s>}"},
        {"mistral-v3", CHAT_AUTO, &of_v3, NULL, 0, SILENT ASKS("No[INST] ") KING,
         "<s>·[INST]· No·[·IN·ST·]· ·[/INST]·{ The· king·.·</s>}"},
        // a token of the format that is not special in the tokenizer's files
        {"llama3", CHAT_AUTO, &of_plain_llama3, NULL, 0, ASKS("<|begin_of_text|>") OPEN,
         "<|begin_of_text|>·<|start_header_id|>·us·er·<|end_header_id|>·\n\n·<·|·be·gin·_·of·"
         "_t·ext·|·>·<|eot_id|>·<|start_header_id|>·ass·ist·ant·<|end_header_id|>·\n\n"},
        {"mistral-nemo", CHAT_AUTO, &of_v3, NEMO, 0,
         SILENT USER "," KING "," ASKS("No ") ANSWERS(" Yes. "),
         "<s>[INST]Who?[/INST]{The king.</s>}[INST]\n\nNo [/INST]{ Yes. </s>}"},
        {"mistral-v7-tekken", CHAT_AUTO, &of_v3, TEKKEN, 0, BRIEF USER "," ANSWERS(" Yes. "),
         "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]Who?[/INST]{ Yes. </s>}"},
        {"mistral-v7", CHAT_AUTO, &of_v3, V7, 0, BRIEF USER "," ANSWERS(" Yes. "),
         "<s>[SYSTEM_PROMPT] Be brief.[/SYSTEM_PROMPT][INST] Who?[/INST]{  Yes. </s>}"},
        {"zephyr", CHAT_AUTO, &of_llama2, ZEPHYR, 0, SILENT USER "," ANSWERS(" Yes. "),
         " <|system|>\n </s> \n<|user|>\nWho? </s> \n<|assistant|>\n{ Yes.  </s>} \n"},
        {"zephyr", CHAT_AUTO, &of_v3, ZEPHYR, 0, USER "," OPEN,
         " <·|·us·er·|·>·\n·W·ho·?·</s>·\n·<·|·ass·ist·ant·|·>·\n"},
        {"phi3", CHAT_AUTO, &of_phi3, PHI(""), 0, SILENT ASKS("") ANSWERS(" Yes. "),
         "<|system|><|end|><|user|><|end|><|assistant|>{ Yes. <|end|>}"},
        {"phi3", CHAT_AUTO, &of_phi3, PHI(" and message['content']"), 0, SILENT ASKS("") OPEN,
         "<|user|><|end|><|assistant|>"},
        {"llama3", CHAT_AUTO, &of_llama3, LLAMA31, FEBRUARY, SILENT ASKS("Hi") OPEN,
         DATED("26 Jul 2024") HI3},
        {"llama3", CHAT_AUTO, &of_llama3, LLAMA32, FEBRUARY, ASKS("Hi") OPEN,
         DATED("03 Feb 2025") HI3},
        {"llama3", CHAT_AUTO, &of_llama3, LLAMA32, 0, BRIEF ASKS("Hi") KING_READ "," TWO_TOOLS KING,
         DATED("26 Jul 2024") "Be brief." HI3 "The king.<|eot_id|><|start_header_id|>"
         "ipython<|end_header_id|>\n\n\"a \\\"b\\\"\"<|eot_id|><|start_header_id|>"
         "ipython<|end_header_id|>\n\n\"2\"<|eot_id|><|start_header_id|>"
         "assistant<|end_header_id|>\n\n{The king.<|eot_id|>}"},
        {"chatml", CHAT_AUTO, &of_smollm2, SYSTEM("Be kind.") TURNS, 0, ASKS("Hi") OPEN,
         "<|im_start|>system\nBe kind.<|im_end|>\n" HI},
        {"chatml", CHAT_AUTO, &of_smollm2, SYSTEM("Be kind.") TURNS TOOLS, 0,
         SILENT ASKS("Hi") KING "," TWO_TOOLS KING,
         "<|im_start|>system\n<|im_end|>\n" HI "{The king.<|im_end|>}\n<|im_start|>user\n"
         "<tool_response>\na \"b\"\n</tool_response>\n<tool_response>\n2\n"
         "</tool_response><|im_end|>\n<|im_start|>assistant\n{The king.<|im_end|>}\n"},
        // Qwen3's thoughts, as its published template has them with enable_thinking false
        {"qwen3", CHAT_AUTO, &of_smollm2, QWEN3_TURNS TOOLS, 0,
         BRIEF ASKS("Hi") ANSWERS("\\n\\nYes") "," MESSAGE("tool", "3") "," OPEN,
         "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>"
         "assistant{\n\n\nYes<|im_end|>}\n<|im_start|>user\n<tool_response>\n3\n"
         "</tool_response><|im_end|>\n<|im_start|>assistant\n" NO_THOUGHT},
        {"qwen3", CHAT_AUTO, &of_smollm2, QWEN3_TURNS, 0,
         ASKS("Hi") ANSWERS("x</think>y</think>Yes") ","
         ASKS("Hi") ANSWERS("<think>\\n\\nb\\n</think>No"),
         HI "{Yes<|im_end|>}\n" HI "{<think>\nb\n</think>\n\nNo<|im_end|>}\n"},
        {"qwen3", CHAT_AUTO, &of_smollm2, QWEN3_TURNS, 0,  // a tool's text is no question
         ASKS("Hi") ANSWERS("<think>\\na\\n</think>\\n\\nYes") ","
         ASKS("<tool_response>\\nb\\n</tool_response>") ANSWERS("A") "," ANSWERS("\\nB <think>"),
         HI "{<think>\na\n</think>\n\nYes<|im_end|>}\n<|im_start|>user\n<tool_response>\nb\n"
         "</tool_response><|im_end|>\n<|im_start|>assistant\n{A<|im_end|>}\n<|im_start|>"
         "assistant\n" NO_THOUGHT "{B <think><|im_end|>}\n"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const Tokenizer *t = load(cases[i].kind, IN_FILE, cases[i].template_text);
        const Chat chat = open_chat(t, cases[i].asked, cases[i].now);
        const bool dots = strstr(cases[i].shown, "·") != NULL;
        const char *got = shown(&chat, cases[i].messages, dots);
        CHECK(strcmp(chat.format->name, cases[i].format) == 0, "case %zu: %s", i,
              chat.format->name);
        CHECK(strcmp(got, cases[i].shown) == 0, "case %zu:\n%s", i, got);
    }
}

// ---------------------------------------------------------------------------------------------
// Templates

// What a template tells: the format and the system message, as its literals, without its comments;
// the token that stands in front, if the template writes it, by name or as it is.
static void chat_templates(void) {
    static const char unread[] = "";  // the system message is there, and no literal
    static const struct {
        const Kind *kind; int where; const char *text;
        const char *format, *system; int32_t begin;
    } cases[] = {
        {&of_smollm2, IN_CONFIG, SYSTEM("You are \\\\boxed{}.\\nIt\\'s \"all\".") TURNS, "chatml",
         "You are \\boxed{}.\nIt's \"all\".", -1},
        {&of_smollm2, IN_LIST, SYSTEM("Be kind.") TURNS, "chatml", "Be kind.", -1},
        {&of_smollm2, IN_FILE, "<|im_start|>system\nBe kind.<|im_end|>\n" TURNS, "chatml",
         "Be kind.", -1},
        {&of_smollm2, IN_FILE, "{#" SYSTEM("You are a comment.") "#}" TURNS "{# <think>", "chatml",
         NULL, -1},
        {&of_smollm2, IN_FILE, "{% set s = 'You are set.' %}" SYSTEM("' + s + '") TURNS, "chatml",
         unread, -1},
        {&of_smollm2, IN_FILE, SYSTEM("A") SYSTEM("B") TURNS, "chatml", NULL, -1},
        {&of_smollm2, IN_FILE, BOS TURNS, "chatml", NULL, 1},
        // turns of tools that are written in another way
        {&of_llama3, IN_FILE, LLAMA3_TURNS "ipython<|end_header_id|>{\"output\": x} | tojson",
         "llama3", NULL, 2000}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const Tokenizer *t = load(cases[i].kind, cases[i].where, cases[i].text);
        const Chat chat = open_chat(t, CHAT_AUTO, 0);
        const char *system = cases[i].system == unread ? NULL : cases[i].system;
        CHECK(strcmp(chat.format->name, cases[i].format) == 0 && chat.begin == cases[i].begin,
              "case %zu: %s, begins with %d", i, chat.format->name, chat.begin);
        CHECK(chat.unread == (cases[i].system == unread) && !chat.tools && (system == NULL
              ? chat.system == NULL : chat.system != NULL && strcmp(chat.system, system) == 0),
              "case %zu: %s", i, chat.system != NULL ? chat.system : "none");
    }
}

// A template that differs from that of a format in one literal is refused; its tokenizer's format
// can be named instead.
static void chat_templates_refused(void) {
    static const struct { const Kind *kind; const char *text, *was, *is, *says; } cases[] = {
        {&of_smollm2, SYSTEM("A") QWEN3_TURNS, "' + m.role + '", "assistant",
         "it has </think>: --chat-format chatml"},
        {&of_smollm2, TURNS "<|im_sep|>", NULL, NULL, "it has <|im_sep|>"},
        {&of_smollm2, "{{ '<|im_end|>' }}", NULL, NULL, "no format that is known here: --chat"},
        {&of_v3, "[INST] m [/INST]", NULL, NULL, "it has [INST]"},
        {&of_v3, NEMO, "\\n\\n", "\\n", "it has [INST]"},
        {&of_v3, V7, "[SYSTEM_PROMPT] '", "[SYSTEM_PROMPT]'", "it has [SYSTEM_PROMPT]"},
        {&of_v3, TEKKEN, "{{- " CONTENT, "{{- ' ' + " CONTENT, "it has [SYSTEM_PROMPT]"},
        {&of_llama2, ZEPHYR, "<|user|>\n", "<|user|>", "it has <|user|>"},
        {&of_phi3, BOS PHI(""), NULL, NULL, "it has <|user|>"}};
    Chat chat;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *text = cases[i].text;
        if (cases[i].was != NULL) text = altered(text, cases[i].was, cases[i].is);
        const Tokenizer *t = load(cases[i].kind, IN_FILE, text);
        CHECK(!chat_open(&chat, t, CHAT_AUTO, t->bos, 0, &err) && strstr(err.text, cases[i].says),
              "case %zu: %s", i, err.text);
        const int asked = cases[i].kind == &of_smollm2 ? CHAT_CHATML : CHAT_MISTRAL;
        CHECK(chat_open(&chat, t, asked, t->bos, 0, &err) && chat.system == NULL,
              "case %zu, by name: %s", i, err.text);
    }
}

// A model without a template is given one: the text with this hash, whose renderings by
// transformers were compared with chat_encode() once, by hand; 0: as in another row.
static void chat_exports(void) {
    static const struct {
        const Kind *kind; int format; uint64_t hash;
        const char *before, *after;  // generation_config.json
    } cases[] = {
        {&of_smollm2, CHAT_AUTO, 0x55041690820d0541, NULL, NULL},
        {&of_v3, CHAT_AUTO, 0x47f51d4188c1f7d, NULL, NULL},
        {&of_llama2, CHAT_MISTRAL, 0xe18243c73b74881, NULL, NULL},
        {&of_llama2, CHAT_LLAMA2, 0xab03ff775cab1525, NULL, NULL},
        {&of_llama3, CHAT_AUTO, 0x68fbd2664cbe7b02, NULL,
         "{\n  \"eos_token_id\": [2001, 2009]\n}\n"},
        {&of_llama3, CHAT_AUTO, 0, "{\"a\": 1, \"eos_token_id\": 2001,\n \"b\": [2]}",
         "{\n  \"a\": 1,\n  \"b\": [2],\n  \"eos_token_id\": [2001, 2009]\n}\n"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (cases[i].before != NULL) put_text(in_base("generation_config.json"), cases[i].before);
        Tokenizer *t = load(cases[i].kind, IN_FILE, NULL);
        const Chat chat = open_chat(t, cases[i].format, 0);
        chat_export(&chat, t);
        const TokenizerFile *file = &t->files[FILE_TEMPLATE], *g = &t->files[FILE_GENERATION];
        const uint64_t hash = hash_bytes(file->text, file->length);
        CHECK(cases[i].hash == 0 || hash == cases[i].hash, "case %zu has %#" PRIx64 ": %s", i, hash,
              file->text);
        CHECK(cases[i].after == NULL ? g->text == NULL : g->text != NULL
              && strcmp(g->text, cases[i].after) == 0 && strlen(g->text) == g->length,
              "case %zu: %s", i, g->text);
        // the template tells the format
        const Chat again = open_chat(t, CHAT_AUTO, 0);
        CHECK(again.has_template && again.format == chat.format && again.begin == chat.begin,
              "case %zu: %s", i, again.format->name);
        unlink(in_base("generation_config.json"));
    }
    Tokenizer *t = load(&of_smollm2, IN_CONFIG, TURNS);
    const Chat chat = open_chat(t, CHAT_AUTO, 0);
    chat_export(&chat, t);
    CHECK(t->files[FILE_TEMPLATE].text == NULL && t->files[FILE_GENERATION].text == NULL,
          "a model with a template");
}

// ---------------------------------------------------------------------------------------------
// Examples

#define LINE(messages) "{\"messages\":[" messages "]}"

static Task parse_lines(const Tokenizer *t, const char *text, int format, bool last) {
    TaskReader r = {NULL, NULL, t, 2011, format, last, {.first_token = t->bos}};
    return task_parse(&r, "f.jsonl", strdup(text));
}

// Rows of a conversation, whole and cut: inputs, and targets that are trained.
static void chat_rows(void) {
    enum { N = 55, P = 28, MOST = 64 };  // the tokens, and those before the first answer
    static const struct { size_t T, from, inputs, targets; } cases[] = {
        {N + 5, 0, N - 1, 7}, {N - 2, 0, N - 2, 6}, {N - 4, 0, P + 3, 4}, {P + 2, 1, P + 2, 4},
        {2, P - 1, 2, 2}};
    Tokenizer *t = load(&of_llama3, IN_FILE, NULL);
    Task task = parse_lines(t, LINE(TALK ANSWERS("No.")), CHAT_AUTO, false);
    size_t count;
    const int32_t *all = encoded(&task.chat, TALK ANSWERS("No."), &count);
    CHECK(count == N && task.longest == N - 1 && task.pieces == 2 && piece_tokens(&task, 0) == P,
          "%zu of %zu", task.longest, count);
    int32_t in[MOST], to[MOST];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const size_t T = cases[i].T, n = task_row(&task, 0, 0, T, in, to), from = cases[i].from;
        CHECK(n == cases[i].inputs, "T %zu: %zu inputs", T, n);
        for (size_t k = 0; k < n; k++) {
            const int32_t next = all[from + k + 1], input = k == 0 ? 2000 : token_id(all[from + k]);
            CHECK(in[k] == input && to[k] == (next < 0 ? -1 : next), "T %zu, %zu: %d %d", T, k,
                  in[k], to[k]);
        }
        const TaskSum sum = task_sum(&task, T);
        CHECK(sum.targets == cases[i].targets && sum.inputs == n && sum.cut == (T < N - 1),
              "T %zu: %zu trained", T, sum.targets);
    }
    // a row that is cut keeps the token that begins a conversation, if the template writes one
    for (int writes = 0; writes < 2; writes++) {
        t = load(&of_smollm2, IN_FILE, writes ? BOS TURNS : TURNS);
        task = parse_lines(t, LINE(USER "," KING), CHAT_AUTO, false);
        CHECK(task.chat.begin == (writes ? 1 : -1) && task_row(&task, 0, 0, 7, in, to) == 7
              && (in[0] == task.tokens[0]) == writes, "row %d: %d", writes, in[0]);
    }
}

// ShareGPT's and Alpaca's forms are the same conversation as messages are, in lines and in an
// array. An answer with the weight 0 is read, and left out behind the last one that is trained.
static void chat_forms(void) {
    #define LINES USER "," KING "," ASKS("a\\nb") ANSWERS("No.")
    #define ALPACA "{\"instruction\":\"a\",\"input\":\"b\",\"output\":\"No.\",\"text\":\"a\"}"
    #define FIRST LINE(USER ",{\"role\":\"assistant\",\"content\":\"The king.\",\"weight\":1.0}," \
                       "{\"role\":\"user\",\"content\":\"x\",\"weight\":0.0}," KING_READ)
    static const struct { bool last; const char *lines, *same; } cases[] = {
        {false, LINE(LINES), "{\"conversations\":[{\"from\":\"human\",\"value\":\"Who?\"},"
         "{\"from\":\"gpt\",\"value\":\"The king.\"},{\"from\":\"human\",\"value\":\"a\\nb\"},"
         "{\"from\":\"gpt\",\"value\":\"No.\",\"weight\":1}]}"},
        {false, LINE(ASKS("a\\nb") ANSWERS("No.")), ALPACA},
        {false, ALPACA "\n" FIRST, " \n[" ALPACA ",\n" FIRST "]\n"},
        {true, LINE(USER "," KING_READ "," ASKS("a\\nb") ANSWERS("No.")), LINE(LINES)},
        {true, LINE(USER "," KING), FIRST},
        {false, LINE(USER "," KING), "{\"messages\":[" USER ",{\"role\":\"assistant\","
         "\"content\":\"The king.\",\"name\":\"y\",\"id\":1,\"tool_calls\":[],\"audio\":null,"
         "\"more\":{}}],\"tools\":[],\"source\":\"z\"}"}};
    Tokenizer *t = load(&of_llama3, IN_FILE, NULL);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const Task a = parse_lines(t, cases[i].lines, CHAT_AUTO, false);
        const Task b = parse_lines(t, cases[i].same, CHAT_AUTO, cases[i].last);
        CHECK(a.count > 0 && task_hash(&a) == task_hash(&b), "case %zu", i);
    }
}

#define MEMBER(more) LINE(USER ",{\"role\":\"assistant\",\"content\":\"x\",\"" more "}")
#define ALPACA_LINE(more) "{\"instruction\":\"x\",\"output\":\"x\",\"" more "}"

static void chat_bad_lines(void) {
    static const struct { const char *line, *says; } bad[] = {
        {"{\"messages\":{\"a\":1}}", "\"messages\" is no list"},
        {LINE("7"), "message 1 is no object with \"role\""},
        {LINE(USER "," MESSAGE("bot", "x")), "message 2 has the role \"bot\", which is none of"},
        {LINE(USER "," MESSAGE("tool", "x")), "has the role \"tool\": the format llama3 has none"},
        {MEMBER("tool_calls\":[{}]"), "message 2 has \"tool_calls\", which is not"},
        {MEMBER("weight\":0"), "none has a weight: there is nothing to train"},
        {MEMBER("weight\":2"), "message 2 has a \"weight\" that is not 0, or 1 for an answer"},
        {MEMBER("weight\":\"1\""), "not 0, or 1"},
        {LINE("{\"role\":\"user\",\"content\":\"x\",\"weight\":1}"), "message 1 has a \"weight\""},
        {"{\"conversations\":[{\"from\":\"human\"}]}", "message 1 has no \"value\""},
        {"{\"instruction\":\"x\"}", "\"output\" is missing"},
        {"{\"instruction\":\" \",\"output\":\"x\"}", "\"instruction\" is empty"},
        {ALPACA_LINE("input\":7"), "\"input\" is no string"},
        {ALPACA_LINE("context\":\"x\""), "it has \"context\", which is not"},
        {LINE("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}"),
         "no string: write the texts of its parts as one"},
        {LINE(USER "," ANSWERS(" \\n\u00a0")), "message 2, an answer, is empty"},
        {LINE(USER "," MESSAGE("system", "x")), "a system message, and only the first"},
        {LINE(KING), "message 1 is the assistant's, and stands before any user's"},
        {"{\"messages\":[" USER "," KING "],\"text\":\"x\"}", "no others of these"}};
    static const char twice[] = LINE(USER "," USER "," KING);
    Tokenizer *t = load(&of_llama3, IN_FILE, NULL), *v1 = load(&of_llama2, IN_FILE, NULL);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        char text[1024];
        snprintf(text, sizeof text, "{\"text\":\"The king\"}\n%s\n", bad[i].line);
        const char *said = DIES(parse_lines(t, text, CHAT_AUTO, false));
        CHECK(said != NULL && strstr(said, bad[i].says) && strstr(said, "f.jsonl, line 2: "),
              "%s: %s", bad[i].line, said != NULL ? said : "accepted");
    }
    CHECK(parse_lines(t, twice, CHAT_AUTO, false).count == 1, "Llama-3");
    CHECK(DIES_WITH("messages 1 and 2 are both the user's",
                    parse_lines(v1, twice, CHAT_MISTRAL, false)), "v1");
}

int main(void) {
    base_new("chat");
    ranks.rank = 1;  // which prints no warnings
    RUN(chat_conversations);
    RUN(chat_templates);
    RUN(chat_templates_refused);
    RUN(chat_exports);
    RUN(chat_rows);
    RUN(chat_forms);
    RUN(chat_bad_lines);
    remove_tree(base);
    return test_summary();
}
