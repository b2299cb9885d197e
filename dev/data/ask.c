// ask.c: what an example asks, and what the right answers are, for scripts that show or score a model's
// answers. See usage_text.
#include "../tool.h"
#include "../../tide/files/json.h"

static const char *const usage_text =
"ask FILE N prompt|user|system|answers\n"
"    Prints a part of the Nth example from the end of FILE, which has JSON lines or one array: its\n"
"    \"prompt\"; or, in one line, the first user's or the system's message of its \"messages\", its\n"
"    \"instruction\" and \"input\" (user), or its \"completion\" and, behind a tab each, the strings of the\n"
"    list \"answers\", if it has one. Exit status 1 if the example has no such part.\n"
"ask FILE count\n"
"    Prints how many examples FILE has.\n";

// Prints a string; in_line: with a space for each control character.
static void print_string(const Json *s, bool in_line) {
    for (const char *c = s->string; c < s->string + s->length; c++)
        putchar(in_line && (unsigned char)*c < ' ' ? ' ' : *c);
}

// Finds the content of the first message with this role, or NULL: in OpenAI's form, in ShareGPT's, or
// the instruction of Alpaca's form.
static const Json *message_of(const Json *example, const char *role) {
    const bool shared = json_get(example, "conversations") != NULL, user = strcmp(role, "user") == 0;
    const Json *messages = json_get(example, shared ? "conversations" : "messages");
    if (messages == NULL || messages->type != JSON_ARRAY)
        return user ? json_get(example, "instruction") : NULL;
    for (const Json *m = messages->child; m != NULL; m = m->next) {
        const Json *r = m->type == JSON_OBJECT ? json_get(m, shared ? "from" : "role") : NULL;
        if (json_is(r, shared && user ? "human" : role))
            return json_get(m, shared ? "value" : "content");
    }
    return NULL;
}

// Counts the examples of a text, and sets *found to the Nth from the end, or to NULL. *array keeps the
// text's one array, or NULL if it has lines, of which blank ones do not count.
static size_t examples(const char *name, char *text, size_t n, size_t number, Json **array, Json **found) {
    Error err;
    size_t count = 0;
    char *line = text + strspn(text, "\xEF\xBB\xBF \t\r\n");
    *array = *found = NULL;
    if (*line == '[') {
        if ((*array = json_parse(line, n - (size_t)(line - text), &err)) == NULL)
            die("%s: %s", name, err.text);
        for (Json *e = (*array)->child; e != NULL; e = e->next) count++;
        *found = (*array)->child;
        for (size_t k = count; k > number && *found != NULL; k--) *found = (*found)->next;
        if (number > count) *found = NULL;
        return count;
    }
    for (char *end = text + n; end > text; end = line) {
        for (line = end - 1; line > text && line[-1] != '\n'; line--) continue;
        if (line + strspn(line, " \t\r\n") >= end) continue;
        if (++count == number) *found = json_parse(line, (size_t)(end - line), &err);
    }
    return count;
}

int main(int argc, char **argv) {
    Error err;
    size_t n = 0;
    program_begin();
    if (argc == 2 && strcmp(argv[1], "--help") == 0) return tool_help(usage_text);
    const bool counts = argc == 3 && strcmp(argv[2], "count") == 0;
    if (argc != 4 && !counts) die("usage: ask FILE N prompt|user|system|answers, or ask FILE count");
    const size_t number = counts ? 0 : (size_t)tool_number("N", argv[2], 1, 1e9, true);
    const char *part = counts ? "" : argv[3];
    const bool prompt = strcmp(part, "prompt") == 0, answers = strcmp(part, "answers") == 0;
    if (!counts && !prompt && !answers && strcmp(part, "user") != 0 && strcmp(part, "system") != 0)
        die("%s: no part of an example: prompt, user, system or answers", part);
    char *text = text_read(argv[1], &n, &err);
    if (text == NULL) die("%s", err.text);
    Json *array, *root;
    const size_t count = examples(argv[1], text, n, number, &array, &root);
    if (counts) {
        printf("%zu\n", count);
        tool_close(stdout, NULL);
        return 0;
    }
    const Json *found = NULL;
    if (root != NULL && root->type == JSON_OBJECT) {
        if (prompt || answers) found = json_get(root, prompt ? part : "completion");
        else found = message_of(root, part);
    }
    if (found == NULL || found->type != JSON_STRING || found->length == 0) return 1;
    print_string(found, !prompt);
    const Json *input = found == json_get(root, "instruction") ? json_get(root, "input") : NULL;
    if (input != NULL && input->type == JSON_STRING && input->length > 0) {
        putchar(' ');
        print_string(input, true);
    }
    const Json *more = answers ? json_get(root, part) : NULL;
    if (more != NULL && more->type == JSON_ARRAY)
        for (const Json *a = more->child; a != NULL; a = a->next)
            if (a->type == JSON_STRING) {
                putchar('\t');
                print_string(a, true);
            }
    free(array != NULL ? array : root);
    free(text);
    tool_close(stdout, NULL);
    return 0;
}
