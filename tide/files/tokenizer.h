// tokenizer.h: text to tokens and back, as the models of Hugging Face have it.
//
//     tokenizer_bytes()    a byte is a token
//     tokenizer_open()     of a directory
//     tokenizer_parse()    of the texts of vocab.json and merges.txt
//     tokenizer_save()     into another one
//     tokenizer_encode()   text to tokens
//     document_encode()    a document to train on, with the tokens around it
//     tokenizer_token()    the text of one token
//     tokenizer_added()    the id of an added token; tokenizer_ends(): does a token end a text?
//     tokenizer_free()
//
// A text becomes tokens in four steps; each family of models uses some:
// 1. Added tokens, such as <|im_end|>, are cut out. Each piece between them goes on by itself.
// 2. The piece is normalised: composed (nfc.h), or given a space in front. Added tokens whose
//    contents are normalised are cut out now.
// 3. A byte-level piece is cut into words (words.h). In the style of SentencePiece it is one word.
// 4. The symbols of each word are merged (vocabulary.h).
// A directory has a tokenizer.json, whose parts describe the steps, or GPT-2's vocab.json and
// merges.txt. A part that is not known here is refused by its name: wrong ids are worse than none.
// Any bytes are text: a byte that is not UTF-8 is a code point of its own.
// Sources: Radford et al. 2019 (section 2.2); Hugging Face tokenizers 0.23.
#ifndef TIDE_TOKENIZER_H
#define TIDE_TOKENIZER_H
#include "../base/ranks.h"
#include "json.h"
#include "nfc.h"
#include "vocabulary.h"

#define TOKENIZER_EOT "<|endoftext|>"

// The files of a tokenizer, in the order in which they are saved: those that decide come last.
enum { FILE_CONFIG, FILE_GENERATION, FILE_TEMPLATE = 4, FILE_JSON = 6, FILE_VOCAB, FILE_MERGES };
static const char *const tokenizer_files[TOKENIZER_FILES] = {
    "tokenizer_config.json", "generation_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "tokenizer.model", "tokenizer.json", "vocab.json",
    "merges.txt"};

// ---------------------------------------------------------------------------------------------
// Added tokens

// Adds a token whose content, of n bytes, is as the file has it, in the vocabulary (known) or not.
// Returns false if it is there already. flags: see read_added().
static bool added_push(Tokenizer *t, const char *content, size_t n, uint32_t id, bool known,
                       const int *flags) {
    const bool normalized = flags[2], front = normalized && (t->steps & STEP_PREPEND);
    AddedTokens *list = &t->added[normalized];
    char *room = ALLOC(char, 4 * n + 2, "added tokens"), *composed = NULL;
    AddedToken a = {.content = room, .name = room + 3 * n + 1, .length = 0, .id = id,
                    .special = flags[1] != 0, .lstrip = flags[3] != 0, .rstrip = flags[4] != 0};
    memcpy(a.name, content, n);
    if (normalized && (t->steps & STEP_NFC)) content = nfc_text(t->classes, content, &n, &composed);
    a.content[0] = ' ';
    if (!normalized || !(t->steps & STEP_REPLACE)) memcpy(a.content, content, n);
    else n = tokenizer_spaces(content, n, a.content + front);
    a.length = front + n;
    free(composed);
    for (size_t i = 0; i < list->count; i++)
        if (list->tokens[i].length == a.length
            && memcmp(list->tokens[i].content, a.content, a.length) == 0) {
            free(a.content);
            return false;
        }
    if (known && front) t->bytes[t->used++] = ' ';
    if (!known) tokenizer_store(t, id, a.content, a.length);
    else if (front) tokenizer_store(t, id, a.name, strlen(a.name));
    t->tokens[id].front = known && front;
    list->tokens = (AddedToken *)array_grow(list->tokens, list->count, sizeof a, "added tokens");
    list->tokens[list->count++] = a;
    list->first[(unsigned char)a.content[0]] = true;
    for (int c = 0; c < 256; c++)
        list->second[c] |= a.length == 1 || c == (unsigned char)a.content[1];
    return true;
}

// Finds the first place from *at on with the content of a token, and the longest such token, or
// NULL.
static const AddedToken *added_find(const AddedTokens *list, const char *s, size_t n, size_t *at) {
    for (; list->count > 0 && *at < n; ++*at) {
        const char *here = s + *at;
        const AddedToken *found = NULL;
        if (!list->first[(unsigned char)*here]
            || (*at + 1 < n && !list->second[(unsigned char)here[1]])) continue;
        for (const AddedToken *a = list->tokens; a < list->tokens + list->count; a++)
            if (a->length <= n - *at && (found == NULL || a->length > found->length)
                && memcmp(a->content, here, a->length) == 0) found = a;
        if (found != NULL) return found;
    }
    return NULL;
}

// Finds the id of the added token with this content, or TOKENIZER_NONE.
static uint32_t tokenizer_added(const Tokenizer *t, const char *content) {
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < t->added[k].count; i++)
            if (strcmp(t->added[k].tokens[i].name, content) == 0) return t->added[k].tokens[i].id;
    return TOKENIZER_NONE;
}

static void tokenizer_free(Tokenizer *t) {
    if (t == NULL) return;
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < t->added[k].count; i++) free(t->added[k].tokens[i].content);
        free(t->added[k].tokens);
    }
    for (int i = 0; i < TOKENIZER_FILES; i++) free(t->files[i].text);
    free(t->classes);
    free(t->tokens);
    free(t->bytes);
    free(t->places);
    free(t->merges);
    free(t->table);
    free(t->joins);
    free(t->stops.ids);
    free(t);
}

// ---------------------------------------------------------------------------------------------
// tokenizer.json

typedef struct {
    Tokenizer *t;
    const char *path;          // for messages
    const Json *root, *vocabulary;
    Error *err;
} PartReader;

// The parts that are known, as read_part() writes them, and their steps.
#define PART_REPLACE "Replace with String  , content " TOKENIZER_SPACE
#define PART_PREPEND "Prepend with prepend " TOKENIZER_SPACE " + " PART_REPLACE
#define PART_METASPACE "Metaspace with replacement " TOKENIZER_SPACE
#define PART_BYTES "ByteLevel with add_prefix_space false"
#define PART_SPLIT(rule) "Split with " rule " expression, behavior Isolated + " PART_BYTES \
                         ", use_regex false"
#define PART_SPACES "Replace with String " TOKENIZER_SPACE ", content   + ByteFallback + Fuse"
static const struct { const char *part, *line; int steps, rule; } tokenizer_parts[] = {
    {"normalizer", "null", 0, 0},
    {"normalizer", "NFC", STEP_NFC, 0},
    {"normalizer", PART_REPLACE, STEP_REPLACE, 0},
    {"normalizer", PART_PREPEND, STEP_PREPEND | STEP_REPLACE, 0},
    {"normalizer", "NFC + " PART_REPLACE, STEP_NFC | STEP_REPLACE, 0},
    {"normalizer", "NFC + " PART_PREPEND, STEP_NFC | STEP_PREPEND | STEP_REPLACE, 0},
    {"pre_tokenizer", "null", 0, 0},
    {"pre_tokenizer", PART_BYTES, STEP_BYTES, RULE_GPT2},
    {"pre_tokenizer", "Digits with individual_digits true + " PART_BYTES,
     STEP_DIGITS | STEP_BYTES, RULE_GPT2},
    {"pre_tokenizer", PART_SPLIT("GPT-2's"), STEP_BYTES, RULE_GPT2},
    {"pre_tokenizer", PART_SPLIT("Llama-3's"), STEP_BYTES, RULE_LLAMA3},
    {"pre_tokenizer", PART_SPLIT("Qwen2's"), STEP_BYTES, RULE_QWEN2},
    {"pre_tokenizer", PART_METASPACE ", prepend_scheme never, split false", STEP_NEVER, 0},
    {"pre_tokenizer", PART_METASPACE ", prepend_scheme first, split false", STEP_FIRST, 0},
    {"pre_tokenizer", PART_METASPACE ", split false", STEP_ALWAYS, 0},
    {"decoder", "ByteLevel", STEP_UNBYTES, 0},
    {"decoder", PART_SPACES, 0, 0},
    {"decoder", PART_SPACES " + Strip with content  , start 1, stop 0", STEP_STRIP, 0},
    {"post_processor", "null", 0, 0},
    {"post_processor", "ByteLevel", 0, 0},  // is about offsets
    {"post_processor", "TemplateProcessing", 0, 0},
    {"post_processor", "ByteLevel + TemplateProcessing", 0, 0}};

static bool part_refuse(PartReader *r, const char *part, const char *what) {
    return error_set(r->err, "%.200s: %s %.250s: not supported", r->path, part, what);
}

// Writes a step as its type and the members that matter. A member that equals its default is left
// out, and an expression is written by its name.
static void step_write(FILE *f, const Json *step, bool members) {
    static const struct { const char *key, *none; } names[] = {
        {"individual_digits", ""}, {"prepend", ""}, {"pattern", ""}, {"content", ""},
        {"behavior", ""}, {"invert", "false"}, {"replacement", ""}, {"prepend_scheme", "always"},
        {"split", "true"}, {"add_prefix_space", "true"}, {"use_regex", "true"}, {"start", ""},
        {"stop", ""}};
    const Json *type = json_get(step, "type");
    const char *between = " with ";
    fputs(type != NULL && type->type == JSON_STRING ? type->string : "without a type", f);
    for (size_t i = 0; i < sizeof names / sizeof names[0] && members; i++) {
        const Json *value = json_get(step, names[i].key);
        const bool pattern = value != NULL && value->type == JSON_OBJECT && value->count == 1;
        if (pattern) value = value->child;  // {"String": ".."} or {"Regex": ".."}
        if (value == NULL) continue;
        const char *text = value->type <= JSON_STRING ? value->string : "?";
        if (strcmp(text, names[i].none) == 0) continue;
        int rule = pattern && strcmp(value->key, "Regex") == 0 ? 0 : RULES + 1;
        while (rule < RULES && !json_is(value, word_rules[rule].expression)) rule++;
        if (rule > RULES)
            fprintf(f, "%s%s %s", between, pattern ? value->key : names[i].key, text);
        else if (rule < RULES) fprintf(f, "%s%s expression", between, word_rules[rule].name);
        else fprintf(f, "%san expression other than GPT-2's, Llama-3's or Qwen2's", between);
        between = ", ";
    }
}

// Reads a part: null, a Sequence, or a step.
static bool read_part(PartReader *r, const char *name, const char *list) {
    const Json *part = json_get(r->root, name), *all = json_get(part, list);
    const bool sequence = json_is(json_get(part, "type"), "Sequence") && all != NULL
                       && all->type == JSON_ARRAY;
    const char *between = "";
    char *line = NULL;
    size_t length = 0, k = 0;
    FILE *f = open_memstream(&line, &length);
    if (f == NULL) fail("out of memory: tokenizer.json");
    for (const Json *value = sequence ? all->child : part; value != NULL;
         value = sequence ? value->next : NULL) {
        const bool bytes = json_is(json_get(value, "type"), "ByteLevel");
        fputs(between, f);
        // a pre_tokenizer has a choice
        step_write(f, value, !bytes || strcmp(name, "pre_tokenizer") == 0);
        between = " + ";
    }
    fputs(*between == '\0' ? "null" : "", f);
    if (fclose(f) != 0) fail("out of memory: tokenizer.json");
    const size_t parts = sizeof tokenizer_parts / sizeof tokenizer_parts[0];
    while (k < parts && (strcmp(tokenizer_parts[k].part, name) != 0
                         || strcmp(tokenizer_parts[k].line, line) != 0)) k++;
    if (k == parts) part_refuse(r, name, line);
    free(line);
    if (k == parts) return false;
    r->t->steps |= tokenizer_parts[k].steps;
    if (tokenizer_parts[k].steps & STEP_BYTES) r->t->rule = &word_rules[tokenizer_parts[k].rule];
    return true;
}

// Reads all parts but the post_processor. Bytes and spaces for U+2581 do not go together.
static bool read_steps(PartReader *r) {
    Tokenizer *t = r->t;
    if (!read_part(r, "normalizer", "normalizers")
        || !read_part(r, "pre_tokenizer", "pretokenizers") || !read_part(r, "decoder", "decoders"))
        return false;
    const int spaces = t->steps & (STEP_REPLACE | STEP_METASPACE);
    t->byte_level = (t->steps & STEP_BYTES) != 0;
    if (!(t->steps & STEP_UNBYTES) == !t->byte_level && !spaces == t->byte_level
        && !((spaces & STEP_REPLACE) && (spaces & STEP_METASPACE))) return true;
    return part_refuse(r, "normalizer, pre_tokenizer and decoder", "in this combination");
}

// Reads the vocabulary and the merges.
static bool read_model(PartReader *r) {
    static const char *const unused[3] = {"dropout", "continuing_subword_prefix",
                                          "end_of_word_suffix"};
    Tokenizer *t = r->t;
    const Json *m = json_get(r->root, "model"), *vocabulary = json_get(m, "vocab");
    const Json *merges = json_get(m, "merges"), *added = json_get(r->root, "added_tokens");
    const int fallback = json_flag(m, "byte_fallback", false);
    const int ignore = json_flag(m, "ignore_merges", false);
    char place[PATH_MAX + 8];
    size_t more = 0, bytes = 0;
    if (json_get(m, "type") != NULL && !json_is(json_get(m, "type"), "BPE"))
        return part_refuse(r, "model", "of a type other than BPE");
    if (vocabulary == NULL || vocabulary->type != JSON_OBJECT || vocabulary->count == 0
        || merges == NULL || merges->type != JSON_ARRAY || fallback < 0 || ignore < 0)
        return part_refuse(r, "model", "without vocab, merges, true and false");
    for (int i = 0; i < 3; i++) {
        const Json *value = json_get(m, unused[i]);
        const bool zero = value != NULL && value->type == JSON_NUMBER && value->number == 0;
        if (value != NULL && !json_is(value, "") && !zero)
            return part_refuse(r, "model with", unused[i]);
    }
    for (const Json *a = added != NULL ? added->child : NULL; a != NULL; a = a->next, more++)
        bytes += json_get(a, "content") != NULL ? 4 * json_get(a, "content")->length + 2 : 0;
    if (!tokenizer_read_tokens(t, r->path, vocabulary, more, bytes, r->err)) return false;
    t->ignore_merges = ignore;
    r->vocabulary = vocabulary;
    const int missing = tokenizer_read_bytes(t, vocabulary);
    if (t->byte_level ? missing > 0 && (fallback || json_get(m, "unk_token") != NULL)
                      : !fallback || ignore || missing > 0
                        || tokenizer_find(t, " ", 1) == TOKENIZER_NONE)
        return part_refuse(r, "model", t->byte_level
                           ? "with bytes that have no token"
                           : "without byte_fallback, <0x00> to <0xFF> and U+2581, or with "
                             "ignore_merges");
    int lost = 0;  // bytes of ordinary text: no 0xC0, 0xC1, 0xF1 .., few control characters
    for (int i = '\t'; i <= 0xF0; i++)
        if ((i <= '\r' || i >= ' ') && (i & 0xFE) != 0xC0) lost += t->byte_id[i] == TOKENIZER_NONE;
    if (lost > 0 && ranks.rank == 0)
        fprintf(stderr, "tide: warning: %s: %d of the bytes of ordinary text have no token, and "
                "are left out of every text, as in Hugging Face\n", r->path, lost);
    snprintf(place, sizeof place, "%s, merge", r->path);
    return tokenizer_read_merges(t, place, vocabulary, merges, r->err);
}

// Reads the added tokens. Those that are not in the vocabulary are numbered behind it.
static bool read_added(PartReader *r) {
    static const char *const names[5] = {"single_word", "special", "normalized", "lstrip",
                                         "rstrip"};
    Tokenizer *t = r->t;
    const Json *all = json_get(r->root, "added_tokens");
    size_t next = r->vocabulary->count, id = 0;
    if (all != NULL && all->type != JSON_ARRAY)
        return part_refuse(r, "added_tokens", "other than a list");
    for (const Json *item = all != NULL ? all->child : NULL; item != NULL; item = item->next) {
        const Json *content = json_get(item, "content");
        int flags[5], wrong = content == NULL || content->type != JSON_STRING
                           || content->length == 0 || !json_size(json_get(item, "id"), &id);
        for (int i = 0; i < 5; i++) wrong |= (flags[i] = json_flag(item, names[i], false)) < 0;
        if (wrong || flags[0])
            return part_refuse(r, "added_tokens", wrong ? "without content, id, true and false"
                               : "with single_word");
        const uint32_t known = vocabulary_find(r->vocabulary, content->string, content->length);
        const size_t given = known != TOKENIZER_NONE ? known : next++;
        const bool taken = known == TOKENIZER_NONE && given < t->vocab
                        && t->tokens[given].length > 0;
        if (id != given || taken || id >= TOKENIZER_MAX_IDS)
            return error_set(r->err, "%.200s: added_tokens: \"%.60s\" has the id %zu, and Hugging "
                             "Face gives it %zu", r->path, content->string, id, given);
        if (id >= t->vocab) t->vocab = id + 1;
        if (!added_push(t, content->string, content->length, (uint32_t)id,
                        known != TOKENIZER_NONE, flags))
            return error_set(r->err, "%.200s: added_tokens: \"%.60s\" is there twice", r->path,
                             content->string);
    }
    return true;
}

// Reads which token the template of a post_processor puts in front of a text, and which behind it.
static bool read_template(PartReader *r) {
    const Json *step = json_get(r->root, "post_processor"), *all = json_get(step, "processors");
    bool text = false;
    if (!read_part(r, "post_processor", "processors")) return false;
    for (const Json *value = all != NULL ? all->child : NULL; value != NULL; value = value->next)
        step = value;
    if (!json_is(json_get(step, "type"), "TemplateProcessing")) return true;
    const Json *single = json_get(step, "single"), *special = json_get(step, "special_tokens");
    for (const Json *i = single != NULL ? single->child : NULL; i != NULL; i = i->next) {
        const Json *name = json_get(json_get(i, "SpecialToken"), "id"), *ids = NULL;
        int *place = text ? &r->t->behind : &r->t->bos;
        size_t id = SIZE_MAX;
        if (name != NULL && name->type == JSON_STRING)
            ids = json_get(json_get(special, name->string), "ids");
        if (!text && json_is(json_get(json_get(i, "Sequence"), "id"), "A")) text = true;
        else if (ids != NULL && ids->count == 1 && json_size(ids->child, &id) && *place < 0
                 && id < r->t->vocab) *place = (int)id;
        else return part_refuse(r, "post_processor", "with more than one token on each side");
    }
    return text || part_refuse(r, "post_processor", "without a text");
}

// Reads the token that ends a text, which tokenizer_config.json may name, and those that end a
// model's answer: generation_config.json, or else config.json, has their ids.
static bool read_ends(PartReader *r, const char *dir) {
    static const char *const names[3] = {"tokenizer_config.json", "generation_config.json",
                                         "config.json"};
    Tokenizer *t = r->t;
    uint32_t eot = TOKENIZER_NONE;
    for (int k = 0; k < 3; k++) {
        char path[PATH_MAX];
        path_join(path, dir, names[k]);
        if (!path_exists(path)) continue;
        Json *config = json_read(path, r->err);
        if (config == NULL) return false;
        const Json *eos = json_get(config, "eos_token"), *ids = json_get(config, "eos_token_id");
        if (json_get(eos, "content") != NULL) eos = json_get(eos, "content");
        if (k == 0 && eos != NULL && eos->type == JSON_STRING) {
            eot = tokenizer_added(t, eos->string);
            if (eot == TOKENIZER_NONE)
                eot = vocabulary_find(r->vocabulary, eos->string, eos->length);
        }
        const bool adds = json_flag(config, "add_bos_token", true) != 0;
        if (k == 0 && t->bos >= 0 && !adds && ranks.rank == 0)
            fprintf(stderr, "tide: warning: %s has add_bos_token false, but tokenizer.json puts "
                    "token %d in front of every text\n", path, t->bos);
        const bool list = ids != NULL && ids->type == JSON_ARRAY;
        if (k == 0 || t->stops.count > 0) ids = NULL;
        else if (list) ids = ids->child;
        for (size_t id = 0; json_size(ids, &id); ids = list ? ids->next : NULL)
            if (id < t->vocab && t->tokens[id].length > 0) tokens_add(&t->stops, (uint32_t)id);
        json_free(config);
    }
    if (eot == TOKENIZER_NONE && t->stops.count > 0) eot = t->stops.ids[0];
    if (eot == TOKENIZER_NONE) eot = tokenizer_added(t, TOKENIZER_EOT);
    if (eot == TOKENIZER_NONE) eot = tokenizer_added(t, "</s>");
    t->eot = (int)eot;  // TOKENIZER_NONE is -1
    if (t->behind < 0 && t->bos >= 0 && t->bos != t->eot) t->behind = t->eot;
    return true;
}

// Makes a tokenizer of the text of dir/tokenizer.json, n bytes, which is its own from now on, and
// of the files `beside` it; or of tokenizer_parse()'s text. NULL and the reason in err if one is
// damaged, or a part is not supported.
static Tokenizer *tokenizer_parse_json(const char *dir, bool beside, char *text, size_t n,
                                       Error *err) {
    char path[PATH_MAX], other[PATH_MAX];
    Error inner;
    Tokenizer *t = ALLOC(Tokenizer, 1, "tokenizer");
    Json *root = json_parse(text, n, &inner);
    const Json *version = json_get(root, "version");
    PartReader r = {.t = t, .path = path, .root = root, .vocabulary = NULL, .err = err};
    t->bos = t->eot = t->behind = -1;
    t->classes = word_classes_make();
    path_join(path, dir, beside ? tokenizer_files[FILE_JSON] : "vocab.json and merges.txt");
    t->files[FILE_JSON].text = text;
    t->files[FILE_JSON].length = n;
    bool ok = root != NULL || error_set(err, "%.200s: %.290s", path, inner.text);
    if (version != NULL && !json_is(version, "1.0"))
        ok = part_refuse(&r, "version", "other than 1.0");
    ok = ok && read_steps(&r) && read_model(&r) && read_added(&r) && read_template(&r)
      && (!beside || read_ends(&r, dir));
    for (int i = 0; ok && beside && i < TOKENIZER_FILES; i++) {
        path_join(other, dir, tokenizer_files[i]);
        if (i == FILE_JSON || !path_exists(other)) continue;
        t->files[i].text = file_read(other, &t->files[i].length, err);
        ok = t->files[i].text != NULL;
    }
    json_free(root);
    if (ok) return t;
    tokenizer_free(t);
    return NULL;
}

// ---------------------------------------------------------------------------------------------
// vocab.json and merges.txt

static void tokenizer_file(Tokenizer *t, int file, const char *text) {
    t->files[file].text = strdup(text);
    t->files[file].length = strlen(text);
}

// A tokenizer from the texts of vocab.json and merges.txt, as from a tokenizer.json with the same.
// Lines without a merge count as the version's. `dir` is for messages.
static Tokenizer *tokenizer_parse(const char *dir, const char *vocab, const char *merges) {
    char *text = NULL, config[512], end[32] = "null";
    size_t length = 0, n;
    Error err;
    Json *json = json_parse(vocab, strlen(vocab), &err);
    if (json == NULL || json->type != JSON_OBJECT)
        die("%s/vocab.json: %s", dir, json == NULL ? err.text : "not an object");
    if (*merges == '\0') die("%s/merges.txt: empty", dir);
    // OPT's vocabulary has GPT-2's token as well, and never uses it.
    const char *eot = vocabulary_find(json, "<s>", 3) != TOKENIZER_NONE ? "</s>" : TOKENIZER_EOT;
    const int id = (int)vocabulary_find(json, eot, strlen(eot));  // TOKENIZER_NONE is -1
    json_free(json);
    FILE *f = open_memstream(&text, &length);
    if (f == NULL) fail("out of memory: merges.txt");
    fprintf(f, "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, "
            "\"decoder\": {\"type\": \"ByteLevel\"}, \"added_tokens\": [");
    if (id >= 0) fprintf(f, "{\"id\": %d, \"content\": \"%s\", \"special\": true}", id, eot);
    fprintf(f, "], \"model\": {\"unk_token\": \"%s\", \"vocab\": %s, \"merges\": [", eot,
            vocab);
    for (const char *s = merges; *s != '\0'; s += n + (s[n] == '\n')) {
        n = strcspn(s, "\n");
        const size_t used = n > 0 && s[n - 1] == '\r' ? n - 1 : n;
        fputs(s == merges ? "" : ", ", f);
        json_write_string(f, used > 0 ? s : "#version", used > 0 ? used : 8);
    }
    fputs("]}}", f);
    if (fclose(f) != 0) fail("out of memory: merges.txt");
    Tokenizer *t = tokenizer_parse_json(dir, false, text, length, &err);
    if (t == NULL) die("%s", err.text);
    t->eot = id;
    // null, not absent: without an entry transformers adds its own <|endoftext|>
    if (id >= 0) snprintf(end, sizeof end, "\"%s\"", eot);
    snprintf(config, sizeof config, "{\"tokenizer_class\": \"GPT2Tokenizer\", "
             "\"add_prefix_space\": false, \"clean_up_tokenization_spaces\": false, "
             "\"bos_token\": %s, \"eos_token\": %s, \"unk_token\": %s}\n", end, end, end);
    free(text);
    t->files[FILE_JSON].text = NULL;
    tokenizer_file(t, FILE_VOCAB, vocab);
    tokenizer_file(t, FILE_MERGES, merges);
    tokenizer_file(t, FILE_CONFIG, config);
    return t;
}

// 256 tokens, no merges, id = value of the byte.
static Tokenizer *tokenizer_bytes(void) {
    char *vocab = NULL, utf8[4];
    size_t length = 0;
    FILE *f = open_memstream(&vocab, &length);
    if (f == NULL) fail("out of memory: a vocabulary");
    for (int i = 0; i < 256; i++) {
        fprintf(f, i == 0 ? "{" : ", ");
        json_write_string(f, utf8, utf8_encode(tokenizer_byte_to_char(i), utf8));
        fprintf(f, ": %d", i);
    }
    fprintf(f, "}\n");
    if (fclose(f) != 0) fail("out of memory: a vocabulary");
    Tokenizer *t = tokenizer_parse("bytes", vocab, "#version: 0.2\n");
    free(vocab);
    return t;
}

// Has a directory a tokenizer's files?
static bool tokenizer_is_in(const char *dir) {
    char json[PATH_MAX], merges[PATH_MAX];
    path_join(json, dir, tokenizer_files[FILE_JSON]);
    path_join(merges, dir, tokenizer_files[FILE_MERGES]);
    return path_exists(json) || path_exists(merges);
}

// Opens the tokenizer of a directory: tokenizer.json, else vocab.json and merges.txt. NULL and the
// reason in err if a file is not there, or tokenizer.json is not supported; the program ends if one
// of the other two is damaged.
static Tokenizer *tokenizer_open(const char *dir, Error *err) {
    char path[PATH_MAX], *text;
    size_t n = 0;
    path_join(path, dir, tokenizer_files[FILE_JSON]);
    if (path_exists(dir) && !path_is_directory(dir)) {
        error_set(err, "%.200s is a file: name its folder", dir);
        return NULL;
    }
    const bool json = path_exists(path);
    if (!json) path_join(path, dir, tokenizer_files[FILE_VOCAB]);
    if ((text = text_read(path, &n, err)) == NULL) return NULL;
    if (json) return tokenizer_parse_json(dir, true, text, n, err);
    path_join(path, dir, tokenizer_files[FILE_MERGES]);
    char *merges = text_read(path, &n, err);
    Tokenizer *t = merges != NULL ? tokenizer_parse(dir, text, merges) : NULL;
    path_join(path, dir, "added_tokens.json");
    if (ranks.rank == 0 && path_exists(path))
        fprintf(stderr, "tide: warning: %s is not read: no text becomes a token that it adds to "
                "vocab.json, and what is saved lacks it\n", path);
    free(text);
    free(merges);
    return t;
}

// ---------------------------------------------------------------------------------------------
// Text to tokens

enum {
    TOKENIZER_PLAIN = 1,    // a user's text: special tokens in it are text
    TOKENIZER_GOES_ON = 2,  // a text that stands behind another one
    TOKENIZER_INSIDE = 4    // a text that stands behind an added token
};

// Encodes a byte-level piece, in which numbers may be pieces of their own: white space in front of
// one is at the end of a text.
static void encode_bytes(const Tokenizer *t, const char *s, size_t n, Tokens *out) {
    for (size_t at = 0, end, length = 0; at < n; at = end + length) {
        end = t->steps & STEP_DIGITS ? at : n;  // of the words up to the next number
        while (end < n && !(word_bits(t->classes, s + end, n - end, &length) & WORD_NUMERIC))
            end += length;
        for (size_t word; at < end; at += word) {
            word = word_length(t->rule, t->classes, s + at, end - at);
            tokenizer_word(t, s + at, word, out);
        }
        if (end < n) tokenizer_word(t, s + end, length, out);
    }
}

// Encodes a piece in the style of SentencePiece. The piece is one word, but cut between two bytes
// that no token has side by side it becomes the same tokens, faster.
static void encode_spaced(const Tokenizer *t, const char *s, size_t n, Tokens *out) {
    const unsigned char *u = (const unsigned char *)s;
    for (size_t at = 0, end = 1; at < n; at = end++) {
        while (end < n && t->joins[u[end - 1] << 8 | u[end]]) end++;
        tokenizer_word(t, s + at, end - at, out);
    }
}

// Returns a text of *n bytes with a space for each U+2581, and maybe one in front: itself, if
// nothing changes, else *room, to be freed.
static const char *text_spaced(const char *s, size_t *n, bool front, char **room) {
    if (!front && memmem(s, *n, TOKENIZER_SPACE, 3) == NULL) return s;
    *room = (char *)malloc(*n + 1);
    if (*room == NULL) fail("out of memory: %zu bytes of text", *n);
    **room = ' ';
    *n = front + tokenizer_spaces(s, *n, *room + front);
    return *room;
}

// Encodes a normalised piece without added tokens.
static void encode_piece(const Tokenizer *t, const char *s, size_t n, int how, Tokens *out) {
    const int steps = t->steps;
    const bool space = s[0] == ' ' || (n >= 3 && memcmp(s, TOKENIZER_SPACE, 3) == 0);
    const bool front = !(how & TOKENIZER_GOES_ON) && ((steps & STEP_ALWAYS)
                    || ((steps & STEP_FIRST) && !(how & TOKENIZER_INSIDE)));
    char *room = NULL;
    if (steps & STEP_METASPACE) s = text_spaced(s, &n, front && !space, &room);
    if (t->byte_level) encode_bytes(t, s, n, out);
    else encode_spaced(t, s, n, out);
    free(room);
}

static void encode_added(const Tokenizer *t, bool normalized, const char *s, size_t n, int how,
                         Tokens *out);

// Encodes a piece between added tokens that is not normalised yet.
static void encode_raw(const Tokenizer *t, const char *s, size_t n, int how, Tokens *out) {
    char *composed = NULL, *spaced = NULL;
    if (t->steps & STEP_NFC) s = nfc_text(t->classes, s, &n, &composed);
    const bool front = (t->steps & STEP_PREPEND) && !(how & TOKENIZER_GOES_ON);
    if (t->steps & STEP_REPLACE) s = text_spaced(s, &n, front, &spaced);
    encode_added(t, true, s, n, how, out);
    free(composed);
    free(spaced);
}

// Gives the length of the white space at the end (at_end) of a text of n bytes, or at its start. A
// space that stands for U+2581 is none (spaces false).
static size_t encode_white(const Tokenizer *t, const char *s, size_t n, bool at_end, bool spaces) {
    size_t white = 0, length;
    for (size_t at = 0; at < n; at += length) {
        const bool space = word_class(t->classes, s + at, n - at, &length) == UNICODE_SPACE
                        && (spaces || s[at] != ' ');
        if (!space && !at_end) break;
        white = space ? white + length : 0;
    }
    return white;
}

// Cuts out the added tokens whose contents are normalised, or the others, and encodes the pieces
// between them. White space that a token has taken is not in a piece.
static void encode_added(const Tokenizer *t, bool normalized, const char *s, size_t n, int how,
                         Tokens *out) {
    const bool spaces = !normalized || !(t->steps & STEP_REPLACE);
    const AddedToken *a;
    size_t done = 0, at = 0;
    do {
        a = added_find(&t->added[normalized], s, n, &at);
        size_t from = a != NULL ? at : n, to = a != NULL ? at + a->length : n;
        at = to;
        if (a != NULL && a->special && (how & TOKENIZER_PLAIN)) continue;
        if (a != NULL && a->lstrip && from < done) from = done;
        if (a != NULL && a->lstrip)
            from -= encode_white(t, s + done, from - done, true, spaces);
        if (a != NULL && a->rstrip) to += encode_white(t, s + to, n - to, false, spaces);
        if (from > done)
            (normalized ? encode_piece : encode_raw)(t, s + done, from - done, how, out);
        if (a != NULL && from < to) tokens_add(out, a->id);
        how = (how & TOKENIZER_PLAIN) | TOKENIZER_INSIDE;
        done = to;
    } while (a != NULL);
}

// Encodes n bytes of a text; how: any of TOKENIZER_PLAIN and the others. Memory beyond the list is
// a few copies of the longest piece, and 24 bytes per byte of the longest word.
static void tokenizer_encode(const Tokenizer *t, const char *text, size_t n, int how, Tokens *out) {
    encode_added(t, false, text, n, how, out);
}

// Encodes n bytes from byte `at` on of a document of `all` bytes to train on. In front of the
// document stands the token that begins every text, or else, as in GPT-2's training, the one that
// ends a text, unless no document stands before this one (first); behind it Tokenizer.behind.
static void document_encode(const Tokenizer *t, const char *text, size_t all, size_t at, size_t n,
                            bool first, Tokens *out) {
    const int front = t->bos >= 0 ? t->bos : t->behind >= 0 || first ? -1 : t->eot;
    if (at == 0 && front >= 0) tokens_add(out, (uint32_t)front);
    tokenizer_encode(t, text + at, n, at > 0 ? TOKENIZER_GOES_ON : 0, out);
    if (at + n == all && t->behind >= 0) tokens_add(out, (uint32_t)t->behind);
}

// Does this token end what a model writes?
static bool tokenizer_ends(const Tokenizer *t, int32_t id) {
    for (size_t i = 0; i < t->stops.count; i++) if ((int32_t)t->stops.ids[i] == id) return true;
    return id >= 0 && id == t->eot;
}

// ---------------------------------------------------------------------------------------------
// Tokens to text

// Gives the bytes of one token, not NUL-terminated; *length is 0 if there is no such id. The text
// of a sequence is the bytes of its tokens behind each other.
static const char *tokenizer_token(const Tokenizer *t, uint32_t id, size_t *length) {
    *length = id < t->vocab ? t->tokens[id].length : 0;
    if (*length == 0) return "";
    *length += t->tokens[id].front;
    return t->bytes + t->tokens[id].start - t->tokens[id].front;
}

// Writes the tokenizer's files into an existing directory, as they were read, so that the
// transformers library and tokenizer_open() read the same tokenizer again. Each file is replaced at
// once.
static void tokenizer_save(const Tokenizer *t, const char *dir) {
    char path[PATH_MAX];
    for (int i = 0; i < TOKENIZER_FILES; i++) {
        Error err;
        if (t->files[i].text == NULL) continue;
        path_join(path, dir, tokenizer_files[i]);
        FILE *f = replace_open(path, &err);
        if (f != NULL) fwrite(t->files[i].text, 1, t->files[i].length, f);
        if (f == NULL || !replace_close(f, path, &err)) fail("%s", err.text);
    }
}

#endif
