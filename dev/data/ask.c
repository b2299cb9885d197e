// ask.c: what an example asks, and what the right answers are, for scripts that show or score a model's
// answers. See usage_text.
#include "../tool.h"
#include "../../tide/files/json.h"

static const char *const usage_text =
"ask FILE N prompt|user|system|answers\n"
"    Prints a part of the Nth example from the end of FILE, which has JSON lines: its \"prompt\"; or,\n"
"    in one line, the first user's or the system's message of its \"messages\", or its \"completion\"\n"
"    and, behind a tab each, the strings of the list \"answers\", if it has one. Exit status 1 if the\n"
"    example has no such part.\n";

// Prints a string; in_line: with a space for each control character.
static void print_string(const Json *s, bool in_line) {
    for (const char *c = s->string; c < s->string + s->length; c++)
        putchar(in_line && (unsigned char)*c < ' ' ? ' ' : *c);
}

// Finds the content of the first message with this role, or NULL: in OpenAI's form, in ShareGPT's, or
// the instruction of Alpaca's form, without its input.
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

int main(int argc, char **argv) {
    Error err;
    size_t n = 0, lines = 0;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        fputs(usage_text, stdout);
        return 0;
    }
    if (argc != 4) die("usage: ask FILE N prompt|user|system|answers");
    const size_t number = (size_t)tool_number("N", argv[2], 1, 1e9, true);
    const char *part = argv[3];
    const bool prompt = strcmp(part, "prompt") == 0, answers = strcmp(part, "answers") == 0;
    if (!prompt && !answers && strcmp(part, "user") != 0 && strcmp(part, "system") != 0)
        die("%s: no part of an example: prompt, user, system or answers", part);
    char *text = text_read(argv[1], &n, &err);
    if (text == NULL) die("%s", err.text);
    char *end = text + n, *line = end;
    while (line > text && lines < number) {
        while (line > text && strchr(" \t\r\n", line[-1]) != NULL) line--;
        *line = '\0';
        lines += line > text;
        while (line > text && line[-1] != '\n') line--;
    }
    Json *root = lines == number ? json_parse(line, strlen(line), &err) : NULL;
    const Json *found = NULL;
    if (root != NULL && root->type == JSON_OBJECT) {
        if (prompt || answers) found = json_get(root, prompt ? part : "completion");
        else found = message_of(root, part);
    }
    if (found == NULL || found->type != JSON_STRING || found->length == 0) return 1;
    print_string(found, !prompt);
    const Json *more = answers ? json_get(root, part) : NULL;
    if (more != NULL && more->type == JSON_ARRAY)
        for (const Json *a = more->child; a != NULL; a = a->next)
            if (a->type == JSON_STRING) {
                putchar('\t');
                print_string(a, true);
            }
    json_free(root);
    free(text);
    tool_close(stdout, NULL);
    return 0;
}
