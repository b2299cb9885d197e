// task.h: examples to fine-tune on.
//
// An example is a prompt, which may be empty, and one or more choices, one of which is right.
// Training reads the prompt and learns the right choice. Two kinds of files have examples:
//   - JSON: an object on each line, or one array of objects. The program recognises such a file by
//     its name (.jsonl) or its first characters. An object has one of these forms:
//         {"prompt": "Capital of Peru?", "completion": " Lima"}
//         {"text": "a document: an empty prompt, and one choice"}
//         {"prompt": "2 + 2 =", "choices": [" 3", " 4"], "answer": 1}
//         {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", ..}]}
//         {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", ..}]}    ShareGPT
//         {"instruction": "Add.", "input": "2 + 2", "output": "4"}                      Alpaca
//     Completions and texts end with the tokenizer's end-of-text token, if it has one. A prompt and
//     the text after it are encoded separately: the text must begin with the space between them.
//     Messages are a conversation (chat.h). Its prompt ends before the first trained answer. Its
//     one choice is all that follows: answers are trained, the text between them is only read.
//   - labelled sentences, as in GLUE's SST-2: lines "sentence TAB number of the label". The first
//     line may be a title. A prompt is a sentence and the template; the label words are choices:
//         "a warm and witty film" + " It was"     then " terrible" (label 0) or " great" (label 1)
//     If every label is one token, an example is one sequence. Its cross-entropy is a softmax over
//     the labels' logits at the last position of the prompt, not over the vocabulary.
//
//     task_open()    reads a file; task_parse(): reads the text of one
//     task_view()    makes a part of a task
//     task_pack()    puts each example, or several together, into a row that is trained
//     task_batch()   fills rows with examples; task_targets(): counts their trained tokens
//     task_row()     makes a row of an example and a choice; task_find(): finds the two of a row
//
// A fault in a file ends the program with one line. Sources: Malladi et al. 2023 (MeZO); Gao, Fisch
// and Chen 2021 (templates and label words); Ding et al. 2024 (packing by best fit, without cuts).
#ifndef TIDE_TASK_H
#define TIDE_TASK_H
#include "../base/model.h"
#include "chat.h"
#include "data.h"

typedef struct {
    size_t count;              // examples
    size_t *example;           // (count + 1): the prompt of example i is piece example[i]. The next
                               // pieces, up to example[i+1] - 1, are its choices
    size_t *first;             // (pieces + 1): piece k is tokens first[k] .. first[k+1] - 1
    int32_t *tokens;           // an untrained token inside a choice is stored as ~token
    int *label;                // (count): the right choice, from 0 on
    size_t pieces;             // pieces of the whole file
    size_t longest;            // the number of inputs of the longest row (task_row())
    Chat chat;                 // the format of conversations; .format NULL: there are none
    int labels;  // the number of label words, if each is one token (no piece is a choice); else 0
    int32_t word[TASK_LABELS]; // the token of each label word
    int32_t first_token;       // the first token of prompts that are no conversation; -1: none
    size_t rows;               // the rows of training, which task_pack() makes
    size_t *row, *packed;      // (rows + 1), (count): row k has the examples packed[row[k]] to
                               // packed[row[k+1] - 1]
} Task;

// ---------------------------------------------------------------------------------------------
// Reading

// How a file is read, and what has been read of it. labels NULL: the file is JSON. Else it has
// labelled sentences: `labels` is "word|word|..", 2 to 16 words, and label number i is word i. A
// prompt is then the sentence, without white space around it, and the template.
typedef struct {
    const char *labels, *template_text;
    const Tokenizer *tok;
    size_t vocab;              // all tokens must be below it
    int format;                // --chat-format, for chat_open()
    bool last;                 // only the last answer of a conversation is trained
    Task t;                    // the caller sets its first_token
    Tokens out;                // t.tokens
    bool starts;               // the prompt is empty, so the next piece begins the text
    char *label[TASK_LABELS];  // [label_count] the words of `labels`
    int label_count;
    char where[PATH_MAX + 32]; // the file and line, for messages
} TaskReader;

// Makes a piece of the tokens from the end of the last piece up to `end`. A token outside the
// model's vocabulary is an error.
static void task_ends_piece(TaskReader *r, size_t end) {
    Task *t = &r->t;
    t->tokens = (int32_t *)r->out.ids;
    for (size_t k = t->first[t->pieces]; k < end; k++) {
        const int32_t id = token_id(t->tokens[k]);
        if ((size_t)id >= r->vocab)
            die("%s has token %d, but the model's vocabulary has %zu tokens", r->where, id,
                r->vocab);
    }
    t->first = (size_t *)array_grow(t->first, ++t->pieces, sizeof *t->first, r->where);
    t->first[t->pieces] = end;
}

// Adds a text of n bytes as a piece. begins: adds first_token in front. ends: adds the end-of-text
// token behind. A token that the text already has there is not added. If the prompt is empty, its
// piece is first_token alone, and the next piece does not begin with first_token again.
static void task_piece(TaskReader *r, const char *text, size_t n, bool begins, bool ends) {
    const bool starts = begins || r->starts;
    const size_t at = r->out.count;
    if (begins) r->starts = n == 0;
    tokenizer_text(r->tok, text, n, starts ? 0 : TOKENIZER_GOES_ON, starts ? r->t.first_token : -1,
                   ends ? r->tok->eot : -1, &r->out);
    if (starts && !begins && r->t.first_token >= 0)
        memmove(r->out.ids + at, r->out.ids + at + 1, (--r->out.count - at) * sizeof *r->out.ids);
    task_ends_piece(r, r->out.count);
}

// Adds two texts, a and then b, as one piece.
static void task_joined(TaskReader *r, const char *a, const char *b, bool begins) {
    char *both = ALLOC(char, strlen(a) + strlen(b) + 1, "a prompt");
    task_piece(r, both, (size_t)sprintf(both, "%s%s", a, b), begins, false);
    free(both);
}

static size_t piece_tokens(const Task *t, size_t k) { return t->first[k + 1] - t->first[k]; }

// Makes the pieces since the last example a new example. Choice number `label` is right.
static void task_example(TaskReader *r, size_t label) {
    Task *t = &r->t;
    const size_t prompt = t->example[t->count], tokens = piece_tokens(t, prompt);
    t->example = (size_t *)array_grow(t->example, t->count + 1, sizeof *t->example, r->where);
    t->label = (int *)array_grow(t->label, t->count, sizeof *t->label, r->where);
    t->label[t->count] = (int)label;
    t->example[++t->count] = t->pieces;
    if (t->labels > 0 && tokens > t->longest) t->longest = tokens;
    for (size_t k = prompt + 1; k < t->pieces; k++) {
        const size_t inputs = tokens + piece_tokens(t, k) - 1;
        if (inputs == 0) die("%s: one token, with nothing before it that could tell it", r->where);
        if (inputs > t->longest) t->longest = inputs;
    }
}

// Adds the string `value` of member `key` as a piece. Only a prompt may be empty or missing.
static void task_string(TaskReader *r, const Json *value, const char *key) {
    const bool prompt = strcmp(key, "prompt") == 0, choice = strcmp(key, "choices") == 0;
    if (value != NULL && value->type != JSON_STRING) die("%s: \"%s\" is no string", r->where, key);
    const size_t n = value != NULL ? value->length : 0;
    if (n == 0 && !prompt)
        die("%s: %s\"%s\" is empty", r->where, choice ? "one of the " : "", key);
    task_piece(r, n > 0 ? value->string : "", n, prompt, !prompt && !choice);
}

// Adds the choices of an example as pieces: two or more, no two of which are equal.
static void task_choices(TaskReader *r, const Json *choices) {
    if (choices->type != JSON_ARRAY || choices->count < 2)
        die("%s: \"choices\" is no list of at least two strings", r->where);
    for (const Json *c = choices->child; c != NULL; c = c->next) {
        task_string(r, c, "choices");
        for (const Json *d = choices->child; d != c; d = d->next)
            if (d->length == c->length && memcmp(d->string, c->string, c->length) == 0)
                die("%s: two of the \"choices\" are \"%.80s\"", r->where, c->string);
    }
}

// Adds the two pieces of a conversation. The prompt is all before the first trained token; the
// choice is all from there on, without untrained tokens at the end.
static void task_messages(TaskReader *r, const ChatMessage *list, size_t count) {
    size_t n, first = 0;
    int32_t *tokens = chat_encode(&r->t.chat, list, count, &n);
    while (first < n && tokens[first] < 0) first++;
    while (n > 0 && tokens[n - 1] < 0) n--;  // tokens >= 0 are trained
    for (size_t i = 0; i < n; i++)
        tokens_add(&r->out, (uint32_t)(i < first ? ~tokens[i] : tokens[i]));
    task_ends_piece(r, r->out.count - (n - first));
    task_ends_piece(r, r->out.count);
    free(tokens);
}

// Adds the pieces of an instruction as a conversation. The question is the instruction and, on the
// next line, the input. The answer is the output.
static void task_instruction(TaskReader *r, const Json *root) {
    static const char *const keys[3] = {"instruction", "input", "output"};
    char *question = NULL;
    ChatMessage list[2] = {{.role = CHAT_USER}, {.role = CHAT_ASSISTANT}};
    FILE *f = text_open(&question, &list[0].n);
    for (int k = 0; k < 3; k++) {
        const Json *part = json_get(root, keys[k]);
        if (k == 1 && json_empty(part)) continue;
        if (part == NULL || part->type != JSON_STRING || (k != 1 && part->length
            == encode_white(part->string, part->length, true, true)))
            die("%s: \"%s\" is %s", r->where, keys[k], part == NULL ? "missing"
                : part->type != JSON_STRING ? "no string" : "empty");
        if (k == 1) fputc('\n', f);
        if (k < 2) fwrite(part->string, 1, part->length, f);
        list[1].text = part->string;
        list[1].n = part->length;
    }
    text_close(f);
    list[0].text = question;
    task_messages(r, list, 2);
    free(question);
}

// Adds the example of an object in one of the forms at the top of this file.
static void task_object(TaskReader *r, const Json *root) {
    enum { KEYS = 8, OTHERS = 6, REFUSED = 21 };
    static const char *const keys[KEYS] = {"prompt", "completion", "text", "choices", "answer",
                                           "messages", "conversations", "instruction"};
    // Keys of forms that are unknown here; then keys that would change which tokens are trained.
    static const char *const refused[REFUSED] = {
        "input", "output", "context", "chosen", "question", "response",
        "system", "history", "tools", "functions", "images", "videos", "audios", "weight", "loss",
        "train", "mask", "masked", "thinking", "reasoning", "reasoning_content"};
    enum { COMPLETION = 1 | 2, TEXT = 4, CHOICES = 1 | 8 | 16, MESSAGES = 32, SHARED = 64,
           INSTRUCTION = 128 };
    const Json *value[KEYS];
    int form = 0;
    Error err = {""};
    size_t answer = 0;
    for (int k = 0; k < KEYS; k++) {
        value[k] = json_get(root, keys[k]);
        if (k <= 5 ? value[k] != NULL : !json_empty(value[k])) form |= 1 << k;
    }
    // In Alpaca's files, "text" is the other members again, joined by a fixed wording.
    if (form == (INSTRUCTION | TEXT) && json_get(root, "output") != NULL) form = INSTRUCTION;
    const bool chat = form == MESSAGES || form == SHARED || form == INSTRUCTION;
    const bool good = form == COMPLETION || form == TEXT || form == CHOICES || chat;
    for (int k = form & INSTRUCTION ? 2 : good ? OTHERS : 0; k < REFUSED; k++)
        if (!json_empty(json_get(root, refused[k])))
            die("%s: it has \"%s\", which is not supported: doc/finetuning.md has a line of jq for "
                "other forms, and says where to write such things", r->where, refused[k]);
    if (!good)
        die("%s: it must have \"prompt\" and \"completion\", or \"text\", or \"prompt\", "
            "\"choices\" and \"answer\", or \"messages\" with \"role\" and \"content\", or "
            "\"conversations\", or \"instruction\", and no others of these", r->where);
    if (chat && r->t.chat.format == NULL
        && !chat_open(&r->t.chat, r->tok, r->format, r->t.first_token, 0, &err))
        die("%s: %s", r->where, err.text);
    if (form == MESSAGES || form == SHARED) {
        ChatMessage *list;
        const Json *messages = value[form == SHARED ? 6 : 5];
        const size_t count = chat_read(&r->t.chat, messages, r->last, r->where, &list);
        task_messages(r, list, count);
        free(list);
    } else if (form == INSTRUCTION) task_instruction(r, root);
    else task_string(r, value[0], keys[0]);
    if (form == COMPLETION) task_string(r, value[1], keys[1]);
    if (form == TEXT) task_string(r, value[2], keys[2]);
    if (form == CHOICES) {
        task_choices(r, value[3]);
        if (!json_size(value[4], &answer) || answer >= value[3]->count)
            die("%s: \"answer\" is not the number of a choice, 0 to %zu", r->where,
                value[3]->count - 1);
    }
    task_example(r, answer);
}

// Adds the example of a line, which is a JSON object. Skips an empty line.
static void task_json(TaskReader *r, const char *line) {
    Error err = {""};
    if (line[strspn(line, " \t\r")] == '\0') return;
    Json *root = json_parse(line, strlen(line), &err);
    if (root == NULL || root->type != JSON_OBJECT)
        die("%s: no %s%s%s", r->where, root == NULL ? "JSON: " : "object, {...}",
            root == NULL ? strstr(err.text, "byte") : "",
            r->t.count > 0 || strstr(err.text, "twice") != NULL ? "" : "; each line is to be one "
            "(jq -c . FILE makes lines of objects; JSON as running text must be a token file: "
            "build/tokenize)");
    task_object(r, root);
    free(root);
}

// Adds the examples of a JSON array. An error names the number of the entry.
static void task_array(TaskReader *r, const char *name, const char *text) {
    Error err;
    size_t number = 0;
    Json *root = json_named(name, text, strlen(text), &err);
    if (root == NULL)
        die("%s: it begins like an array of examples (running text that does must be a token file: "
            "build/tokenize)", err.text);
    for (const Json *entry = root->child; entry != NULL; entry = entry->next) {
        snprintf(r->where, sizeof r->where, "%s, entry %zu of the array", name, ++number);
        if (entry->type != JSON_OBJECT) die("%s: no object, {...}", r->where);
        task_object(r, entry);
    }
    free(root);
}

static void task_sentence(TaskReader *r, char *line) {
    static const char space[] = " \t\r\v\f";
    char *end = strchr(line, '\t'), *tab = end;
    const size_t digits = tab == NULL ? 0 : strspn(tab + 1, "0123456789");
    const long label = digits > 0 && digits < 10 ? atol(tab + 1) : -1, last = r->label_count - 1;
    if (label < 0 || label > last || tab[1 + digits] != '\0')
        die("%s: not a sentence, a TAB and the number of its label, 0 to %ld", r->where, last);
    while (end > line && strchr(space, end[-1]) != NULL) end--;
    *end = '\0';
    line += strspn(line, space);
    if (*line == '\0') die("%s: the sentence is empty", r->where);
    task_joined(r, line, r->template_text, true);
    for (int k = 0; k < r->label_count && r->t.labels == 0; k++)
        task_piece(r, r->label[k], strlen(r->label[k]), false, false);
    task_example(r, (size_t)label);
}

// Cuts "word|word|.." into labels. If each label is one token, it must stay this token when the
// template and the label are encoded together. ("It was " and "great" fail: GPT-2 has a token for
// " great", with the space.)
static void task_labels(TaskReader *r) {
    Task *t = &r->t;
    const char *const template_text = r->template_text;
    char *words = strdup(r->labels);
    int count = 0;
    bool single = true;
    snprintf(r->where, sizeof r->where, "--labels");
    for (char *word; (word = strsep(&words, "|")) != NULL; r->label[count++] = word) {
        if (count == TASK_LABELS) die("--labels: more than %d words", TASK_LABELS);
        if (*word == '\0') die("--labels: a word is empty; they stand like this: ' bad| good'");
        for (int k = 0; k < count; k++)
            if (strcmp(r->label[k], word) == 0) die("--labels: '%s' is there twice", word);
        task_piece(r, word, strlen(word), false, false);
        single = single && piece_tokens(t, (size_t)count) == 1;
        if (single) t->word[count] = t->tokens[count];
    }
    if (count < 2) die("--labels '%s': at least two words, with '|' between them", r->labels);
    snprintf(r->where, sizeof r->where, "--template");
    for (int k = 0; k < count && single; k++) {
        t->pieces = r->out.count = 0;
        task_piece(r, template_text, strlen(template_text), false, false);
        task_joined(r, template_text, r->label[k], false);
        if (piece_tokens(t, 1) != piece_tokens(t, 0) + 1
            || t->tokens[t->first[2] - 1] != t->word[k])
            die("--labels: '%s' is no token of its own behind the template '%s'; a space between "
                "them belongs to the label", r->label[k], template_text);
    }
    t->pieces = r->out.count = 0;
    if (single) t->labels = count;
    r->label_count = count;
}

// Reads examples from the text of a file. Overwrites the text.
static Task task_parse(TaskReader *r, const char *name, char *text) {
    r->t.first = ALLOC(size_t, 1, "examples");
    r->t.example = ALLOC(size_t, 1, "examples");
    if (r->labels != NULL) task_labels(r);
    if (r->labels == NULL && text[strspn(text, " \t\r\n")] == '[') {
        task_array(r, name, text);
        text = NULL;
    }
    for (size_t number = 1; text != NULL; number++) {
        char *line = strsep(&text, "\n"), *end = line + strlen(line);
        snprintf(r->where, sizeof r->where, "%s, line %zu", name, number);
        if (r->labels == NULL) {
            task_json(r, line);
            continue;
        }
        if (end > line && end[-1] == '\r') *--end = '\0';
        if ((number == 1 && strcmp(line, "sentence\tlabel") == 0) || (text == NULL && !*line))
            continue;
        task_sentence(r, line);
    }
    if (r->t.count == 0) die("%s: no examples", name);
    return r->t;
}

// Reads a file of examples.
static Task task_open(TaskReader *r, const char *path) {
    size_t n = 0;
    Error err;
    char *text = text_read(path, &n, &err);
    if (text == NULL)
        die("%s%s", err.text, path_exists(path) || strpbrk(path, "*?[") == NULL ? ""
            : " (patterns work for text only: examples are in one file)");
    const Task t = task_parse(r, path, text);
    free(text);
    return t;
}

// Is this a file of JSON examples, by its name or by its first characters?
static bool path_is_examples(const char *path) {
    size_t n;
    Error ignored;
    if (fnmatch("?*.jsonl", path, 0) == 0) return true;
    char *text = (char *)file_open_map(path, &n, &ignored);
    const bool begins = text != NULL && json_begins(text, n);
    if (text != NULL) munmap(text, n > 0 ? n : 1);
    return begins;
}

// Returns a view of the examples `from` to `to` - 1.
static Task task_view(const Task *all, size_t from, size_t to) {
    Task v = *all;
    v.count = to - from;
    v.example += from;  // its values are still indices of pieces in the whole file
    v.label += from;
    return v;
}

// ---------------------------------------------------------------------------------------------
// Rows
//
// A row holds the tokens of a prompt and a choice. Its inputs are all tokens but the last; its
// targets are all but the first. A target of -1 is not trained: it is only read. An example of more
// than T inputs is cut. Its prompt loses tokens at the front, but not the token that begins every
// text. A choice that is still too long loses its end. A conversation loses its last turns first.

// Counts the tokens of prompt and choice that stay. read: the untrained tokens in this choice.
typedef struct { size_t prompt, choice, read; } TaskCut;

static TaskCut task_cut(const Task *t, size_t i, size_t choice, size_t T) {
    const size_t k = t->example[i], prompt = piece_tokens(t, k);
    const size_t all = t->labels > 0 ? 1 : piece_tokens(t, k + 1 + choice);
    TaskCut cut = {prompt, min_size(all, prompt > 0 ? T : T + 1), 0};
    if (t->chat.format != NULL) {
        const int32_t *token = t->tokens + t->first[k + 1 + choice];
        size_t answer = 0;  // the length of the first answer
        while (answer < cut.choice && token[answer] >= 0) answer++;
        if (prompt + cut.choice > T + 1)
            cut.choice = prompt + answer > T + 1 ? answer : T + 1 - prompt;
        while (token[cut.choice - 1] < 0) cut.choice--;
        for (size_t j = answer; j < cut.choice; j++) cut.read += token[j] < 0;
    }
    cut.prompt = min_size(prompt, T + 1 - cut.choice);
    return cut;
}

static size_t cut_inputs(TaskCut cut) { return cut.prompt + cut.choice - 1; }

static size_t cut_targets(TaskCut cut) { return cut.choice - cut.read - (cut.prompt == 0); }

// Writes example i with this choice as a row: its inputs and, unless NULL, its targets. Returns the
// number of inputs, at most T.
static size_t task_row(const Task *t, size_t i, size_t choice, size_t T, int32_t *inputs,
                       int32_t *targets) {
    const size_t k = t->example[i];
    const TaskCut cut = task_cut(t, i, choice, T);
    const int32_t *prompt = t->tokens + t->first[k + 1] - cut.prompt;
    const int32_t *rest = t->labels > 0 ? &t->word[choice] : t->tokens + t->first[k + 1 + choice];
    for (size_t j = 0; j <= cut_inputs(cut); j++) {
        const int32_t token = j < cut.prompt ? prompt[j] : rest[j - cut.prompt];
        if (j < cut_inputs(cut)) inputs[j] = token_id(token);
        if (j > 0 && targets != NULL) targets[j - 1] = j < cut.prompt || token < 0 ? -1 : token;
    }
    const int32_t head = t->tokens[t->first[k]];
    const bool talk = t->chat.format != NULL && head == t->chat.begin;
    if (cut.prompt > 0 && head >= 0 && (talk || head == t->first_token)) inputs[0] = head;
    return cut_inputs(cut);
}

// Counts rows. In an epoch of training, each example is in a row, with its right choice. In an
// evaluation, each choice has a row, in the file's order; with label words, each example has one.
static size_t task_rows(const Task *t, bool training) {
    if (training) return t->rows;
    if (t->labels > 0) return t->count;
    return t->example[t->count] - t->example[0] - t->count;
}

// Finds the example and the choice of a row of an evaluation.
static size_t task_find(const Task *t, size_t row, size_t *choice) {
    size_t i = 0, end = t->count;  // the row is in examples i .. end-1
    while (end - i > 1) {
        const size_t middle = (i + end) / 2;
        if (t->example[middle] - t->example[0] - middle <= row) i = middle;
        else end = middle;
    }
    *choice = row - (t->example[i] - t->example[0] - i);
    return i;
}

// Makes the rows of training. Each example is a row, unless `packs`: then examples are put into few
// rows of T tokens, by best-fit decreasing: in order of length, the longest first, each example is
// put into the row in which it leaves the least room.
static void task_pack(Task *t, size_t T, bool packs) {
    enum { INDEX = 40 };                             // bits of the index of an example
    uint64_t *order = ALLOC(uint64_t, t->count, "packing");
    size_t *row_of = ALLOC(size_t, 2 * t->count, "packing"), *next = row_of + t->count;
    size_t *open = ALLOC(size_t, T + 1, "packing");  // open[n]: 1 + a row with n free; 0: none
    for (size_t i = 0; i < t->count; i++)
        order[i] = (T - cut_inputs(task_cut(t, i, (size_t)t->label[i], T))) << INDEX | i;
    if (packs) qsort(order, t->count, sizeof *order, compare_words);
    t->row = ALLOC(size_t, t->count + 1, "rows");
    t->packed = ALLOC(size_t, t->count, "rows");
    for (size_t k = 0; k < t->count; k++) {
        const size_t length = T - (order[k] >> INDEX);
        size_t room = packs ? length : T + 1;
        while (room <= T && open[room] == 0) room++;
        const size_t row = room <= T ? open[room] - 1 : t->rows++;
        if (room <= T) open[room] = next[row];
        else room = T;
        row_of[k] = row;
        next[row] = open[room - length];
        open[room - length] = row + 1;
        t->row[row + 1]++;
    }
    for (size_t k = 0; k < t->rows; k++) t->row[k + 1] += next[k] = t->row[k];
    for (size_t k = 0; k < t->count; k++)
        t->packed[next[row_of[k]]++] = order[k] & (((uint64_t)1 << INDEX) - 1);
    free(order);
    free(row_of);
    free(open);
}

// Returns the row at a position, which counts from the start of training over all epochs. Training
// shuffles rows by seed and epoch; an evaluation reads them in the order of the file.
static size_t task_at(const Task *t, uint64_t seed, bool training, uint64_t position) {
    const size_t rows = task_rows(t, training);
    uint64_t phase;
    return training ? epoch_index(seed, position, rows, &phase) : position % rows;
}

// Fills `rows` rows of T tokens with the task's rows from `position` on. A shorter row is padded
// with zeros, which no other token sees, and which are not trained. inputs, targets (rows, T).
// begins (rows, T), or NULL: for each token, the index in its row at which its document begins.
// With label words, targets is (rows, 2): the index of the prompt's last token in its row, and the
// label. t->count and T must not be 0.
static void task_batch(const Task *t, uint64_t seed, bool training, uint64_t position, size_t rows,
                       size_t T, int32_t *inputs, int32_t *targets, int32_t *begins) {
    const bool words = t->labels > 0, choices = !training && !words;
    for (size_t b = 0; b < rows; b++, inputs += T) {
        const size_t k = task_at(t, seed, training, position + b);
        const size_t end = training ? t->row[k + 1] : k + 1;
        size_t used = 0, choice = 0;
        for (size_t j = training ? t->row[k] : k; j < end; j++) {
            size_t i = training ? t->packed[j] : j;
            if (choices) i = task_find(t, j, &choice);
            else choice = (size_t)t->label[i];
            const size_t at = used;
            used += task_row(t, i, choice, T, inputs + at, words ? NULL : targets + b * T + at);
            for (size_t u = at; begins != NULL && u < used; u++) begins[b * T + u] = (int32_t)at;
        }
        for (size_t u = used; u < T; u++) {
            inputs[u] = 0;
            if (!words) targets[b * T + u] = -1;
            if (begins != NULL) begins[b * T + u] = (int32_t)used;
        }
        if (!words) continue;
        targets[2 * b] = (int32_t)used - 1;
        targets[2 * b + 1] = (int32_t)choice;
    }
}

// Counts trained tokens (with label words, prompts) in the `rows` rows from `position` on.
static size_t task_targets(const Task *t, uint64_t seed, uint64_t position, size_t rows, size_t T) {
    size_t sum = 0;
    for (size_t b = 0; b < rows; b++) {
        const size_t k = task_at(t, seed, true, position + b);
        for (size_t j = t->row[k]; j < t->row[k + 1]; j++) {
            const size_t i = t->packed[j];
            sum += cut_targets(task_cut(t, i, (size_t)t->label[i], T));
        }
    }
    return sum;
}

// How many examples are cut; the inputs and the trained tokens of all rows with a right choice.
typedef struct { size_t cut, inputs, targets; } TaskSum;

static TaskSum task_sum(const Task *t, size_t T) {
    TaskSum sum = {0, 0, 0};
    for (size_t i = 0; i < t->count; i++) {
        const TaskCut right = task_cut(t, i, (size_t)t->label[i], T);
        const size_t k = t->example[i], choices = t->example[i + 1] - k - 1;
        bool cut = t->labels > 0 && piece_tokens(t, k) > T;
        for (size_t c = 0; c < choices; c++)
            cut = cut || piece_tokens(t, k) + piece_tokens(t, k + 1 + c) - 1 > T;
        sum.cut += cut;
        sum.inputs += cut_inputs(right);
        sum.targets += cut_targets(right);
    }
    return sum;
}

// Returns a hash of the tokens, choices and labels of a task that has examples.
static uint64_t task_hash(const Task *t) {
    const uint64_t parts[] = {hash_bytes(t->first, (t->pieces + 1) * sizeof *t->first),
                              hash_bytes(t->tokens, t->first[t->pieces] * sizeof *t->tokens),
                              hash_bytes(t->label, t->count * sizeof *t->label),
                              hash_bytes(t->example, (t->count + 1) * sizeof *t->example)};
    return hash_bytes(parts, t->labels > 0 ? 3 * sizeof parts[0] : sizeof parts);
}

#endif
