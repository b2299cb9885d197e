// tokenizer.h: text to tokens and back, with the ids of Hugging Face's tokenizers.
//
//     tokenizer_bytes()    makes a tokenizer in which a byte is a token
//     tokenizer_open()     reads the tokenizer of a directory; the texts of files may be given
//     tokenizer_save()     writes the files of a tokenizer
//     tokenizer_encode()   encodes a text
//     tokenizer_text()     encodes a text, and adds a token in front and a token behind
//     document_front()     the token in front of a document to train on
//     tokenizer_token()    the text of one token
//     tokenizer_added()    the id of an added token; tokenizer_ends(): does a token end a text?
//
// A text is encoded in four steps. A family of models may leave some out:
// 1. Added tokens, such as <|im_end|>, are cut out. The pieces between them are encoded separately.
// 2. A piece is normalised: composed (nfc.h), or given a space in front. Then added tokens whose
//    flag `normalized` is true are cut out: they are searched for only now.
// 3. A byte-level piece is cut into words (words.h). In the style of SentencePiece it is one word.
// 4. The symbols of each word are merged (vocabulary.h).
// A directory has a tokenizer.json, whose parts describe the steps, or vocab.json and merges.txt of
// GPT-2 or OPT. An unknown part is refused by its name: an error is better than wrong ids. Any
// bytes are a text: a byte that is not UTF-8 counts as a code point.
// Sources: Radford et al. 2019 (section 2.2); Hugging Face tokenizers 0.23.
#ifndef TIDE_TOKENIZER_H
#define TIDE_TOKENIZER_H
#include "nfc.h"
#include "vocabulary.h"

#define TOKENIZER_EOT "<|endoftext|>"

// A tokenizer's files, in the order of saving. Needed: FILE_JSON, or FILE_VOCAB and FILE_MERGES.
enum { FILE_CONFIG, FILE_GENERATION, FILE_MAP, FILE_ADDED, FILE_TEMPLATE, FILE_JSON = 6, FILE_VOCAB,
       FILE_MERGES, BESIDE_MODEL = FILE_TEMPLATE };
static const char *const tokenizer_files[TOKENIZER_FILES] = {
    "tokenizer_config.json", "generation_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "tokenizer.model", "tokenizer.json", "vocab.json",
    "merges.txt"};

// ---------------------------------------------------------------------------------------------
// Added tokens

// Adds a token to a list. content: its n bytes in the file. known: the token is in the vocabulary.
// flags: a value for each of added_flags.
static void added_push(Tokenizer *t, const char *content, size_t n, uint32_t id, bool known,
                       const int *flags) {
    const bool normalized = flags[2], front = normalized && (t->steps & STEP_PREPEND);
    AddedTokens *list = &t->added[normalized];
    char *room = ALLOC(char, 4 * n + 2, "added tokens"), *composed = NULL;
    AddedToken a = {.content = room, .name = room + 3 * n + 1, .length = 0, .id = id,
                    .special = flags[1] != 0, .normalized = normalized, .lstrip = flags[3] != 0,
                    .rstrip = flags[4] != 0};
    memcpy(a.name, content, n);
    if (normalized && (t->steps & STEP_NFC)) content = nfc_text(content, &n, &composed);
    a.content[0] = ' ';
    if (front) n = tokenizer_spaces(content, n, a.content + 1);
    else memcpy(a.content, content, n);
    a.length = front + n;
    free(composed);
    if (known && front) t->bytes[t->used++] = ' ';
    if (!known) tokenizer_store(t, id, a.content, a.length);
    else if (front) tokenizer_store(t, id, a.name, strlen(a.name));
    t->tokens[id].front = known && front;
    list->tokens = (AddedToken *)array_grow(list->tokens, list->count, sizeof a, "added tokens");
    list->tokens[list->count++] = a;
    list->first[(unsigned char)a.content[0]] = true;
}

// Orders added tokens. A longer content is first.
static int added_compare(const void *a, const void *b) {
    const AddedToken *x = (const AddedToken *)a, *y = (const AddedToken *)b;
    if (x->length != y->length) return x->length > y->length ? -1 : 1;
    return memcmp(x->content, y->content, x->length);
}

// Moves *at to the next place with an added token's content. Returns the longest token there, or
// NULL if there is none.
static const AddedToken *added_find(const AddedTokens *list, const char *s, size_t n, size_t *at) {
    size_t i = list->count > 0 ? *at : n;
    for (; i < n; i++) {
        if (!list->first[(unsigned char)s[i]]) continue;
        *at = i;
        for (const AddedToken *a = list->tokens; a < list->tokens + list->count; a++)
            if (a->length <= n - i && memcmp(a->content, s + i, a->length) == 0) return a;
    }
    return NULL;
}

// Returns the id of the added token with this content, or TOKENIZER_NONE.
static uint32_t tokenizer_added(const Tokenizer *t, const char *content) {
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < t->added[k].count; i++)
            if (strcmp(t->added[k].tokens[i].name, content) == 0) return t->added[k].tokens[i].id;
    return TOKENIZER_NONE;
}

// Returns the added token with this id, or NULL.
static AddedToken *added_token(const Tokenizer *t, int32_t id) {
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < t->added[k].count; i++)
            if ((int32_t)t->added[k].tokens[i].id == id) return &t->added[k].tokens[i];
    return NULL;
}

// ---------------------------------------------------------------------------------------------
// tokenizer.json

static const char *const added_flags[5] = {"single_word", "special", "normalized", "lstrip",
                                           "rstrip"};

typedef struct {
    Tokenizer *t;
    const char *path;          // for messages
    Json *root;
    const Json *vocabulary;
    Json *beside[5];           // parsed: tokenizer_files[0 .. 3], and config.json; NULL: missing
    const char *config;        // path of tokenizer_config.json
    size_t next;               // the id of the next added token that is not in the vocabulary
    uint32_t bos, eos;         // bos_token and eos_token, from FILE_CONFIG or FILE_MAP
    Error *err;
} PartReader;

// The steps that are known here, in the order that they must have in a part. members: keys of the
// step, each followed by the value that it must have.
static const struct { const char *part, *type; int step; const char *members[7]; } known_steps[] = {
    {"normalizer", "NFC", STEP_NFC, {NULL}},
    {"normalizer", "Prepend", STEP_PREPEND, {"prepend", TOKENIZER_SPACE}},
    {"normalizer", "Replace", STEP_REPLACE, {"String", " ", "content", TOKENIZER_SPACE}},
    {"pre_tokenizer", "Digits", STEP_DIGITS, {"individual_digits", "true"}},
    {"pre_tokenizer", "Split", STEP_SPLIT, {"behavior", "Isolated", "invert", "false"}},
    {"pre_tokenizer", "ByteLevel", STEP_BYTES, {"add_prefix_space", "false"}},
    {"pre_tokenizer", "Metaspace", STEP_METASPACE,
     {"replacement", TOKENIZER_SPACE, "prepend_scheme", "first", "split", "false"}},
    {"decoder", "ByteLevel", STEP_UNBYTES, {NULL}},
    {"decoder", "Replace", STEP_SPACES, {"String", TOKENIZER_SPACE, "content", " "}},
    {"decoder", "ByteFallback", STEP_FALLBACK, {NULL}},
    {"decoder", "Fuse", STEP_FUSE, {NULL}},
    {"decoder", "Strip", STEP_STRIP, {"content", " ", "start", "1", "stop", "0"}},
    {"post_processor", "ByteLevel", 0, {NULL}},  // changes no tokens, only offsets
    {"post_processor", "TemplateProcessing", 0, {NULL}}};

static bool part_refuse(PartReader *r, const char *part, const char *what) {
    return error_set(r->err, "%.200s: %s %.250s: not supported", r->path, part, what);
}

// Reads a part of tokenizer.json: null, a step, or a Sequence of steps.
static bool read_part(PartReader *r, const char *name, const char *list) {
    const size_t known = sizeof known_steps / sizeof known_steps[0];
    const Json *part = json_get(r->root, name), *all = json_get(part, list);
    const bool sequence = json_is(json_get(part, "type"), "Sequence") && all != NULL
                       && all->type == JSON_ARRAY;
    char what[200];
    size_t k = 0;
    for (const Json *step = sequence ? all->child : part; step != NULL;
         step = sequence ? step->next : NULL, k++) {
        const Json *type = json_get(step, "type"), *pattern = json_get(step, "pattern");
        while (k < known && (strcmp(known_steps[k].part, name) != 0
                             || !json_is(type, known_steps[k].type))) k++;
        if (k == known)
            return part_refuse(r, name, type != NULL && type->type == JSON_STRING
                               ? type->string : "without a type");
        for (const char *const *m = known_steps[k].members; *m != NULL; m += 2) {
            const Json *value = json_get(strcmp(*m, "String") == 0 ? pattern : step, *m);
            if (value != NULL && value->length == strlen(m[1])
                && memcmp(value->string, m[1], value->length) == 0) continue;
            snprintf(what, sizeof what, "%s with %s other than %s", type->string, m[0], m[1]);
            return part_refuse(r, name, what);
        }
        for (int rule = 0; rule < RULES; rule++)
            if (json_is(json_get(pattern, "Regex"), word_rules[rule].expression))
                r->t->rule = &word_rules[rule];
        if (known_steps[k].step == STEP_SPLIT && r->t->rule == NULL)
            return part_refuse(r, name, "Split with an expression other than GPT-2's, Llama-3's, "
                               "Qwen2's or Tekken's");
        if (known_steps[k].step == STEP_BYTES && json_flag(step, "use_regex", true) != 0)
            r->t->steps |= STEP_WORDS;
        r->t->steps |= known_steps[k].step;
    }
    return true;
}

// Reads all parts but the post_processor. Refuses an unknown combination of steps.
static bool read_steps(PartReader *r) {
    static const int bytes = STEP_BYTES | STEP_UNBYTES;
    static const int spaced = STEP_SPACES | STEP_FALLBACK | STEP_FUSE;
    Tokenizer *t = r->t;
    if (!read_part(r, "normalizer", "normalizers")
        || !read_part(r, "pre_tokenizer", "pretokenizers") || !read_part(r, "decoder", "decoders"))
        return false;
    if (t->rule == NULL) t->rule = &word_rules[RULE_GPT2];
    t->byte_level = (t->steps & STEP_BYTES) != 0;
    const int steps = t->steps & ~(t->byte_level ? STEP_NFC : STEP_STRIP);
    if (steps == (STEP_WORDS | bytes) || steps == (STEP_DIGITS | STEP_WORDS | bytes)
        || steps == (STEP_SPLIT | bytes)
        || steps == (STEP_PREPEND | STEP_REPLACE | spaced) || steps == (STEP_METASPACE | spaced))
        return true;
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
    size_t bytes = added != NULL ? added->length : 0;  // of all JSON with added tokens
    if (json_get(m, "type") != NULL && !json_is(json_get(m, "type"), "BPE"))
        return part_refuse(r, "model", "of a type other than BPE");
    if (vocabulary == NULL || vocabulary->type != JSON_OBJECT || vocabulary->count == 0
        || merges == NULL || merges->type != JSON_ARRAY || fallback < 0 || ignore < 0)
        return part_refuse(r, "model", "without vocab, merges, true and false");
    for (int i = 0; i < 3; i++)
        if (!json_empty(json_get(m, unused[i]))) return part_refuse(r, "model with", unused[i]);
    for (int k = 0; k < BESIDE_MODEL; k++) bytes += r->beside[k] != NULL ? r->beside[k]->length : 0;
    if (!tokenizer_read_tokens(t, r->path, vocabulary, bytes, r->err)) return false;
    t->base = t->vocab;
    r->next = vocabulary->count;
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
    for (int i = '\t'; i <= 0xF0; i++)  // ordinary text has \t .. \r, ' ' .. 0xBF, 0xC2 .. 0xF0
        if (t->byte_id[i] == TOKENIZER_NONE && (i <= '\r' || i >= ' ') && (i & 0xFE) != 0xC0)
            return part_refuse(r, "model", "with bytes of ordinary text that have no token");
    return tokenizer_read_merges(t, r->path, vocabulary, merges, r->err);
}

// Adds a token of tokenizer.json, or, if `beside`, of another file. A token that the vocabulary
// lacks must have the next id after the vocabulary. If a token of tokenizer.json has this id, its
// content and `normalized` must be equal, and its other flags are replaced.
static bool added_read(PartReader *r, const Json *text, size_t id, const int *flags, bool beside) {
    Tokenizer *t = r->t;
    AddedToken *old = beside && id < t->vocab ? added_token(t, (int32_t)id) : NULL;
    if (old != NULL) {
        if (strcmp(old->name, text->string) != 0 || old->normalized != flags[2])
            return error_set(r->err, "%.200s: \"%.60s\" has the id %zu, which is that of \"%.60s\" "
                             "with normalized %s", r->path, text->string, id, old->name,
                             old->normalized ? "true" : "false");
        old->special = flags[1] != 0;
        old->lstrip = flags[3] != 0;
        old->rstrip = flags[4] != 0;
        return true;
    }
    const uint32_t known = vocabulary_find(r->vocabulary, text->string, text->length);
    const size_t given = known != TOKENIZER_NONE ? known : r->next++;
    const bool taken = known == TOKENIZER_NONE && given < t->vocab && t->tokens[given].length > 0;
    if (id != given || taken || given >= TOKENIZER_MAX_IDS)
        return error_set(r->err, "%.200s: added_tokens: \"%.60s\" has the id %zu, and Hugging Face "
                         "gives it %zu", r->path, text->string, id, given);
    if (given >= t->vocab) t->vocab = given + 1;
    added_push(t, text->string, text->length, (uint32_t)given, known != TOKENIZER_NONE, flags);
    return true;
}

// Returns the text of a token, which is a string, or an object with "content"; NULL: neither.
static const Json *token_text(const Json *value) {
    const Json *text = json_get(value, "content") != NULL ? json_get(value, "content") : value;
    return text != NULL && text->type == JSON_STRING && text->length > 0 ? text : NULL;
}

// Adds a special token of a file beside tokenizer.json, if the vocabulary has it. Returns its id.
static uint32_t added_name(PartReader *r, const Json *value) {
    const Json *text = token_text(value);
    int flags[5] = {0, 1};
    if (text == NULL) return TOKENIZER_NONE;
    const uint32_t old = tokenizer_added(r->t, text->string);
    if (old != TOKENIZER_NONE) return old;
    const uint32_t id = vocabulary_find(r->vocabulary, text->string, text->length);
    for (int f = 2; f < 5; f++) flags[f] = json_flag(value, added_flags[f], false) == 1;
    if (id != TOKENIZER_NONE) added_push(r->t, text->string, text->length, id, true, flags);
    return id;
}

// Adds the tokens of tokenizer.json, the tokens with an id in tokenizer_config.json, and those
// tokens of the vocabulary that other files call special.
static bool read_added(PartReader *r) {
    const char *const path = r->path;
    const Json *const lists[2] = {json_get(r->root, "added_tokens"),
                                  json_get(r->beside[FILE_CONFIG], "added_tokens_decoder")};
    if (lists[1] == NULL && r->t->files[FILE_ADDED].text != NULL)
        return part_refuse(r, "added_tokens.json without",
                           "added_tokens_decoder in tokenizer_config.json");
    for (int k = 0; k < 2; k++, r->path = path) {
        if (k == 1) r->path = r->config;
        if (lists[k] != NULL && lists[k]->type != (k == 0 ? JSON_ARRAY : JSON_OBJECT))
            return part_refuse(r, "added_tokens", "other than a list");
        for (const Json *i = lists[k] != NULL ? lists[k]->child : NULL; i != NULL; i = i->next) {
            const Json *text = token_text(json_get(i, "content"));
            char *end = NULL;
            size_t id = k == 1 ? strtoul(i->key, &end, 10) : 0;
            bool wrong = k == 1 ? *end != '\0' : !json_size(json_get(i, "id"), &id);
            int flags[5];
            for (int f = 0; f < 5; f++)  // `normalized` of other files: !special by default
                wrong |= (flags[f] = json_flag(i, added_flags[f],
                                               k > 0 && f == 2 && !flags[1])) < 0;
            if (wrong || flags[0] || text == NULL)
                return part_refuse(r, "added_tokens", !wrong && flags[0] ? "with single_word"
                                   : "without content, id, true and false");
            if (!added_read(r, text, id, flags, k > 0)) return false;
        }
    }
    const Json *made = r->t->files[FILE_JSON].text == NULL ? r->root : NULL;  // by merges_text()
    const Json *const named[3] = {json_get(made, "default_tokens"), r->beside[FILE_CONFIG],
                                  r->beside[FILE_MAP]};  // a later one has precedence
    for (int k = 0; k < 3; k++) {
        const Json *m = named[k] != NULL ? named[k]->child : NULL;
        for (; m != NULL && m->key != NULL; m = m->next) {  // e.g. "eos_token"
            const bool one = token_text(m) != NULL;
            const char *end = strrchr(m->key, '_');
            if (end == NULL || (strcmp(end, "_token") != 0 && strcmp(end, "_tokens") != 0)
                || (k < 2 && one && json_member(named[k + 1], m->key) != NULL)) continue;
            for (const Json *i = one ? m : m->child; i != NULL; i = one ? NULL : i->next) {
                const uint32_t id = added_name(r, i);
                if (id == TOKENIZER_NONE) continue;
                if (strcmp(m->key, "bos_token") == 0) r->bos = id;
                if (strcmp(m->key, "eos_token") == 0) r->eos = id;
            }
        }
    }
    for (int k = 0; k < 2; k++) {
        const AddedTokens *list = &r->t->added[k];
        if (list->count > 0) qsort(list->tokens, list->count, sizeof *list->tokens, added_compare);
        for (size_t i = 1; i < list->count; i++)
            if (added_compare(&list->tokens[i - 1], &list->tokens[i]) == 0)
                return error_set(r->err, "%.200s: added_tokens: \"%.60s\" is there twice", r->path,
                                 list->tokens[i].name);
    }
    return true;
}

// Reads the tokens that the template of a post_processor puts in front of a text and after it.
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
    if (!text) return part_refuse(r, "post_processor", "without a text");
    return r->t->bos < 0 || json_flag(r->beside[FILE_CONFIG], "add_bos_token", true) != 0
        || part_refuse(r, "post_processor", "with add_bos_token false in tokenizer_config.json");
}

// Sets the token that ends a text (eos_token, or else a default), and the tokens that end an answer
// (eos_token_id in generation_config.json, or else in config.json).
static void read_ends(PartReader *r) {
    Tokenizer *t = r->t;
    const Json *config = r->beside[FILE_CONFIG];
    uint32_t eot = r->eos;
    for (int k = FILE_GENERATION; k <= BESIDE_MODEL && t->stops.count == 0;
         k += BESIDE_MODEL - FILE_GENERATION) {
        const Json *ids = json_get(r->beside[k], "eos_token_id");
        const bool list = ids != NULL && ids->type == JSON_ARRAY;
        if (list) ids = ids->child;
        for (size_t id = 0; json_size(ids, &id); ids = list ? ids->next : NULL)
            if (id < t->vocab && t->tokens[id].length > 0) tokens_add(&t->stops, (uint32_t)id);
        t->generation_stops = k == FILE_GENERATION && t->stops.count > 0;
    }
    if (t->files[FILE_JSON].text == NULL) {
        if (json_flag(config, "add_bos_token", false) == 1) t->bos = (int)r->bos;
        if (json_flag(config, "add_eos_token", false) == 1) t->behind = (int)eot;
    } else {
        if (eot == TOKENIZER_NONE && t->stops.count > 0) eot = t->stops.ids[0];
        if (eot == TOKENIZER_NONE) eot = tokenizer_added(t, TOKENIZER_EOT);
        if (eot == TOKENIZER_NONE) eot = tokenizer_added(t, "</s>");
    }
    t->eot = (int)eot;  // TOKENIZER_NONE is -1
    t->named_bos = (int)r->bos;
    if (t->behind < 0 && t->bos >= 0 && t->bos != t->eot) t->behind = t->eot;
}

// Are vocab.json and merges.txt for transformers' GPT2Tokenizer? tokenizer_config.json tells the
// class, or else config.json. If they are not, r->err has the reason.
static bool merges_known(const PartReader *r, const char *dir) {
    static const char *const names[4] = {"GPT2Tokenizer", "GPT2TokenizerFast", "gpt2", "opt"};
    const Json *name = json_get(r->beside[FILE_CONFIG], "tokenizer_class");
    const Json *model = r->beside[BESIDE_MODEL];
    if (name == NULL) name = json_get(model, "tokenizer_class");
    if (name == NULL) name = json_get(model, "model_type");
    for (int k = 0; k < 4; k++) if (name == NULL || json_is(name, names[k])) return true;
    return error_set(r->err, "%.200s has vocab.json and merges.txt of %.40s, and only those of "
                     "GPT2Tokenizer are read: save it with the fast tokenizer, which writes "
                     "tokenizer.json", dir, name->type == JSON_STRING ? name->string : "no name");
}

// Adds tokenizer_class to tokenizer_config.json, or makes this file. Without it, readers would take
// the class by model_type, which may be another family's. tokens: members for a new file.
static void merges_name(PartReader *r, const char *tokens) {
    const Json *config = r->beside[FILE_CONFIG];
    TokenizerFile *file = &r->t->files[FILE_CONFIG];
    char *before = file->text;
    if (config != NULL
        && (config->type != JSON_OBJECT || json_get(config, "tokenizer_class") != NULL)) return;
    FILE *f = text_open(&file->text, &file->length);
    fputs("{\"tokenizer_class\": \"GPT2Tokenizer\"", f);
    if (config != NULL)
        fprintf(f, "%s%s", config->count > 0 ? ", " : "", strchr(before, '{') + 1);
    else  // a token may be null; if it were left out, transformers would add <|endoftext|>
        fprintf(f, ", \"add_prefix_space\": false, \"clean_up_tokenization_spaces\": false, %s}\n",
                tokens);
    text_close(f);
    free(before);
}

// Converts vocab.json and merges.txt to the text of a tokenizer.json, to be freed. An empty line
// becomes a version line, which is skipped. On error returns NULL, with the reason in r->err.
static char *merges_text(PartReader *r, const char *dir, size_t *length) {
    const char *vocab = r->t->files[FILE_VOCAB].text, *merges = r->t->files[FILE_MERGES].text;
    const Json *config = r->beside[FILE_CONFIG];
    const Json *type = json_get(r->beside[BESIDE_MODEL], "model_type");
    char *text = NULL, tokens[160], end[32];
    size_t n;
    Error inner = {"not an object"};
    if (!merges_known(r, dir)) return NULL;
    Json *json = json_parse(vocab, strlen(vocab), &inner);
    if (json == NULL || json->type != JSON_OBJECT || *merges == '\0') {
        error_set(r->err, "%.200s/%s: %.290s", dir, *merges == '\0' ? "merges.txt" : "vocab.json",
                  *merges == '\0' ? "empty" : inner.text);
        free(json);
        return NULL;
    }
    // OPT ends a text with </s>. Its vocabulary also has <|endoftext|>, which OPT never uses.
    const char *name = config == NULL && (type != NULL ? json_is(type, "opt")
                       : json_member(json, "<s>") != NULL) ? "</s>" : TOKENIZER_EOT;
    snprintf(end, sizeof end, json_member(json, name) != NULL ? "\"%s\"" : "null", name);
    snprintf(tokens, sizeof tokens, "\"bos_token\": %s, \"eos_token\": %s, \"unk_token\": %s", end,
             end, end);  // what GPT2Tokenizer takes if tokenizer_config.json has no such member
    free(json);
    FILE *f = text_open(&text, length);
    fprintf(f, "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": %s}, "
            "\"decoder\": {\"type\": \"ByteLevel\"}, \"default_tokens\": {%s}, "
            "\"model\": {\"unk_token\": \"%s\", \"vocab\": %s, \"merges\": [",
            json_flag(config, "add_prefix_space", false) == 1 ? "true" : "false", tokens, name,
            vocab);
    for (const char *s = merges; *s != '\0'; s += n + (s[n] == '\n')) {
        n = strcspn(s, "\n");
        const size_t used = n > 0 && s[n - 1] == '\r' ? n - 1 : n;
        fputs(s == merges ? "" : ", ", f);
        json_write_string(f, used > 0 ? s : "#version", used > 0 ? used : 8);
    }
    fputs("]}}", f);
    text_close(f);
    merges_name(r, tokens);
    return text;
}

// Fills *t, which is zero, from the files of dir: tokenizer.json, or else vocab.json and
// merges.txt, and the other tokenizer_files. Does not read a file whose text is in t->files
// already. dir NULL: reads no file. On error returns NULL, with the reason in err.
static Tokenizer *tokenizer_open(Tokenizer *t, const char *dir, Error *err) {
    char path[PATH_MAX] = "", config[PATH_MAX], *made = NULL;
    PartReader reader = {.t = t, .path = path, .config = config, .bos = TOKENIZER_NONE,
                         .eos = TOKENIZER_NONE, .err = err}, *r = &reader;
    bool ok = true;
    t->bos = t->named_bos = t->eot = t->behind = -1;
    word_classes_make();
    for (int i = 0; ok && dir != NULL && i < TOKENIZER_FILES; i++) {
        TokenizerFile *file = &t->files[i];
        const bool needed = i > FILE_JSON && t->files[FILE_JSON].text == NULL;
        path_join(path, dir, tokenizer_files[i]);
        if (file->text != NULL || !(needed || path_exists(path))) continue;
        file->text = (needed || i == FILE_JSON ? text_read : file_read)(path, &file->length, err);
        ok = file->text != NULL;
        const bool old = i == FILE_ADDED || (i == FILE_MAP  // added_tokens_decoder has its tokens
                         && json_get(r->beside[FILE_CONFIG], "added_tokens_decoder") != NULL);
        if (ok && i < BESIDE_MODEL && !old)
            ok = (r->beside[i] = json_named(path, file->text, file->length, err)) != NULL;
    }
    const char *text = t->files[FILE_JSON].text;
    size_t n = t->files[FILE_JSON].length;
    if (dir != NULL) path_join(config, dir, tokenizer_files[FILE_CONFIG]);
    if (dir != NULL) path_join(path, dir, "config.json");
    if (ok && path_exists(path)) ok = (r->beside[BESIDE_MODEL] = json_read(path, err)) != NULL;
    if (dir != NULL)
        path_join(path, dir, text ? tokenizer_files[FILE_JSON] : "vocab.json and merges.txt");
    if (ok && text == NULL) ok = (text = made = merges_text(r, dir, &n)) != NULL;
    if (ok) ok = (r->root = json_named(path, text, n, err)) != NULL;
    if (json_get(r->root, "version") != NULL && !json_is(json_get(r->root, "version"), "1.0"))
        ok = part_refuse(r, "version", "other than 1.0");
    if (json_flag(r->beside[FILE_CONFIG], "split_special_tokens", false) == 1)
        ok = part_refuse(r, "tokenizer_config.json with", "split_special_tokens true");
    ok = ok && read_steps(r) && read_model(r) && read_added(r) && read_template(r);
    if (ok) read_ends(r);
    for (int k = 0; k <= BESIDE_MODEL; k++) free(r->beside[k]);
    free(r->root);
    free(made);
    return ok ? t : NULL;
}

// Makes a tokenizer of 256 tokens without merges. The id of a token is the value of its byte.
static Tokenizer *tokenizer_bytes(void) {
    Tokenizer *t = ALLOC(Tokenizer, 1, "tokenizer");
    TokenizerFile *vocab = &t->files[FILE_VOCAB], *merges = &t->files[FILE_MERGES];
    char utf8[4];
    Error err;
    FILE *f = text_open(&vocab->text, &vocab->length);
    for (int i = 0; i < 256; i++) {
        fprintf(f, i == 0 ? "{" : ", ");
        json_write_string(f, utf8, utf8_encode(tokenizer_byte_to_char(i), utf8));
        fprintf(f, ": %d", i);
    }
    fprintf(f, "}\n");
    text_close(f);
    merges->text = strdup("#version: 0.2\n");
    merges->length = strlen(merges->text);
    return tokenizer_open(t, NULL, &err);
}

// ---------------------------------------------------------------------------------------------
// Text to tokens

enum {
    TOKENIZER_PLAIN = 1,    // special tokens in this text are text
    TOKENIZER_GOES_ON = 2,  // another text stands before this one
    TOKENIZER_INSIDE = 4,   // an added token stands before this text
    TOKENIZER_PIECE = 8     // this text is a piece between added tokens, not normalised yet
};

// Encodes a byte-level piece. With STEP_DIGITS each numeric character is a word by itself, and the
// text before it is cut into words as if it ended there.
static void encode_bytes(const Tokenizer *t, const char *s, size_t n, Tokens *out) {
    for (size_t at = 0, end, length = 0; at < n; at = end + length) {
        end = t->steps & STEP_DIGITS ? at : n;  // the start of the next number
        while (end < n && !(word_bits(s + end, n - end, &length) & WORD_NUMERIC))
            end += length;
        for (size_t word; at < end; at += word) {
            word = word_length(t->rule, s + at, end - at);
            tokenizer_word(t, s + at, word, out);
        }
        if (end < n) tokenizer_word(t, s + end, length, out);
    }
}

// Encodes a piece in the style of SentencePiece, where it is one word. Cuts this word between two
// bytes that no token has side by side: the tokens are the same, and merging is faster.
static void encode_spaced(const Tokenizer *t, const char *s, size_t n, Tokens *out) {
    const unsigned char *u = (const unsigned char *)s;
    for (size_t at = 0, end = 1; at < n; at = end++) {
        while (end < n && t->joins[u[end - 1] << 8 | u[end]]) end++;
        tokenizer_word(t, s + at, end - at, out);
    }
}

// Replaces each U+2581 in a text of *n bytes by a space. front: also puts a space in front. Returns
// s if nothing changes; else returns a copy and stores it in *room, to be freed.
static const char *text_spaced(const char *s, size_t *n, bool front, char **room) {
    if (!front && memmem(s, *n, TOKENIZER_SPACE, 3) == NULL) return s;
    *room = (char *)malloc(*n + 1);
    if (*room == NULL) fail("out of memory: %zu bytes of text", *n);
    **room = ' ';
    *n = front + tokenizer_spaces(s, *n, *room + front);
    return *room;
}

// Encodes a normalised piece without added tokens. STEP_METASPACE puts a space in front of a text's
// first piece, unless the piece begins with a space.
static void encode_piece(const Tokenizer *t, const char *s, size_t n, int how, Tokens *out) {
    const bool space = s[0] == ' ' || (n >= 3 && memcmp(s, TOKENIZER_SPACE, 3) == 0);
    const bool front = !space && !(how & (TOKENIZER_GOES_ON | TOKENIZER_INSIDE));
    char *room = NULL;
    if (t->steps & STEP_METASPACE) s = text_spaced(s, &n, front, &room);
    if (t->byte_level) encode_bytes(t, s, n, out);
    else encode_spaced(t, s, n, out);
    free(room);
}

// Returns the length of the white space at the end of a text (at_end), or at its start. Without
// `spaces`, ' ' does not count, because it becomes U+2581, which is no white space.
static size_t encode_white(const char *s, size_t n, bool at_end, bool spaces) {
    size_t white = 0, length;
    for (size_t at = 0; at < n; at += length) {
        const bool space = word_class(s + at, n - at, &length) == UNICODE_SPACE
                        && (spaces || s[at] != ' ');
        if (!space && !at_end) break;
        white = space ? white + length : 0;
    }
    return white;
}

// Encodes a text of n bytes. how: TOKENIZER_PLAIN and the other flags, added up. Cuts out the added
// tokens whose flag normalized is false. Encodes each piece between them by a second call, with the
// flag TOKENIZER_PIECE: the piece is normalised, then the other added tokens are cut out. White
// space before a token with lstrip, or after one with rstrip, is in no piece. Takes memory for a
// few copies of the longest piece, and 32 bytes for each byte of the longest word.
static void tokenizer_encode(const Tokenizer *t, const char *s, size_t n, int how, Tokens *out) {
    const bool normalized = (how & TOKENIZER_PIECE) != 0;
    const bool spaces = !normalized || !(t->steps & STEP_PREPEND);
    const AddedToken *a;
    char *composed = NULL, *spaced = NULL;
    size_t done = 0, at = 0;
    if (normalized && (t->steps & STEP_NFC)) s = nfc_text(s, &n, &composed);
    if (!spaces) s = text_spaced(s, &n, !(how & TOKENIZER_GOES_ON), &spaced);
    do {
        a = added_find(&t->added[normalized], s, n, &at);
        size_t from = a != NULL ? at : n, to = a != NULL ? at + a->length : n;
        at = to;
        if (a != NULL && a->special && (how & TOKENIZER_PLAIN)) continue;
        if (a != NULL && a->lstrip && from < done) from = done;
        if (a != NULL && a->lstrip)
            from -= encode_white(s + done, from - done, true, spaces);
        if (a != NULL && a->rstrip) to += encode_white(s + to, n - to, false, spaces);
        if (from > done && normalized) encode_piece(t, s + done, from - done, how, out);
        else if (from > done)
            tokenizer_encode(t, s + done, from - done, how | TOKENIZER_PIECE, out);
        if (a != NULL && from < to) tokens_add(out, a->id);
        how = (how & ~TOKENIZER_GOES_ON) | TOKENIZER_INSIDE;
        done = to;
    } while (a != NULL);
    free(composed);
    free(spaced);
}

// Adds token `front`, the encoded text, and token `behind` (-1: none). A token is not added where
// the text has it already.
static void tokenizer_text(const Tokenizer *t, const char *text, size_t n, int how, int front,
                           int behind, Tokens *out) {
    const size_t first = out->count + (front >= 0);
    if (front >= 0) tokens_add(out, (uint32_t)front);
    tokenizer_encode(t, text, n, how, out);
    const bool ends = out->count > first && (int)out->ids[out->count - 1] == behind;
    if (front >= 0 && out->count > first && (int)out->ids[first] == front) {
        memmove(out->ids + first - 1, out->ids + first, (out->count - first) * sizeof *out->ids);
        out->count--;
    }
    if (behind >= 0 && !ends) tokens_add(out, (uint32_t)behind);
}

// Returns the token in front of a training document: t->bos. If the tokenizer has neither t->bos
// nor t->behind, the token is t->eot, as in GPT-2's training; but there is none (-1) if `first`: no
// document, or t->eot already, is before this document.
static int document_front(const Tokenizer *t, bool first) {
    return t->bos >= 0 ? t->bos : t->behind >= 0 || first ? -1 : t->eot;
}

// Does this token end a text or an answer of the model?
static bool tokenizer_ends(const Tokenizer *t, int32_t id) {
    for (size_t i = 0; i < t->stops.count; i++) if ((int32_t)t->stops.ids[i] == id) return true;
    return id >= 0 && id == t->eot;
}

// ---------------------------------------------------------------------------------------------
// Tokens to text

// Returns the bytes of one token, without a NUL; *length is 0 if there is no such id. The text of a
// sequence is the texts of its tokens, joined.
static const char *tokenizer_token(const Tokenizer *t, uint32_t id, size_t *length) {
    *length = id < t->vocab ? t->tokens[id].length : 0;
    if (*length == 0) return "";
    *length += t->tokens[id].front;
    return t->bytes + t->tokens[id].start - t->tokens[id].front;
}

// Writes the tokenizer's files into an existing directory, as they were read. Transformers and
// tokenizer_open() then read the same tokenizer. Each file is replaced when it is whole.
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
