// tokenize.c: text to token files in the llm.c format, and a look into such files. See usage().
// Text is mapped and encoded in blocks, JSON lines are read one at a time; what is held in memory
// are the tokens of the shard that is being filled.
#include "blocks.h"
#include "tokens.h"
#include "../tool.h"
#include "../../tide/files/json.h"

static const char *const usage_text =
"tokenize --out PREFIX [options] FILE...\n"
"    Writes PREFIX_train_000000.bin, PREFIX_train_000001.bin .. and PREFIX_val_000000.bin ..\n"
"tokenize --show FILE.bin [--tokenizer DIR] [--tokens N]\n"
"    Prints the header of a token file and its first tokens.\n"
"\n"
"FILE is text, one document, or JSON lines: a JSON object per line, whose \"text\" is a document.\n"
"It is JSON lines if its name ends in .jsonl, .ndjson or .json, or if it begins as they do. The\n"
"token that begins every text stands in front of a document, and the one that ends a text behind\n"
"it; if the tokenizer has the latter alone, it stands in front; if it has none, a newline is put\n"
"after every JSON document. A run that fails leaves no file.\n"
"\n"
"  --tokenizer bytes|DIR  raw bytes (default), or a directory with tokenizer.json, or with\n"
"                         vocab.json and merges.txt\n"
"  --out PREFIX           start of the names of the files to write\n"
"  --shard-tokens N       tokens per file, at most 2147483647 (default 100000000)\n"
"  --val FRACTION         share for the val files, 0 to 1 (default 0): of a text file the end,\n"
"                         cut after a line; of JSON lines every (1/FRACTION)th document\n"
"  --split-at STRING      in text files, a document ends at every STRING, which is dropped; also\n"
"                         white space next to it (example: --split-at '<|endoftext|>')\n"
"  --field NAME           the key of the document in JSON lines (default text)\n"
"  --format auto|text|jsonl  what the files are (default auto: as said above)\n"
"  --show FILE.bin        print this file's header and first tokens\n"
"  --tokens N             how many tokens --show prints (default 64)\n"
"  --help                 print this\n";

// The files of one split. A shard is written when it is full.
typedef struct {
    const char *prefix, *split;
    uint32_t *tokens;
    size_t count, room;       // in the shard that is being filled
    size_t limit;             // tokens per shard
    size_t shards, total;
    size_t documents;
    bool ended;               // the last document has itself the token that ends a text
    int width;
} Output;

static Tokenizer *tok;

static Output outputs[2];     // of training, and held out
static bool whole;            // are they

static void output_path(const Output *o, size_t shard, char path[PATH_MAX]) {
    if (snprintf(path, PATH_MAX, "%s_%s_%06zu.bin", o->prefix, o->split, shard) >= PATH_MAX)
        die("--out: path too long");
}

// Removes, where the program ends with an error, the shards that it has written.
static void remove_parts(void) {
    char path[PATH_MAX];
    for (int i = 0; i < 2 && !whole; i++)
        for (size_t k = 0; k < outputs[i].shards; k++) {
            output_path(&outputs[i], k, path);
            unlink(path);
        }
}

// Refuses what has the name of a shard, since shards of an earlier run beyond the last of this one
// would be read as if they belonged to it; and a name that cannot be written.
static void refuse_old(const Output *o) {
    char pattern[2 * PATH_MAX], path[PATH_MAX];
    glob_t found;
    size_t n = 0;
    for (const char *c = o->prefix; *c != '\0'; c++) {
        if (strchr("*?[]\\", *c) != NULL) pattern[n++] = '\\';
        pattern[n++] = *c;
    }
    snprintf(pattern + n, sizeof pattern - n, "_%s_[0-9]*.bin*", o->split);
    if (glob(pattern, 0, NULL, &found) == 0)
        die("%s exists: remove the shards of %s first, or choose another --out", found.gl_pathv[0],
            o->prefix);
    output_path(o, 0, path);
    output_check("--out", path);
}

static void output_flush(Output *o) {
    char path[PATH_MAX];
    Error err;
    if (o->count == 0) return;
    output_path(o, o->shards, path);
    if (!tokens_write(path, o->tokens, o->count, o->width, &err)) fail("%s", err.text);
    printf("%s: %zu tokens\n", path, o->count);
    fflush(stdout);
    o->shards++;
    o->total += o->count;
    o->count = 0;
}

static void output_tokens(Output *o, const uint32_t *tokens, size_t n) {
    while (n > 0) {
        if (o->count == o->room) {
            o->room = o->room == 0 ? 1 << 16 : 2 * o->room;
            if (o->room > o->limit) o->room = o->limit;
            o->tokens = (uint32_t *)realloc(o->tokens, o->room * sizeof *o->tokens);
            if (o->tokens == NULL) fail("out of memory for %zu tokens", o->room);
        }
        const size_t m = n < o->room - o->count ? n : o->room - o->count;
        memcpy(o->tokens + o->count, tokens, m * sizeof *tokens);
        o->count += m;
        tokens += m;
        n -= m;
        if (o->count == o->limit) output_flush(o);
    }
}

static void output_document(Output *o, const char *text, size_t n) {
    Tokens list = {NULL, 0, 0};
    o->documents += n > 0;
    for (size_t at = 0, block; at < n; at += block, list.count = 0) {
        block = tokenizer_block(tok, text + at, n - at, 1 << 20);
        const bool ends = at + block == n;
        tokenizer_text(tok, text + at, block, at > 0 ? TOKENIZER_GOES_ON : 0,
                       at == 0 ? document_front(tok, o->ended) : -1, ends ? tok->behind : -1,
                       &list);
        if (ends)
            o->ended = list.count > 0 && (int)list.ids[list.count - 1] == tok->eot;
        output_tokens(o, list.ids, list.count);
    }
    free(list.ids);
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static void split_document(Output *o, const char *text, size_t n, const char *split_at) {
    const size_t length = split_at != NULL ? strlen(split_at) : 0;
    if (length == 0) { output_document(o, text, n); return; }
    for (size_t at = 0; at < n;) {
        const char *hit = (const char *)memmem(text + at, n - at, split_at, length);
        size_t end = hit != NULL ? (size_t)(hit - text) : n;
        const size_t next = hit != NULL ? end + length : n;
        while (at < end && is_space(text[at])) at++;
        while (end > at && is_space(text[end - 1])) end--;
        output_document(o, text + at, end - at);
        at = next;
    }
}

static void tokenize_text(const char *path, double share, const char *split_at, Output *train,
                          Output *val) {
    size_t n = 0;
    const char *text = (const char *)file_map(path, &n);
    if (bin_width(text, n) > 0) die("%s is a token file already (see --show)", path);
    data_warn(path, text, n);
    size_t cut = share > 0 ? (size_t)((double)n * (1 - share)) : n;
    if (cut > 0 && cut < n) {  // a document, else a line, else a character goes whole to one side
        const char *end = split_at != NULL && *split_at != '\0' ? split_at : "\n";
        const size_t from = cut - (cut < strlen(end) ? cut : strlen(end) - 1);
        const char *hit = (const char *)memmem(text + from, n - from, end, strlen(end));
        if (hit == NULL) hit = (const char *)memmem(text + cut, n - cut, end = "\n", 1);
        if (hit != NULL && hit + strlen(end) < text + n) cut = (size_t)(hit - text) + strlen(end);
        while (cut < n && (text[cut] & 0xc0) == 0x80) cut++;
    }
    split_document(train, text, cut, split_at);
    split_document(val, text + cut, n - cut, split_at);
    munmap((void *)text, n);
}

#define BYTE_ORDER_MARK "\xef\xbb\xbf"

static const char *skip_space(const char *at, const char *end) {
    while (at < end && is_space(*at)) at++;
    return at;
}

// Is a file JSON lines? Its name says so, or that it begins with an object's first key; what begins
// so and is something else is refused when it is read. Refuses what is neither JSON nor text.
static bool is_jsonl(const char *path) {
    static const char *const endings[] = {".jsonl", ".ndjson", ".json"};
    size_t n = 0;
    const char *text = (const char *)file_map(path, &n), *end = text + n, *at = text;
    const char *kind = file_kind(text, n), *ending = strrchr(path, '.');
    bool json = false;
    for (int i = 0; i < 3; i++) json |= ending != NULL && strcasecmp(ending, endings[i]) == 0;
    if (n >= 3 && memcmp(at, BYTE_ORDER_MARK, 3) == 0) at += 3;
    at = skip_space(at, end);
    const bool object = at < end && *at == '{';  // its first key may be "error": no kind then
    const bool array = at < end && *at == '[';
    if (kind != NULL && !object) die("%s is %s (--format text: it is text)", path, kind);
    if (at < end) at = skip_space(at + 1, end);
    if (array && at < end && (json || *at == '{'))
        die("%s is a JSON array: make JSON lines of it, an object on each line (jq -c '.[]' FILE)",
            path);
    json |= object && at < end && (*at == '"' || *at == '}');
    munmap((void *)text, n);
    return json;
}

static void tokenize_jsonl(const char *path, double share, const char *field, Output *train,
                           Output *val) {
    Error err;
    char *line = NULL, where[PATH_MAX + 32];
    size_t room = 0, number = 0;
    ssize_t n;
    FILE *f = fopen(path, "rb");
    if (f == NULL) die("cannot open %s: %s", path, strerror(errno));
    while ((n = getline(&line, &room, f)) > 0) {
        size_t length = (size_t)n;
        snprintf(where, sizeof where, "%s:%zu", path, ++number);
        while (length > 0 && is_space(line[length - 1])) length--;
        if (length == 0) continue;
        const bool mark = number == 1 && strncmp(line, BYTE_ORDER_MARK, 3) == 0;
        char *object = line + (mark ? 3 : 0);
        if (mark) length -= 3;
        Json *root = json_parse(object, length, &err);
        if (root == NULL)
            die("%s: %s%s", where, err.text, number > 1 ? "" : ": JSON lines have a whole object on "
                "each line (jq -c .); to take it as text: --format text");
        const Json *text = json_get(root, field);
        if (text == NULL || text->type != JSON_STRING)
            die("%s: no \"%s\" that is a string (see --field)", where, field);
        if (text->length == 0) { free(root); continue; }
        // document i of 0, 1, 2 .. is held out if a whole number lies in (i share, (i+1) share]
        const double i = (double)(train->documents + val->documents);
        const bool held_out = (uint64_t)(i * share) < (uint64_t)((i + 1) * share);
        Output *o = held_out ? val : train;
        output_document(o, text->string, text->length);
        if (tok->eot < 0) {
            const uint32_t newline = '\n';
            output_tokens(o, &newline, 1);
        }
        free(root);
    }
    if (ferror(f)) die("cannot read %s: %s", path, strerror(errno));
    fclose(f);
    free(line);
}

static void show(const char *path, size_t tokens) {
    size_t n = 0;
    const void *bytes = file_map(path, &n);
    const char *kind = file_kind(bytes, n);
    if (kind != NULL && bin_width(bytes, n) == 0) die("%s is %s", path, kind);
    const TokenSegment s = segment_parse(path, bytes, n);
    uint32_t largest = 0;
    for (size_t i = 0; i < s.count; i++)
        if (segment_token(&s, i) > largest) largest = segment_token(&s, i);
    printf("%s: magic %d, version %d, %zu tokens of %d bits, the largest is %u\n", path,
           s.width == 2 ? BIN_MAGIC_16 : BIN_MAGIC_32, s.width == 2 ? 1 : 7, s.count, 8 * s.width,
           largest);
    if (tokens > s.count) tokens = s.count;
    for (size_t i = 0; i < tokens; i++) {
        const uint32_t token = segment_token(&s, i);
        size_t length = 0;
        const char *text = tok != NULL ? tokenizer_token(tok, token, &length) : "";
        // the space that encoding puts in front of a text
        const bool space = i == 0 && length > 0 && *text == ' ' && (tok->steps & STEP_STRIP);
        if (length > 0) fwrite(text + space, 1, length - space, stdout);
        else printf(tok != NULL ? "[%u]" : "%u ", token);
    }
    printf("\n");
}

int main(int argc, char **argv) {
    const char *tokenizer = NULL, *out = NULL, *split_at = NULL, *field = "text", *shown = NULL;
    const char *format = "auto";
    double shard_tokens = 1e8, val_share = 0, tokens = 64;
    int files = 0;
    program_begin();
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (strcmp(a, "--help") == 0) return tool_help(usage_text);
        if (strncmp(a, "--", 2) != 0) { argv[1 + files++] = argv[i]; continue; }
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        const bool known = strcmp(a, "--tokenizer") == 0 || strcmp(a, "--out") == 0
            || strcmp(a, "--split-at") == 0 || strcmp(a, "--field") == 0
            || strcmp(a, "--show") == 0 || strcmp(a, "--shard-tokens") == 0
            || strcmp(a, "--val") == 0 || strcmp(a, "--tokens") == 0
            || strcmp(a, "--format") == 0;
        if (!known) die("unknown option %s (see tokenize --help)", a);
        if (value == NULL) die("%s needs a value", a);
        i++;
        if (strcmp(a, "--tokenizer") == 0) tokenizer = value;
        else if (strcmp(a, "--out") == 0) out = value;
        else if (strcmp(a, "--split-at") == 0) split_at = value;
        else if (strcmp(a, "--field") == 0) field = value;
        else if (strcmp(a, "--show") == 0) shown = value;
        else if (strcmp(a, "--format") == 0) format = value;
        else if (strcmp(a, "--val") == 0) val_share = tool_number(a, value, 0, 1, false);
        else if (strcmp(a, "--tokens") == 0)
            tokens = tool_number(a, value, 0, BIN_MAX_TOKENS, true);
        else shard_tokens = tool_number(a, value, 1, BIN_MAX_TOKENS, true);
    }
    if (strcmp(format, "auto") != 0 && strcmp(format, "text") != 0 && strcmp(format, "jsonl") != 0)
        die("--format %.60s: must be auto, text or jsonl", format);
    const bool bytes = tokenizer == NULL || strcmp(tokenizer, "bytes") == 0;
    if (shown == NULL || tokenizer != NULL)
        tok = bytes ? tokenizer_bytes() : tokenizer_load(tokenizer);
    if (shown != NULL) {
        if (files > 0 || out != NULL) die("--show FILE.bin stands alone (see tokenize --help)");
        show(shown, (size_t)tokens);
        tool_close(stdout, NULL);
    } else {
        if (out == NULL) die("--out PREFIX is missing (see tokenize --help)");
        if (files == 0) die("no file to tokenize (see tokenize --help)");
        Output *train = &outputs[0], *val = &outputs[1];
        train->prefix = out;
        train->limit = (size_t)shard_tokens;
        train->width = tok->vocab <= 65536 ? 2 : 4;
        *val = *train;
        train->split = "train";
        val->split = "val";
        refuse_old(train);
        refuse_old(val);
        bool *lines = ALLOC(bool, files, "files");
        for (int i = 0; i < files; i++)  // all, before anything is written
            lines[i] = strcmp(format, "jsonl") == 0
                || (strcmp(format, "text") != 0 && is_jsonl(argv[1 + i]));
        atexit(remove_parts);
        for (int i = 0; i < files; i++) {
            if (lines[i]) tokenize_jsonl(argv[1 + i], val_share, field, train, val);
            else tokenize_text(argv[1 + i], val_share, split_at, train, val);
        }
        output_flush(train);
        output_flush(val);
        if (train->total + val->total == 0) die("no text in the given files");
        printf("%zu documents, %zu tokens for training, %zu held out\n",
               train->documents + val->documents, train->total, val->total);
        tool_close(stdout, NULL);
        whole = true;
        free(lines);
        free(train->tokens);
        free(val->tokens);
    }
    return 0;
}
