// options_of.h: what a command line says. Include it after open.h or options.h.
#ifndef TIDE_OPTIONS_OF_H
#define TIDE_OPTIONS_OF_H

// Parses a command line given as one string of words; "_" is an empty word, and '~' a blank.
static Options options_of(const char *line, bool gpu) {
    char *argv[64], *save = NULL;  // Options points into the words: they stay
    int argc = 1;
    Options o;
    argv[0] = strdup("train_gpt2");
    for (char *w = strtok_r(strdup(line), " ", &save); w != NULL; w = strtok_r(NULL, " ", &save)) {
        if (strcmp(w, "_") == 0) *w = '\0';
        for (char *c = w; *c; c++) if (*c == '~') *c = ' ';
        argv[argc++] = w;
    }
    argv[argc] = NULL;
    options_parse(&o, argc, argv, gpu);
    return o;
}

#endif
