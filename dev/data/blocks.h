// blocks.h: text that is encoded part by part, so that a file may be larger than memory.
//
//     tokenizer_load()     the tokenizer of a directory, or the end of the program
//     tokenizer_block()    a place to cut a text
#ifndef DEV_BLOCKS_H
#define DEV_BLOCKS_H
#include "../../tide/files/tokenizer.h"
#include <ctype.h>

// tokenizer_open(), or the end of the program.
static Tokenizer *tokenizer_load(const char *dir) {
    Error err;
    Tokenizer *t = tokenizer_open(ALLOC(Tokenizer, 1, "tokenizer"), dir, &err);
    if (t == NULL) die("%s", err.text);
    return t;
}

// May a text be cut between a letter or number and white space? No, if an added token reaches over
// such a place, or if one ends there and the text behind it begins with a space of its own.
static bool tokenizer_cuts(const Tokenizer *t) {
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < t->added[k].count; i++) {
            const AddedToken *a = &t->added[k].tokens[i];
            const bool front = k == 0 && (t->steps & STEP_PREPEND);
            if (a->rstrip || strpbrk(a->content + 1, " \t\r\n") != NULL
                || (front && isalnum((unsigned char)a->content[a->length - 1]))) return false;
        }
    return true;
}

// Gives the bytes of a text to encode at once: all if n <= limit, else at most `limit`, if the text
// can be cut between an ASCII letter or number and white space. No token reaches over such a place,
// so that the parts become the tokens of the whole. A text without one is taken whole.
static size_t tokenizer_block(const Tokenizer *t, const char *text, size_t n, size_t limit) {
    const unsigned char *u = (const unsigned char *)text;
    if (n <= limit || !tokenizer_cuts(t)) return n;
    for (size_t i = limit; i > 0; i--)
        if (u[i - 1] < 0x80 && isalnum(u[i - 1])
            && (t->byte_level ? memchr(" \t\r\n", u[i], 4) != NULL
                              : u[i] == ' ' && !t->joins[u[i - 1] << 8 | ' '])) return i;
    return n;
}

#endif
