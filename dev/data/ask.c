// ask.c: what an example asks, for scripts that show a model's answers. See usage().
#include "../tool.h"
#include "../../tide/files/json.h"

static const char *const usage_text =
"ask FILE N prompt|user|system\n"
"    Prints a part of the Nth example from the end of FILE, which has JSON lines: its \"prompt\", or\n"
"    the first user's or the system's message of its \"messages\", in one line. Exit status 1 if the\n"
"    example has no such part.\n";

// Finds the content of the first message with this role, or NULL.
static const Json *message_of(const Json *messages, const char *role) {
    if (messages == NULL || messages->type != JSON_ARRAY) return NULL;
    for (const Json *m = messages->child; m != NULL; m = m->next) {
        const Json *r = m->type == JSON_OBJECT ? json_get(m, "role") : NULL;
        if (r != NULL && r->type == JSON_STRING && strcmp(r->string, role) == 0)
            return json_get(m, "content");
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
    if (argc != 4) die("usage: ask FILE N prompt|user|system");
    const size_t number = (size_t)tool_number("N", argv[2], 1, 1e9, true);
    const char *part = argv[3];
    const bool prompt = strcmp(part, "prompt") == 0;
    if (!prompt && strcmp(part, "user") != 0 && strcmp(part, "system") != 0)
        die("%s: no part of an example: prompt, user or system", part);
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
    if (root != NULL && root->type == JSON_OBJECT)
        found = prompt ? json_get(root, part) : message_of(json_get(root, "messages"), part);
    if (found == NULL || found->type != JSON_STRING || found->length == 0) return 1;
    for (const char *c = found->string; c < found->string + found->length; c++)
        putchar(!prompt && (unsigned char)*c < ' ' ? ' ' : *c);
    json_free(root);
    free(text);
    tool_close(stdout, NULL);
    return 0;
}
