// Tests of chat.h, and of conversations in task.h. The ids are those of Hugging Face's tokenizers,
// piece by piece, for the small tokenizers in fixtures/tokenizer. With TIDE_TOKENIZERS=DIR in the
// environment (test_tokenizer.c describes it), ids of published tokenizers are tested as well.
#include "../../../tide/files/task.h"
#include "../../data/blocks.h"
#include "../../../tide/run/options.h"
#include "../test.h"
#include <dirent.h>
#include "../dies.h"
#include "../files.h"
#include "../merges.h"

// A tokenizer of fixtures/tokenizer: the tokens that begin and end a text; more special tokens, from 2005 on,
// which may strip the white space behind them; or a space stands in front of a text only.
typedef struct { const char *folder, *begin, *end, *more[5]; bool spaced, strips; } Kind;
static const Kind of_smollm2 = {"small-smollm2", "<|im_start|>", "<|im_end|>", {NULL}, false, false},
    of_llama3 = {"small-llama3", "<|begin_of_text|>", "<|end_of_text|>", {NULL}, false, false},
    of_llama2 = {"small-llama2", "<s>", "</s>", {NULL}, false, false},
    of_spaced = {"small-llama2", "<s>", "</s>", {NULL}, true, false},
    of_v3 = {"small-llama2", "<s>", "</s>", {"[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
             true, false},
    of_phi3 = {"small-llama2", "<s>", "</s>", {"<|end|>", "<|user|>", "<|assistant|>", "<|system|>"},
               false, true};

// Where a chat template is: in a file of its own, in tokenizer_config.json, or there in a list, with
// another one that is not in use.
enum { IN_FILE, IN_CONFIG, IN_LIST };

#define FLAGS "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":"

// Makes a tokenizer of this kind in the base directory, alone but for generation_config.json, with
// a chat template, unless that is NULL. NULL or another text for one in tokenizer.json.
static Tokenizer *load_with(const Kind *kind, int where, const char *template_text,
                            const char *const swap[2]) {
    static const char other[] = "<|im_start|>system\nYou are another.<|im_end|>";
    static const char last[] = "\"content\":\"<|right|>x\"," FLAGS "false,\"special\":false}";
    static const char *const spaced[][2] = {
        {"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},"
         "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]}", "null"},
        {"\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":"
         "\"\u2581\",\"prepend_scheme\":\"first\",\"split\":false}"}};
    char added[2048];
    size_t n = 0;
    char *json = fixture_read(kind->folder, "tokenizer.json", &n);
    strcpy(added, last);
    for (int k = 0; kind->more[k] != NULL; k++)
        sprintf(added + strlen(added), ",{\"id\":%d,\"content\":\"%s\",\"special\":true,"
                "\"rstrip\":%s}", 2005 + k, kind->more[k], kind->strips ? "true" : "false");
    if (kind->more[0] != NULL) json = altered(json, last, added);
    for (int k = 0; k < 2 && kind->spaced; k++) json = altered(json, spaced[k][0], spaced[k][1]);
    if (swap != NULL) json = altered(json, swap[0], swap[1]);
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

static Tokenizer *load(const Kind *kind, const char *template_text) {
    return load_with(kind, IN_FILE, template_text, NULL);
}

static Chat open_chat(const Tokenizer *t, int format) {
    Chat chat;
    if (!chat_open(&chat, t, format, t->bos, 0, &err)) die("%s", err.text);
    return chat;
}

// Encodes messages: a text of the system, the user and the assistant in turn; NULL: none.
static size_t tokens_of(const Chat *chat, const char *const *texts, size_t n, int32_t **tokens) {
    ChatMessage m[8];
    size_t used = 0, count;
    for (size_t i = 0; i < n; i++) {
        const int role = i == 0 ? CHAT_SYSTEM : i % 2 == 1 ? CHAT_USER : CHAT_ASSISTANT;
        if (i == 0 && texts[i] == NULL) continue;
        m[used++] = (ChatMessage){role, texts[i], texts[i] != NULL ? strlen(texts[i]) : 0};
    }
    *tokens = chat_encode(chat, m, used, &count);
    return count;
}

// A conversation as text, with what is trained in brackets.
static const char *shown(const Chat *chat, const char *const *texts, size_t n) {
    static char text[1024];
    int32_t *tokens;
    size_t used = 0, length;
    const size_t count = tokens_of(chat, texts, n, &tokens);
    for (size_t i = 0; i < count; i++) {
        const bool first = tokens[i] >= 0 && (i == 0 || tokens[i - 1] < 0);
        const bool last = tokens[i] >= 0 && (i + 1 == count || tokens[i + 1] < 0);
        const char *s = tokenizer_token(chat->t, (uint32_t)token_id(tokens[i]), &length);
        used += (size_t)sprintf(text + used, "%s%.*s%s", first ? "[" : "", (int)length, s, last ? "]" : "");
    }
    free(tokens);
    return text;
}

static void check_tokens(const char *name, const int32_t *got, size_t count, const int32_t *want,
                         size_t n) {
    size_t i = 0;
    while (i < count && i < n && got[i] == want[i]) i++;
    CHECK(i == n && count == n, "%s: %zu tokens, not %zu, the first other one at %zu: %d, not %d",
          name, count, n, i, i < count ? got[i] : 0, i < n ? want[i] : 0);
}

// Tokens that are only read are ~token.
#define COUNT_OF(a) (sizeof(a) / sizeof *(a))
#define IDS(a) a, COUNT_OF(a)
static const int32_t llama3[] = {
    ~2000, ~2006, ~82, ~88, ~279, ~562, ~2007, ~283, ~1815, ~280, ~418, ~475, ~13, ~2009,
    ~2006, ~523, ~267, ~2007, ~283, ~1801, ~30, ~2009, ~2006, ~439, ~633, ~585, ~2007, ~283,
    527, 999, 13, 2009, ~2006, ~523, ~267, ~2007, ~283, ~27, ~91, ~68, ~305, ~62, ~372, ~91, ~29,
    ~2009, ~2006, ~439, ~633, ~585, ~2007, ~283, 1376, 13, 2009};
static const int32_t chatml[] = {
    ~1, ~99, ~105, ~273, ~556, ~195, ~1740, ~274, ~412, ~467, ~30, ~2, ~195, ~1, ~519, ~263, ~195,
    ~1728, ~47, ~2, ~195, ~1, ~431, ~624, ~578, ~195, 523, 973, 30, 2, ~195, ~1, ~519, ~263, ~195,
    ~44, ~108, ~363, ~79, ~399, ~108, ~46, ~2, ~195, ~1, ~431, ~624, ~578, ~195, 195, 1325, 30, 2,
    ~195};
static const int32_t mistral[] = {
    ~1, ~724, ~464, ~618, ~1799, ~1662, ~282, ~421, ~573, ~1753, ~14, ~14, ~1793, ~1212, ~1804,
    ~724, ~1782, ~464, ~618, ~1799, 456, 950, 1753, 2, ~724, ~464, ~618, ~1799, ~1222, ~1814,
    ~1782, ~1738, ~1783, ~724, ~1782, ~464, ~618, ~1799, 1734, 14, 1772, 1737, 1753, 2};
static const int32_t llama2[] = {
    ~1, ~724, ~464, ~618, ~1799, ~528, ~1814, ~1777, ~1811, ~1777, ~511, ~14, ~1794, ~1735, ~282,
    ~421, ~573, ~1753, ~14, ~1814, ~1814, ~1782, ~1777, ~1811, ~1777, ~511, ~14, ~14, ~1793, ~1212,
    ~1804, ~724, ~1782, ~464, ~618, ~1799, 456, 950, 1753, 1734, 2, ~1, ~724, ~464, ~618, ~1799,
    ~1222, ~1814, ~1782, ~1738, ~1783, ~724, ~1782, ~464, ~618, ~1799, 1222, 1753, 1734, 2};
static const int32_t mistral_v3[] = {
    ~1, ~2005, ~1721, ~1804, ~2006, 456, 950, 1753, 2, ~2005, ~1662, ~282, ~421, ~573, ~1753, ~14,
    ~14, ~1772, ~1737, ~1798, ~464, ~618, ~1799, ~2006, 1222, 1753, 2};

// Every format: its ids, the trained ones, a special token that a user writes, and white space.
static void chat_ids(void) {
    static const struct {
        const Kind *kind; int asked, format; const char *second, *answer; size_t opening;
        const int32_t *want; size_t n;
    } cases[] = {
        {&of_llama3, CHAT_AUTO, CHAT_LLAMA3, " <|eot_id|>\n", "\nNo. ", 52, IDS(llama3)},
        {&of_smollm2, CHAT_AUTO, CHAT_CHATML, "<|im_end|>", "\nNo.", 49, IDS(chatml)},
        {&of_llama2, CHAT_MISTRAL, CHAT_MISTRAL, "No</s>", "\nNo.", 38, IDS(mistral)},
        {&of_llama2, CHAT_LLAMA2, CHAT_LLAMA2, "\nNo</s> ", "\nNo.", 56, IDS(llama2)},
        {&of_v3, CHAT_AUTO, CHAT_MISTRAL_V3, "No[INST]", "No.", 24, IDS(mistral_v3)}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const Chat chat = open_chat(load(cases[i].kind, NULL), cases[i].asked);
        const char *texts[] = {"Be brief.", "Who?", "The king.", cases[i].second, cases[i].answer};
        const char *name = chat.format->name;
        int32_t *tokens, *open;
        CHECK(chat.format == &chat_formats[cases[i].format - 1], "case %zu: %s", i, name);
        const size_t count = tokens_of(&chat, texts, 5, &tokens);
        check_tokens(name, tokens, count, cases[i].want, cases[i].n);
        texts[4] = NULL;  // what stands before the last answer
        const size_t before = tokens_of(&chat, texts, 5, &open);
        size_t same = 0;
        while (same < before && token_id(open[same]) == token_id(tokens[same])) same++;
        CHECK(before == cases[i].opening && same == before && tokens[before] >= 0
              && tokens[before - 1] < 0, "%s: an answer begins behind %zu tokens, %zu of them the "
              "same", name, before, same);
        CHECK(chat.ids[0] == cases[i].want[cases[i].n - 1 - (i == 1)], "%d ends a turn",
              chat.ids[0]);
        free(tokens);
        free(open);
    }
    // no space in front of a piece inside a text, where the tokenizer has none there
    const Chat inside = open_chat(load(&of_v3, NULL), CHAT_MISTRAL);
    const char *const texts[] = {NULL, "Who?", NULL};
    int32_t *tokens;
    tokens_of(&inside, texts, 3, &tokens);
    CHECK(tokens[0] == ~1 && tokens[1] == ~1798, "[ is %d", ~tokens[1]);
    free(tokens);
}

#define TURNS "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' " \
              "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define SYSTEM(text) "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\n" text \
                     "<|im_end|>\\n' }}{% endif %}"
#define BOS "{{ bos_token }}"
#define LLAMA3_TURNS BOS "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}"
#define INST(open, close) "{{ bos_token + '" open "' + m.content + '" close "' }}{{ ' ' + m.content + eos_token }}"
#define THINKS "{{ '<|im_start|>assistant\\n<think>\\n' + thought + '\\n</think>\\n\\n' + content + '<|im_end|>' }}"
#define QWEN3_TURNS "{{ '<|im_start|>' + m.role + '\\n<think>\\n' + thought + '\\n</think>\\n\\n' + content + '<|im_end|>' }}"

// The format and the system message that a template tells: as its literals, without its comments.
static void chat_templates(void) {
    static const struct { const Kind *kind; int where; const char *text, *format, *system; } cases[] = {
        {&of_smollm2, IN_CONFIG, "", "chatml", NULL},
        {&of_smollm2, IN_CONFIG, TURNS, "chatml", NULL},
        {&of_smollm2, IN_CONFIG, SYSTEM("You are a helpful assistant.") TURNS, "chatml",
         "You are a helpful assistant."},
        {&of_smollm2, IN_FILE, SYSTEM("Answer within \\\\boxed{}.\\nIt\\'s \"all\".") TURNS, "chatml",
         "Answer within \\boxed{}.\nIt's \"all\"."},
        {&of_smollm2, IN_LIST, SYSTEM("Be kind.") TURNS, "chatml", "Be kind."},
        {&of_smollm2, IN_LIST, TURNS, "chatml", NULL},
        {&of_smollm2, IN_FILE, "<|im_start|>system\nBe kind.<|im_end|>\n" TURNS, "chatml", "Be kind."},
        {&of_smollm2, IN_FILE, "{#" SYSTEM("You are a comment.") "#}" TURNS "{# <think>", "chatml", NULL},
        {&of_smollm2, IN_FILE, "{% set s = 'You are set.' %}" SYSTEM("' + s + '") TURNS, "chatml", "?"},
        {&of_smollm2, IN_FILE, SYSTEM("A") SYSTEM("B") TURNS, "chatml", NULL},
        {&of_smollm2, IN_FILE, QWEN3_TURNS TURNS, "qwen3", NULL},
        {&of_smollm2, IN_FILE, SYSTEM("You think.") THINKS TURNS, NULL, ": it has </think>: --chat-format chatml"},
        {&of_smollm2, IN_FILE, "{{ '<|im_start|>user<|im_sep|>' + m + '<|im_end|>' }}", NULL, "it has <|im_sep|>"},
        {&of_smollm2, IN_FILE, "{{ no template", NULL, "of no format that is known here: --chat-format"},
        {&of_llama3, IN_CONFIG, LLAMA3_TURNS, "llama3", NULL},
        {&of_llama3, IN_CONFIG, LLAMA3_TURNS "{{ m.content.split('</think>')[-1] }}", NULL, "it has </think>"},
        {&of_llama3, IN_CONFIG, "{{ '<｜User｜>' + m.content + '<｜Assistant｜>' }}", NULL, "it has <｜User｜>"},
        {&of_llama2, IN_CONFIG, "{{ '<|user|>\\n' + m.content + eos_token }}", NULL, "it has <|user|>"},
        {&of_llama2, IN_CONFIG, INST("[INST] ", " [/INST]"), "mistral", NULL},
        {&of_llama2, IN_CONFIG, "{{ '<<SYS>>\\n' + s + '\\n<</SYS>>\\n\\n' }}" INST("[INST] ", " [/INST]"),
         "llama2", NULL},
        {&of_v3, IN_CONFIG, INST("[INST] ", "[/INST]"), "mistral-v3", NULL},
        {&of_v3, IN_CONFIG, INST("[INST]", "[/INST]"), NULL, "it has [INST]"},
        {&of_v3, IN_CONFIG, "{{ '[SYSTEM_PROMPT]' + s }}" INST("[INST] ", "[/INST]"), NULL, "it has [SYSTEM_PROMPT]"},
        {&of_v3, IN_CONFIG, INST("[INST] ", " [/INST]"), NULL, "it has [INST]"}};
    static const char *const texts[] = {NULL, "Who?"}, *const empty[] = {"", "Who?"};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const Tokenizer *t = load_with(cases[i].kind, cases[i].where, cases[i].text, NULL);
        const char *system = cases[i].system;
        const bool unread = system != NULL && *system == '?';
        int32_t *tokens, *with;
        Chat chat;
        if (cases[i].format == NULL) {
            CHECK(!chat_open(&chat, t, CHAT_AUTO, t->bos, 0, &err) && strstr(err.text, system),
                  "case %zu: %s", i, err.text);
            const int asked = tokenizer_added(t, "<|im_start|>") != TOKENIZER_NONE ? CHAT_CHATML : CHAT_MISTRAL;
            CHECK(chat_open(&chat, t, asked, t->bos, 0, &err) && chat.system == NULL,
                  "case %zu, by name: %s", i, err.text);
            continue;
        }
        chat = open_chat(t, CHAT_AUTO);
        CHECK(strcmp(chat.format->name, cases[i].format) == 0 && chat.has_template == (i > 0),
              "case %zu: %s", i, chat.format->name);
        if (unread) system = NULL;
        CHECK(chat.unread == unread && (system == NULL ? chat.system == NULL
              : chat.system != NULL && strcmp(chat.system, system) == 0), "case %zu: %s", i,
              chat.system != NULL ? chat.system : "none");
        CHECK(chat.begin == (*cases[i].text == '\0' || strstr(cases[i].text, "bos") ? t->bos : -1), "case %zu begins with %d",
              i, chat.begin);
        const char *given[] = {system, "Who?"};
        const size_t count = tokens_of(&chat, texts, 2, &tokens), n = tokens_of(&chat, given, 2, &with);
        check_tokens("a default", tokens, count, with, n);
        if (i < 10) CHECK(tokens_of(&chat, empty, 2, &with) == 16, "an empty system message is one");
    }
    // the token that begins a text stands in front if the template writes it, by name or as it is
    static const struct { const Kind *kind; const char *text; int32_t begin; } first[] = {
        {&of_smollm2, BOS TURNS, 1}, {&of_v3, INST("[INST] ", "[/INST]"), 1}, {&of_v3, "<s>[INST] m[/INST]", 1},
        {&of_v3, "[INST] m[/INST]", -1}};
    for (size_t i = 0; i < COUNT_OF(first); i++) {
        const Chat chat = open_chat(load(first[i].kind, first[i].text), CHAT_AUTO);
        CHECK(chat.begin == first[i].begin, "template %zu begins with %d", i, chat.begin);
    }
    // Llama-3.1: a date in front of every system message, also of one that is empty, or not there
    static const char front[] = "\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|>";
    const Chat chat = open_chat(load(&of_llama3, "<|start_header_id|> <|eot_id|> Cutting Knowledge Date: "
                                     "December 2023\n"), CHAT_AUTO);
    CHECK(strstr(shown(&chat, texts, 2), front) && strstr(shown(&chat, empty, 2), front), "%s", shown(&chat, empty, 2));
}

static void chat_formats_refused(void) {
    const Tokenizer *t = load(&of_llama2, NULL), *bytes = tokenizer_bytes();
    const struct { const Tokenizer *t; int format; const char *says; } rows[] = {
        {t, CHAT_AUTO, "--chat-format mistral"}, {t, CHAT_LLAMA3, "<|eot_id|>"}, {t, CHAT_MISTRAL_V3, "[INST]"},
        {bytes, CHAT_LLAMA2, "ends a text"}, {bytes, CHAT_AUTO, "that could end a turn"}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        Chat chat;
        CHECK(!chat_open(&chat, rows[i].t, rows[i].format, rows[i].t->bos, 0, &err)
              && strstr(err.text, rows[i].says), "row %zu: %s", i, err.text);
    }
    CHECK(strstr(err.text, "--chat-format") == NULL, "of bytes: %s", err.text);
    const Option *x = &option_table[option_find("chat-format", 11)];
    for (int k = 0; k < CHAT_NAMED; k++)  // the others are told by their templates alone
        CHECK(parse_choice(x->values, chat_formats[k].name) == k + 1, "%s", chat_formats[k].name);
    CHECK(parse_choice(x->values, "auto") == CHAT_AUTO, "auto");
}

// ---------------------------------------------------------------------------------------------
// Published templates
//
// The ids are those of apply_chat_template() for the published templates of these models, with the
// small tokenizers: their text by Jinja, encoded by Hugging Face's tokenizers. The templates below
// have no more of them than what tells them. Tokens that are only read are ~token.

static const int32_t nemo[] = {
    ~1, ~2005, ~1793, ~1212, ~1804, ~2006, 992, 950, 1753, 2, ~2005, ~1794, ~1735, ~282, ~421,
    ~573, ~1753, ~14, ~14, ~1772, ~1737, ~724, ~1771, ~1799, ~2006};
static const int32_t nemo_no_system[] = {
    ~1, ~2005, ~1793, ~1212, ~1804, ~2006, 992, 950, 1753, 2, ~2005, ~1772, ~1737, ~724, ~1771,
    ~1799, ~2006, 594, 290, 1753, 1734, 2};
static const int32_t nemo_empty[] = {~1, ~2005, ~14, ~14, ~1793, ~1212, ~1804, ~2006};
static const int32_t v7_tekken[] = {
    ~1, ~2007, ~1794, ~1735, ~282, ~421, ~573, ~1753, ~2008, ~2005, ~1793, ~1212, ~1804, ~2006,
    992, 950, 1753, 2, ~2005, ~1772, ~1737, ~724, ~1771, ~1799, ~2006, 594, 290, 1753, 1734, 2};
static const int32_t v7[] = {
    ~1, ~2007, ~1662, ~282, ~421, ~573, ~1753, ~2008, ~2005, ~1721, ~1804, ~2006, 456, 950, 1753,
    2, ~2005, ~1222, ~724, ~1771, ~1799, ~2006, 260, 1811, 290, 1753, 1734, 2};
static const int32_t zephyr[] = {
    ~528, ~1785, ~1738, ~1754, ~280, ~563, ~1785, ~1783, ~14, ~1794, ~1735, ~282, ~421, ~573,
    ~1753, ~2, ~1734, ~14, ~1814, ~1785, ~523, ~270, ~1785, ~1783, ~14, ~1793, ~1212, ~1804, ~2,
    ~1734, ~14, ~1814, ~1785, ~443, ~604, ~584, ~1785, ~1783, ~14, 992, 950, 1753, 2, ~1734, ~14,
    ~1814, ~1785, ~523, ~270, ~1785, ~1783, ~14, ~1772, ~1737, ~724, ~1771, ~1799, ~2, ~1734, ~14,
    ~1814, ~1785, ~443, ~604, ~584, ~1785, ~1783, ~14, 594, 290, 1753, 1734, 2, ~1734, ~14};
static const int32_t zephyr_open[] = {
    ~528, ~1785, ~1738, ~1754, ~280, ~563, ~1785, ~1783, ~14, ~1794, ~1735, ~282, ~421, ~573,
    ~1753, ~2, ~14, ~1814, ~1785, ~523, ~270, ~1785, ~1783, ~14, ~1793, ~1212, ~1804, ~2, ~14,
    ~1814, ~1785, ~443, ~604, ~584, ~1785, ~1783, ~14, 992, 950, 1753, 2, ~14, ~1814, ~1785, ~523,
    ~270, ~1785, ~1783, ~14, ~1772, ~1737, ~724, ~1771, ~1799, ~2, ~14, ~1814, ~1785, ~443, ~604,
    ~584, ~1785, ~1783, ~14};
static const int32_t phi3[] = {
    ~2008, ~2005, ~2006, ~1721, ~1804, ~2005, ~2007, 456, 950, 1753, 2005, ~2006, ~1222, ~724,
    ~1771, ~1799, ~2005, ~2007, 594, 290, 1753, 1734, 2005};
static const int32_t phi35[] = {
    ~2006, ~1721, ~1804, ~2005, ~2007, 456, 950, 1753, 2005, ~2006, ~1222, ~724, ~1771, ~1799,
    ~2005, ~2007};
static const int32_t llama32[] = {
    ~2000, ~2006, ~82, ~88, ~279, ~562, ~2007, ~283, ~34, ~346, ~83, ~301, ~1116, ~77, ~345, ~1122,
    ~487, ~543, ~412, ~25, ~543, ~68, ~320, ~76, ~560, ~220, ~1056, ~17, ~18, ~198, ~51, ~316,
    ~357, ~543, ~412, ~25, ~220, ~17, ~21, ~1177, ~399, ~220, ~1056, ~17, ~19, ~283, ~1815, ~280,
    ~418, ~475, ~13, ~2009, ~2006, ~523, ~267, ~2007, ~283, ~1801, ~30, ~2009, ~2006, ~439, ~633,
    ~585, ~2007, ~283, 972, 74, 13, 2009, ~2006, ~72, ~775, ~1244, ~2007, ~283, ~1, ~64, ~220,
    ~1249, ~65, ~1249, ~59, ~83, ~66, ~1566, ~127, ~102, ~221, ~1, ~2009, ~2006, ~72, ~775, ~1244,
    ~2007, ~283, ~1, ~17, ~1, ~2009, ~2006, ~439, ~633, ~585, ~2007, ~283, 527, 999, 13, 2009,
    ~2006, ~523, ~267, ~2007, ~283, ~1376, ~2009, ~2006, ~439, ~633, ~585, ~2007, ~283, 56, 290,
    13, 2009};
static const int32_t llama32_a_clock[] = {
    ~2000, ~2006, ~82, ~88, ~279, ~562, ~2007, ~283, ~34, ~346, ~83, ~301, ~1116, ~77, ~345, ~1122,
    ~487, ~543, ~412, ~25, ~543, ~68, ~320, ~76, ~560, ~220, ~1056, ~17, ~18, ~198, ~51, ~316,
    ~357, ~543, ~412, ~25, ~220, ~15, ~18, ~542, ~68, ~65, ~220, ~1056, ~17, ~20, ~283, ~2009,
    ~2006, ~523, ~267, ~2007, ~283, ~1801, ~30, ~2009, ~2006, ~439, ~633, ~585, ~2007, ~283};
static const int32_t qwen25[] = {
    ~1, ~99, ~105, ~273, ~556, ~195, ~1740, ~274, ~412, ~467, ~30, ~2, ~195, ~1, ~519, ~263, ~195,
    ~1728, ~47, ~2, ~195, ~1, ~431, ~624, ~578, ~195, 943, 91, 30, 2, ~195, ~1, ~519, ~263, ~195,
    ~44, ~933, ~546, ~79, ~513, ~96, ~262, ~290, ~46, ~195, ~81, ~392, ~82, ~18, ~194, ~83, ~195,
    ~142, ~119, ~217, ~195, ~44, ~31, ~933, ~546, ~79, ~513, ~96, ~262, ~290, ~46, ~195, ~44, ~933,
    ~546, ~79, ~513, ~96, ~262, ~290, ~46, ~195, ~34, ~195, ~44, ~31, ~933, ~546, ~79, ~513, ~96,
    ~262, ~290, ~46, ~2, ~195, ~1, ~431, ~624, ~578, ~195, 523, 973, 30, 2, ~195, ~1, ~519, ~263,
    ~195, ~1325, ~2, ~195, ~1, ~431, ~624, ~578, ~195, 73, 285, 30, 2, ~195};
static const int32_t qwen3[] = {
    ~1, ~99, ~105, ~273, ~556, ~195, ~1740, ~274, ~412, ~467, ~30, ~2, ~195, ~1, ~519, ~263, ~195,
    ~1728, ~47, ~2, ~195, ~1, ~431, ~624, ~578, ~195, 943, 91, 30, 2, ~195, ~1, ~519, ~263, ~195,
    ~44, ~933, ~546, ~79, ~513, ~96, ~262, ~290, ~46, ~195, ~81, ~392, ~82, ~18, ~194, ~83, ~195,
    ~142, ~119, ~217, ~195, ~44, ~31, ~933, ~546, ~79, ~513, ~96, ~262, ~290, ~46, ~195, ~44, ~933,
    ~546, ~79, ~513, ~96, ~262, ~290, ~46, ~195, ~34, ~195, ~44, ~31, ~933, ~546, ~79, ~513, ~96,
    ~262, ~290, ~46, ~2, ~195, ~1, ~431, ~624, ~578, ~195, 523, 973, 30, 2, ~195, ~1, ~519, ~263,
    ~195, ~44, ~933, ~546, ~79, ~513, ~96, ~262, ~290, ~46, ~195, ~35, ~195, ~44, ~31, ~933, ~546,
    ~79, ~513, ~96, ~262, ~290, ~46, ~2, ~195, ~1, ~431, ~624, ~578, ~195, ~44, ~396, ~815, ~46,
    ~195, ~195, ~44, ~31, ~396, ~815, ~46, ~829};

#define CONTENT "message['content']"
#define NEMO BOS "{{- \"[INST]\" + system_message + \"\\n\\n\" + message[\"content\"] + \"[/INST]\" }}" \
    "{{- \"[INST]\" + message[\"content\"] + \"[/INST]\" }}{{- message[\"content\"] + eos_token}}"
#define V7 BOS "{{ '[INST] ' + " CONTENT " + '[/INST]' }}{{ '[SYSTEM_PROMPT] ' + " CONTENT " + '[/SYSTEM_PROMPT]' }}" \
    "{{ ' ' + " CONTENT " + eos_token }}"
#define TEKKEN BOS "{{- '[INST]' + " CONTENT " + '[/INST]' }}{{- '[SYSTEM_PROMPT]' + " CONTENT " + '[/SYSTEM_PROMPT]' }}" \
    "{{- " CONTENT " + eos_token }}"
#define ZEPHYR "{{ '<|user|>\n' + " CONTENT " + eos_token }}\n{{ '<|system|>\n' + " CONTENT " + eos_token }}\n" \
    "{{ '<|assistant|>\n'  + " CONTENT " + eos_token }}\n{{ '<|assistant|>' }}\n"
#define PHI(filled) "{% if message['role'] == 'system'" filled " %}{{'<|system|>\n' + " CONTENT " + '<|end|>\n'}}" \
    "{{'<|user|>\n' + " CONTENT " + '<|end|>\n'}}{{'<|assistant|>\n' + " CONTENT " + '<|end|>\n'}}{{ '<|assistant|>\n' }}"
#define LLAMA32 "{%- set date_string = strftime_now(\"%d %b %Y\") %}{{- \"Cutting Knowledge Date: December 2023\n\" }}" \
    LLAMA3_TURNS "{{- \"<|start_header_id|>ipython<|end_header_id|>\\n\\n\" }}{{- message.content | tojson }}"
#define TOOLS "{{- '\\n<tool_response>\\n' }}{{- message.content }}"

static bool last_only;

static Task parse_lines(const Tokenizer *t, const char *text, int format) {
    return task_parse("f.jsonl", strdup(text), NULL, NULL, t, t->bos, 2011, format, last_only);
}

#define MESSAGE(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define USER MESSAGE("user", "Who?")
#define KING MESSAGE("assistant", "The king.")
#define LINE(messages) "{\"messages\":[" messages "]}"

static void chat_published_templates(void) {
    #define FROM_NO MESSAGE("user", "No [x]")
    #define FROM_YES FROM_NO "," MESSAGE("assistant", " Yes. ")
    #define BRIEF MESSAGE("system", "Be brief.") ","
    #define ASKED BRIEF USER "," MESSAGE("assistant", "Ask.") ",{\"role\":\"tool\",\"content\":\"a \\\"b\\\"\\tc\\n\u00e9\x7f\"," \
        "\"tool_call_id\":\"1\"}," MESSAGE("tool", "2") "," MESSAGE("assistant", "The king.")
    enum { FEBRUARY = 1738584000 };  // noon of 2025-02-03 in Greenwich
    static const struct {
        const char *format; const Kind *kind; const char *template_text; time_t now; const char *messages; bool open;
        const int32_t *want; size_t n;
    } cases[] = {
        {"mistral-nemo", &of_v3, NEMO, 0, BRIEF USER "," KING "," FROM_NO, true, IDS(nemo)},
        {"mistral-nemo", &of_v3, NEMO, 0, USER "," KING "," FROM_YES, false, IDS(nemo_no_system)},
        {"mistral-nemo", &of_v3, NEMO, 0, MESSAGE("system", "") "," USER, true, IDS(nemo_empty)},
        {"mistral-v7-tekken", &of_v3, TEKKEN, 0, BRIEF USER "," KING "," FROM_YES, false, IDS(v7_tekken)},
        {"mistral-v7", &of_v3, V7, 0, BRIEF USER "," KING "," FROM_YES, false, IDS(v7)},
        {"zephyr", &of_llama2, ZEPHYR, 0, BRIEF USER "," KING "," FROM_YES, false, IDS(zephyr)},
        {"zephyr", &of_spaced, ZEPHYR, 0, BRIEF USER "," KING "," FROM_NO, true, IDS(zephyr_open)},
        {"phi3", &of_phi3, PHI(""), 0, MESSAGE("system", "") "," USER "," KING "," FROM_YES, false, IDS(phi3)},
        {"phi3", &of_phi3, PHI(" and message['content']"), 0, MESSAGE("system", "") "," USER "," KING "," FROM_NO, true,
         IDS(phi35)},
        {"llama3", &of_llama3, LLAMA32, 0, ASKED "," MESSAGE("user", "No") "," MESSAGE("assistant", "Yes."), false,
         IDS(llama32)},
        {"llama3", &of_llama3, LLAMA32, FEBRUARY, MESSAGE("user", "Who?"), true, IDS(llama32_a_clock)},
        {"chatml", &of_smollm2, TURNS TOOLS, 0, ASKED "," MESSAGE("user", "No") "," MESSAGE("assistant", "Yes."), false,
         IDS(qwen25)},
        {"qwen3", &of_smollm2, QWEN3_TURNS TOOLS, 0, ASKED "," MESSAGE("tool", "3"), true, IDS(qwen3)}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char json[2048];
        Tokenizer *t = load(cases[i].kind, cases[i].template_text);
        Chat chat;
        CHECK(chat_open(&chat, t, CHAT_AUTO, t->bos, cases[i].now, &err), "case %zu: %s", i, err.text);
        CHECK(strcmp(chat.format->name, cases[i].format) == 0, "case %zu: %s", i, chat.format->name);
        snprintf(json, sizeof json, "[%s%s]", cases[i].messages, cases[i].open ? "," MESSAGE("assistant", "x") : "");
        Json *root = json_parse(json, strlen(json), &err);
        ChatMessage *m;
        size_t n = chat_read(&chat, root, false, "a case", &m), count;
        if (cases[i].open) m[n - 1].text = NULL;
        if (cases[i].open) m[n - 1].n = 0;
        int32_t *tokens = chat_encode(&chat, m, n, &count);
        check_tokens(cases[i].format, tokens, count, cases[i].want, cases[i].n);
        free(tokens);
        free(m);
        json_free(root);
    }
    // a row that is cut begins with the token that begins a text where the format has it, only
    for (int k = 0; k < 2; k++) {
        Tokenizer *t = load(&of_v3, k ? V7 : ZEPHYR);
        int32_t in[64], to[64];
        const Task task = parse_lines(t, LINE(USER "," KING), CHAT_AUTO);
        CHECK(t->bos == 1 && task_row(&task, 0, 0, 8, in, to) == 8 && (in[0] == 1) == (k == 1), "%d", in[0]);
    }
    // a template that differs in one literal is refused
    static const struct { const char *text, *was, *is, *has; } others[] = {
        {NEMO, "{{- message[\"content\"] + eos", "{{- \" \" + message[\"content\"]|trim + eos", "[INST]"},
        {NEMO, "\\n\\n", "\\n", "[INST]"}, {V7, "[SYSTEM_PROMPT] '", "[SYSTEM_PROMPT]'", "[SYSTEM_PROMPT]"},
        {TEKKEN "[THINK]", "[THINK]", "[THINK]", "[SYSTEM_PROMPT]"}, {TEKKEN, "{{- " CONTENT, "{{- ' ' + " CONTENT, "[SYSTEM_PROMPT]"},
        {ZEPHYR, "eos_token }}\n", "'\n' }}\n", "<|user|>"}, {ZEPHYR, "{{ '<|assistant|>' }}\n", "{{ '<|assistant|>' }}", "<|user|>"},
        {BOS PHI(""), "bos", "bos", "<|user|>"}, {PHI(""), "<|end|>\n'", "<|end|>'", "<|user|>"}};
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        char text[1024];
        const char *at = strstr(others[i].text, others[i].was);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - others[i].text), others[i].text, others[i].is,
                 at + strlen(others[i].was));
        Tokenizer *t = load(i < 5 ? &of_v3 : &of_phi3, text);
        Chat chat;
        CHECK(!chat_open(&chat, t, CHAT_AUTO, t->bos, 0, &err) && strstr(err.text, "it has ")
              && strstr(err.text, others[i].has), "template %zu: %s", i, err.text);
    }
    // turns of tools that a template writes in another way are not known
    for (int i = 0; i < 2; i++) {
        Tokenizer *t = i ? load(&of_llama3, LLAMA3_TURNS "ipython<|end_header_id|>{\"output\": x} | tojson")
                         : load(&of_smollm2, TURNS "{{- '<tool_response>\\n' }}");
        Chat chat;
        CHECK(chat_open(&chat, t, CHAT_AUTO, t->bos, 0, &err) && !chat.tools, "template %d", i);
    }
    // a template that asks for the day has a fixed one in training, as has one that asks for none
    static const char fixed[] = "Today Date: 26 Jul 2024\n\n";
    for (int i = 0; i < 2; i++) {
        Tokenizer *t = load(&of_llama3, i ? LLAMA32 : "Cutting Knowledge Date: December 2023 " LLAMA3_TURNS);
        Chat chat;
        CHECK(chat_open(&chat, t, CHAT_AUTO, t->bos, i ? 0 : FEBRUARY, &err) && strstr(chat.front, fixed), "%s", chat.front);
    }
}

// Qwen3's thoughts: as its published template has them, with enable_thinking false.
static void chat_thoughts(void) {
    #define ASK "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    #define NO_THOUGHT "<think>\n\n</think>\n\n"
    static const struct { const char *texts[5]; size_t n; const char *shown; } cases[] = {
        {{NULL, "Hi", "\n\nYes", NULL, NULL}, 3, ASK NO_THOUGHT "[Yes<|im_end|>]\n"},
        {{NULL, "Hi", NULL, NULL, NULL}, 3, ASK NO_THOUGHT},
        {{NULL, "Hi", "<think>\na\n</think>\n\nYes", "Hi", "<think>\n\nb\n</think>No"}, 5,
         ASK "[Yes<|im_end|>]\n" ASK "[<think>\nb\n</think>\n\nNo<|im_end|>]\n"},
        {{NULL, "Hi", "x</think>y</think>Yes", "Hi", "a</think>b"}, 5,
         ASK "[Yes<|im_end|>]\n" ASK "[<think>\na\n</think>\n\nb<|im_end|>]\n"},
        {{NULL, "Hi", "\nYes", "Hi", NULL}, 5, ASK "[\nYes<|im_end|>]\n" ASK NO_THOUGHT},
        {{NULL, "Hi", "<think>\n\n</think>\n\nYes", NULL, NULL}, 3, ASK NO_THOUGHT "[Yes<|im_end|>]\n"},
        {{NULL, "Hi", "No <think>", NULL, NULL}, 3, ASK NO_THOUGHT "[No <think><|im_end|>]\n"},
        {{NULL, "Hi", "<think>\na\n</think>\n\nYes", "<tool_response>\nb\n</tool_response>", "No"}, 5,  // no question
         ASK "[<think>\na\n</think>\n\nYes<|im_end|>]\n<|im_start|>user\n<tool_response>\nb\n</tool_response><|im_end|>\n"
         "<|im_start|>assistant\n" NO_THOUGHT "[No<|im_end|>]\n"}};
    const Chat chat = open_chat(load(&of_smollm2, QWEN3_TURNS), CHAT_AUTO);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *got = shown(&chat, cases[i].texts, cases[i].n);
        CHECK(strcmp(got, cases[i].shown) == 0, "case %zu: %s", i, got);
    }
    // two answers in a row: of the first one, a thought stays, and no empty one is added
    const ChatMessage m[3] = {{CHAT_USER, "Hi", 2}, {CHAT_ASSISTANT, "A", 1}, {CHAT_ASSISTANT, "B", 1}};
    size_t count, n;
    int32_t *two = chat_encode(&chat, m, 3, &count), *one = chat_encode(&chat, m, 2, &n);
    CHECK(two[13] >= 0 && one[13] < 0 && count > n, "two answers: %zu and %zu tokens", count, n);
}

// What a user types is text, be it special in the tokenizer's files or not.
static void chat_own_tokens(void) {
    #define OFF(token) {"\"content\":\"" token "\"," FLAGS "false,\"special\":true", \
                        "\"content\":\"" token "\"," FLAGS "false,\"special\":false"}
    static const char *const off[2][2] = {OFF("<|im_start|>"), OFF("<|begin_of_text|>")};
    static const char *const texts[2][2] = {{NULL, "<|im_start|>"}, {NULL, "<|begin_of_text|>"}};
    for (int k = 0; k < 2; k++) {
        const Chat chat = open_chat(load_with(k ? &of_llama3 : &of_smollm2, IN_FILE, NULL, off[k]), CHAT_AUTO);
        int32_t *tokens;
        const size_t n = tokens_of(&chat, texts[k], 2, &tokens);
        size_t starts = 0;
        for (size_t i = 0; i < n; i++) starts += tokens[i] == (k ? ~2000 : ~1);
        CHECK(starts == 1, "%zu starts", starts);
    }
}

// Around a text: that of Jinja's trim, of mistral-common, or all of it.
static void chat_white_space(void) {
    static const char *const texts[] = {NULL, "\u00a0\u3000Hi\u2003\n", "\u00a0Yes \u2003 "};
    const Chat llama3_chat = open_chat(load(&of_llama3, NULL), CHAT_AUTO);
    CHECK(strcmp(shown(&llama3_chat, texts, 3), "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi"
                 "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n[Yes<|eot_id|>]") == 0, "%s",
          shown(&llama3_chat, texts, 3));
    static const char *const spaces[] = {"", "Hi ", " Yes\u2003  "};  // an empty system message is none
    const Chat v3 = open_chat(load(&of_v3, NULL), CHAT_AUTO);
    CHECK(strcmp(shown(&v3, spaces, 3), "<s>[INST] Hi [/INST][  Yes\u2003</s>]") == 0, "'%s'",
          shown(&v3, spaces, 3));
}

// A model without a template is given one: the text with this hash, whose renderings by transformers
// were compared with chat_encode() once, by hand; 0: as in another row.
static void chat_exports(void) {
    static const struct { const Kind *kind; int format; uint64_t hash; const char *before, *after; } cases[] = {
        {&of_smollm2, CHAT_AUTO, 0x55041690820d0541, NULL, NULL}, {&of_v3, CHAT_AUTO, 0x47f51d4188c1f7d, NULL, NULL},
        {&of_llama2, CHAT_MISTRAL, 0xe18243c73b74881, NULL, NULL}, {&of_llama2, CHAT_LLAMA2, 0xab03ff775cab1525, NULL, NULL},
        {&of_smollm2, CHAT_MISTRAL, 0xe90e571f758e1b04, NULL, NULL},
        {&of_llama3, CHAT_AUTO, 0x68fbd2664cbe7b02, "{\"a\": 1, \"eos_token_id\": 2001,\n \"b\": [2]}",
         "{\n  \"a\": 1,\n  \"b\": [2],\n  \"eos_token_id\": [2001, 2009]\n}\n"},
        {&of_llama3, CHAT_AUTO, 0, "{\"eos_token_id\": [2001, 2008]}", "{\n  \"eos_token_id\": [2001, 2008, 2009]\n}\n"},
        {&of_llama3, CHAT_AUTO, 0, NULL, "{\n  \"eos_token_id\": [2001, 2009]\n}\n"},
        {&of_llama3, CHAT_AUTO, 0, "{\"eos_token_id\": [2001, 2009]}", "{\"eos_token_id\": [2001, 2009]}"},
        {&of_smollm2, CHAT_AUTO, 0, "{\"a\": \"b\"}", "{\n  \"a\": \"b\",\n  \"eos_token_id\": [2]\n}\n"},
        {&of_smollm2, CHAT_AUTO, 0, "{\"eos_token_id\" : 0}", "{\n  \"eos_token_id\": [0, 2]\n}\n"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (cases[i].before != NULL) put_text(in_base("generation_config.json"), cases[i].before);
        Tokenizer *t = load(cases[i].kind, NULL);
        const Chat chat = open_chat(t, cases[i].format);
        chat_export(&chat, t);
        const TokenizerFile *file = &t->files[FILE_TEMPLATE], *g = &t->files[FILE_GENERATION];
        const uint64_t hash = hash_bytes(file->text, file->length);
        CHECK(cases[i].hash == 0 || hash == cases[i].hash, "case %zu has %#" PRIx64 ": %s", i, hash, file->text);
        CHECK(cases[i].after == NULL ? g->text == NULL : g->text != NULL && strcmp(g->text, cases[i].after) == 0
              && strlen(g->text) == g->length, "case %zu: %s", i, g->text);
        // the template tells the format
        Chat again;
        CHECK(chat_open(&again, t, CHAT_AUTO, t->bos, 0, &err) && again.has_template && again.format == chat.format
              && again.begin == chat.begin, "case %zu: %s", i, err.text);
        unlink(in_base("generation_config.json"));
    }
    Tokenizer *t = load_with(&of_smollm2, IN_CONFIG, TURNS, NULL);
    const Chat chat = open_chat(t, CHAT_AUTO);
    chat_export(&chat, t);
    CHECK(t->files[FILE_TEMPLATE].text == NULL && t->files[FILE_GENERATION].text == NULL, "a model with a template");
}

// ---------------------------------------------------------------------------------------------
// Examples

#define TALK LINE(MESSAGE("system", "Be brief.") "," USER "," KING "," MESSAGE("user", " <|eot_id|>") \
                  "," MESSAGE("assistant", "No."))

// Rows of a conversation, whole and cut: inputs, and targets that are trained.
static void chat_rows(void) {
    enum { N = COUNT_OF(llama3), P = 28, MOST = 64 };
    static const struct { size_t T, from, inputs, targets; } cases[] = {
        {N + 5, 0, N - 1, 7}, {N - 1, 0, N - 1, 7}, {N - 2, 0, N - 2, 6}, {N - 4, 0, P + 3, 4},
        {P + 4, 0, P + 3, 4}, {P + 3, 0, P + 3, 4}, {P + 2, 1, P + 2, 4}, {4, P - 1, 4, 4},
        {2, P - 1, 2, 2}};
    Tokenizer *t = load(&of_llama3, NULL);
    Task task = parse_lines(t, TALK, CHAT_AUTO);
    CHECK(task.chat.format != NULL && task.longest == N - 1 && task.pieces == 2 && piece_tokens(&task, 0) == P,
          "%zu", task.longest);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int32_t in[MOST], to[MOST];
        const size_t T = cases[i].T, n = task_row(&task, 0, 0, T, in, to), from = cases[i].from;
        size_t trained = 0;
        CHECK(n == cases[i].inputs, "T %zu: %zu inputs", T, n);
        for (size_t k = 0; k < n; k++) {
            const int32_t next = llama3[from + k + 1];
            const int32_t input = k == 0 ? 2000 : token_id(llama3[from + k]);
            CHECK(in[k] == input && to[k] == (next < 0 ? -1 : next), "T %zu, %zu: %d %d", T, k,
                  in[k], to[k]);
            trained += to[k] >= 0;
        }
        const TaskSum sum = task_sum(&task, T);
        CHECK(trained == cases[i].targets && task_targets(&task, 1, 0, 1, T) == trained
              && sum.targets == trained && sum.inputs == n && sum.cut == (T < N - 1),
              "T %zu: %zu trained, %zu counted", T, trained, sum.targets);
    }
    // what stands behind the last answer is neither trained nor read
    Task more = parse_lines(t, LINE(MESSAGE("system", "Be brief.") "," USER "," KING "," USER), CHAT_AUTO);
    int32_t in[MOST], to[MOST];
    CHECK(task_row(&more, 0, 0, MOST, in, to) == P + 3 && to[P + 2] == 2009, "%d", to[P + 2]);
    // beside other forms, which are cut as ever
    Task both = parse_lines(t, TALK "\n{\"prompt\":\"The king\",\"completion\":\" is.\"}\n"
                      "{\"text\":\"The king is.\"}", CHAT_AUTO);
    Task other = parse_lines(t, "{\"prompt\":\"The king\",\"completion\":\" is.\"}\n"
                       "{\"text\":\"The king is.\"}", CHAT_AUTO);
    CHECK(both.count == 3 && other.chat.format == NULL && task_hash(&both) != task_hash(&other), "mixed");
    for (size_t i = 0; i < 2; i++)
        for (size_t T = 2; T < 9; T++) {
            int32_t in_2[MOST], to_2[MOST];
            const size_t n = task_row(&both, i + 1, 0, T, in, to);
            CHECK(n == task_row(&other, i, 0, T, in_2, to_2) && memcmp(in, in_2, n * 4) == 0
                  && memcmp(to, to_2, n * 4) == 0, "%zu, T %zu", i, T);
        }
    // packed rows train the same tokens
    const size_t trained = task_targets(&both, 1, 0, 3, MOST);
    task_pack(&both, MOST);
    CHECK(both.rows == 1 && task_targets(&both, 1, 0, 1, MOST) == trained, "%zu rows", both.rows);
}

// ShareGPT's and Alpaca's forms are the same conversation as messages are, in lines and in an array; an
// answer with the weight 0 is read.
static void chat_forms(void) {
    static const char talk[] = LINE(USER "," KING "," MESSAGE("user", "a\\nb") "," MESSAGE("assistant", "No.")),
        shared[] = "{\"conversations\":[{\"from\":\"human\",\"value\":\"Who?\"},{\"from\":\"gpt\",\"value\":\"The king.\"},"
                   "{\"from\":\"human\",\"value\":\"a\\nb\"},{\"from\":\"gpt\",\"value\":\"No.\",\"weight\":1}]}",
        asked[] = LINE(MESSAGE("user", "a\\nb") "," MESSAGE("assistant", "No.")),
        alpaca[] = "{\"instruction\":\"a\",\"input\":\"b\",\"output\":\"No.\",\"id\":7,\"text\":\"a b No.\"}",
        plain[] = "{\"instruction\":\"a\\nb\",\"input\":\"\",\"output\":\"No.\"}",
        first[] = LINE(USER ",{\"role\":\"assistant\",\"content\":\"The king.\",\"weight\":1.0},"
                       "{\"role\":\"user\",\"content\":\"x\",\"weight\":0.0},{\"role\":\"assistant\",\"content\":\"No.\",\"weight\":0}"),
        last[] = LINE(USER ",{\"role\":\"assistant\",\"content\":\"The king.\",\"weight\":0},"
                      MESSAGE("user", "a\\nb") "," MESSAGE("assistant", "No."));
    const char *const same[][2] = {{talk, shared}, {asked, alpaca}, {asked, plain},
                                   {LINE(USER "," KING), first}};
    Tokenizer *t = load(&of_llama3, NULL);
    char text[2048];
    for (size_t i = 0; i < COUNT_OF(same); i++) {
        const Task a = parse_lines(t, same[i][0], CHAT_AUTO), b = parse_lines(t, same[i][1], CHAT_AUTO);
        CHECK(a.count == 1 && task_hash(&a) == task_hash(&b), "form %zu", i);
    }
    snprintf(text, sizeof text, "%s\n%s\n%s", talk, alpaca, first);
    const Task lines = parse_lines(t, text, CHAT_AUTO);
    snprintf(text, sizeof text, "\xEF\xBB\xBF \n[%s,\n%s, %s]\n", talk, alpaca, first);
    const Task array = parse_lines(t, text, CHAT_AUTO);
    CHECK(array.count == 3 && task_hash(&array) == task_hash(&lines), "an array");
    // the inputs of the whole conversation; of its targets those of the second answer
    enum { MOST = 64 };
    int32_t in[2][MOST], to[2][MOST];
    const Task whole = parse_lines(t, talk, CHAT_AUTO), read = parse_lines(t, last, CHAT_AUTO);
    const Task second = parse_lines(t, asked, CHAT_AUTO);
    const size_t n = task_row(&whole, 0, 0, MOST, in[0], to[0]);
    CHECK(task_row(&read, 0, 0, MOST, in[1], to[1]) == n && memcmp(in[0], in[1], 4 * n) == 0, "inputs");
    size_t trained = 0;
    for (size_t k = 0; k < n; k++) {
        trained += to[1][k] >= 0;
        CHECK(to[1][k] == -1 || to[1][k] == to[0][k], "target %zu", k);
    }
    CHECK(trained == task_targets(&second, 1, 0, 1, MOST) && to[1][n - 1] >= 0, "%zu trained", trained);
    // --train-on last: as if the answers before the last that is trained had the weight 0
    last_only = true;
    const Task one = parse_lines(t, talk, CHAT_AUTO), king = parse_lines(t, first, CHAT_AUTO);
    last_only = false;
    const Task shorter = parse_lines(t, LINE(USER "," KING), CHAT_AUTO);
    CHECK(task_hash(&one) == task_hash(&read) && task_hash(&king) == task_hash(&shorter), "the last answer");
}

#define MEMBER(more) LINE(USER ",{\"role\":\"assistant\",\"content\":\"x\",\"" more "}")

static void chat_bad_lines(void) {
    static const struct { const char *line, *says; } bad[] = {
        {"{\"messages\":\"hi\"}", "\"messages\" is no list"},
        {"{\"messages\":[]}", "line 2: \"messages\" is empty"},
        {LINE("7"), "message 1 is no object"},
        {LINE("{\"content\":\"x\"}"), "message 1 is no object with \"role\""},
        {LINE(USER "," MESSAGE("bot", "x")), "message 2 has the role \"bot\", which is none of"},
        {LINE(USER "," MESSAGE("tool", "x")), "message 2 has the role \"tool\": the format llama3 has none"},
        {LINE(MESSAGE("function", "x")), "the role \"function\", which is none of system, user, assistant and tool"},
        {MEMBER("tool_calls\":[{}]"), "message 2 has \"tool_calls\", which is not supported: leave it out"},
        {MEMBER("weight\":0"), "none has a weight: there is nothing to train"},
        {MEMBER("weight\":2"), "message 2 has a \"weight\" that is not 0, or 1 for an answer"},
        {MEMBER("weight\":\"1\""), "not 0, or 1"}, {MEMBER("weight\":0.5"), "not 0, or 1"},
        {LINE("{\"role\":\"user\",\"content\":\"x\",\"weight\":1}," KING), "message 1 has a \"weight\""},
        {"{\"conversations\":[{\"from\":\"human\",\"value\":\"x\"},{\"role\":\"assistant\",\"content\":\"x\"}]}",
         "message 2 is no object with \"from\" and \"value\""},
        {"{\"conversations\":[{\"from\":\"human\",\"value\":\"x\"},{\"from\":\"bot\",\"value\":\"x\"}]}",
         "message 2 has the role \"bot\", which is none of system, human, gpt and tool"},
        {"{\"conversations\":[{\"from\":\"human\",\"value\":\"x\",\"role\":\"user\"}]}", "has \"role\", which is not"},
        {"{\"conversations\":[{\"from\":\"human\"}]}", "message 1 has no \"value\""},
        {"{\"conversations\":[{}]}", "message 1 is no object with \"role\""},
        {"{\"instruction\":\"x\"}", "\"output\" is missing"},
        {"{\"instruction\":\" \",\"output\":\"x\"}", "\"instruction\" is empty"},
        {"{\"instruction\":\"x\",\"output\":\" \\n\"}", "\"output\" is empty"},
        {"{\"instruction\":\"x\",\"input\":7,\"output\":\"x\"}", "\"input\" is no string"},
        {"{\"instruction\":\"x\",\"output\":\"x\",\"history\":[[\"a\",\"b\"]]}", "it has \"history\""},
        {"{\"instruction\":\"x\",\"output\":\"x\",\"prompt\":\"x\"}", "no others of these"},
        {"{\"instruction\":\"x\",\"output\":\"x\",\"context\":\"x\"}", "it has \"context\", which is not"},
        {"{\"instruction\":\"x\",\"context\":\"\",\"response\":\"x\"}", "it has \"response\", which is not"},
        {"{\"conversations\":[],\"id\":1}", "or \"conversations\", or \"instruction\", and no"},
        {"{\"conversations\":{\"a\":1}}", "\"conversations\" is no list"},
        {MEMBER("train\":false"), "\"train\""},
        {MEMBER("masked\":true"), "\"masked\""}, {MEMBER("reasoning_content\":\"hm\""), "\"reasoning_content\""},
        {MEMBER("anything\":\"else\""), "\"anything\""},
        {LINE(USER ",{\"role\":\"assistant\"}"), "message 2 has no \"content\""},
        {LINE("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}"),
         "no string: write the texts of its parts as one"},
        {LINE(USER "," MESSAGE("assistant", "")), "message 2, an answer, is empty"},
        {LINE(USER "," MESSAGE("assistant", " \\n\u00a0")), "message 2, an answer, is empty"},
        {LINE(USER "," MESSAGE("system", "x")), "message 2 is a system message, and only the first"},
        {LINE(KING), "message 1 is the assistant's, and stands before any user's"},
        {LINE(MESSAGE("system", "x") "," KING), "message 2 is the assistant's"},
        {LINE(USER), "nothing to train"},
        {LINE(MESSAGE("system", "x")), "nothing to train"},
        {"{\"prompt\":\"x\",\"messages\":[" USER "," KING "]}", "no others of these"},
        {"{\"messages\":[" USER "," KING "],\"text\":\"x\"}", "no others of these"},
        {"{\"messages\":[" USER "," KING "],\"system\":\"Be brief.\"}", "it has \"system\", which is not"},
        {"{\"messages\":[" USER "," KING "],\"tools\":[{}]}", "it has \"tools\""}};
    Tokenizer *t = load(&of_llama3, NULL), *v1 = load(&of_llama2, NULL);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        char text[1024];
        snprintf(text, sizeof text, "{\"text\":\"The king\"}\n%s\n", bad[i].line);
        const char *said = DIES(parse_lines(t, text, CHAT_AUTO));
        CHECK(said != NULL && strstr(said, bad[i].says) && strstr(said, "f.jsonl, line 2: "),
              "%s: %s", bad[i].line, said != NULL ? said : "accepted");
    }
    static const char twice[] = LINE(USER "," USER "," KING), again[] = LINE(USER "," KING "," KING);
    CHECK(parse_lines(t, twice, CHAT_AUTO).count == 1 && parse_lines(t, again, CHAT_AUTO).count == 1, "Llama-3");
    CHECK(DIES_WITH("messages 1 and 2 are both the user's", parse_lines(v1, twice, CHAT_MISTRAL)), "v1");
    CHECK(DIES_WITH("messages 2 and 3 are both the assistant's", parse_lines(v1, again, CHAT_LLAMA2)),
          "Llama-2");
    CHECK(DIES_WITH("line 1: the tokenizer has none of", parse_lines(v1, twice, CHAT_AUTO)), "no format");
    CHECK(DIES_WITH("line 1 has token 2009, but the model's vocabulary has 2009", task_parse("f",
          strdup(LINE(USER "," KING)), NULL, NULL, t, t->bos, 2009, CHAT_AUTO, false)), "a small model");
    CHECK(parse_lines(t, "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\"x\",\"name\":\"y\",\"id\":1,"
                "\"tool_calls\":[],\"audio\":null,\"thinking\":\"\",\"more\":{}}],\"tools\":[],\"source\":\"z\"}",
                CHAT_AUTO).count == 1, "harmless members");
}

// The ids of published tokenizers.
static void chat_published(void) {
    const char *all = getenv("TIDE_TOKENIZERS");
    static const int32_t qwen[] = {~151644, ~872, ~198, ~6023, ~151645, ~198, ~151644, ~77091, ~198,
                                   13048, 1052, 151645, ~198};
    static const int32_t v1[] = {~1, ~733, ~16289, ~28793, ~22557, ~733, ~28748, ~16289, ~28793,
                                 15359, 736, 2, ~733, ~16289, ~28793, ~6526, ~28804, ~733, ~28748,
                                 ~16289, ~28793};
    static const int32_t v3[] = {~1, ~3, ~23325, ~4, 16127, 1504, 2, ~3, ~7294, ~29572, ~4};
    static const struct { const char *dir, *user; int format; const int32_t *want; size_t n; }
        cases[] = {{"qwen2.5", "hi", CHAT_AUTO, qwen, COUNT_OF(qwen)},
                   {"mistral-7b-v0.1", "Hello", CHAT_MISTRAL, v1, COUNT_OF(v1)},
                   {"mistral-7b-v0.3", "Hello", CHAT_AUTO, v3, COUNT_OF(v3)}};
    if (all == NULL) SKIP("TIDE_TOKENIZERS does not name a directory of tokenizers");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char dir[PATH_MAX];
        path_join(dir, all, cases[i].dir);
        const char *texts[] = {NULL, cases[i].user, "Hi there", "Who?", NULL};
        int32_t *tokens;
        const Chat chat = open_chat(tokenizer_load(dir), cases[i].format);
        const size_t count = tokens_of(&chat, texts, i == 0 ? 3 : 5, &tokens);
        check_tokens(cases[i].dir, tokens, count, cases[i].want, cases[i].n);
    }
}

int main(void) {
    base_new("chat");
    ranks.rank = 1;  // which prints no warnings
    RUN(chat_ids);
    RUN(chat_templates);
    RUN(chat_published_templates);
    RUN(chat_thoughts);
    RUN(chat_own_tokens);
    RUN(chat_white_space);
    RUN(chat_exports);
    RUN(chat_formats_refused);
    RUN(chat_rows);
    RUN(chat_forms);
    RUN(chat_bad_lines);
    RUN(chat_published);
    remove_tree(base);
    return test_summary();
}
