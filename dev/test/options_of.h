// options_of.h: what a command line says. Include it after open.h or options.h.
#ifndef TIDE_OPTIONS_OF_H
#define TIDE_OPTIONS_OF_H

// Cuts a line into words: "_" is an empty word, and '~' a blank. They stay. Returns how many.
static int words_of(const char *line, char **words) {
    char *save = NULL;
    int n = 0;
    for (char *w = strtok_r(strdup(line), " ", &save); w != NULL; w = strtok_r(NULL, " ", &save)) {
        if (strcmp(w, "_") == 0) *w = '\0';
        for (char *c = w; *c; c++) if (*c == '~') *c = ' ';
        words[n++] = w;
    }
    words[n] = NULL;
    return n;
}

// Parses the words of a command line.
static Options options_of(const char *line, bool gpu) {
    char *argv[64] = {(char *)"train_gpt2"};
    Options o;
    const int argc = 1 + words_of(line, argv + 1);
    options_parse(&o, argc, argv, gpu);
    return o;
}

#endif
