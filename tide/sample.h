// sample.h: text from a model. Drawing a token from its logits, and everything about a sample that
// does not depend on who computes them: the prompt, the window that the model sees, the printing.
//
//     Sample s = sample_begin(options, tokenizer, config, number);
//     do logits = the model's, of the token after s.tokens[s.first .. s.n - 1];
//     while (sample_next(&s, logits));
//     sample_end(&s);
#ifndef TIDE_SAMPLE_H
#define TIDE_SAMPLE_H
#include "util.h"
#include "model.h"
#include "options.h"
#include "rng.h"
#include "tokenizer.h"

static inline int sample_compare(const void *a, const void *b) {  // descending
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

// Draws from softmax(logits / temperature) over the top_k largest (0: all) of n logits; uniform is
// in [0, 1). Temperature 0 (below 1e-6) takes the largest. Overwrites the logits.
static inline int32_t sample(float *logits, size_t n, double temperature, size_t top_k,
                             float uniform) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    if (temperature < 1e-6) return (int32_t)best;
    float least = -INFINITY;
    if (top_k > 0 && top_k < n) {
        float *sorted = (float *)alloc_or_fail(n, sizeof(float), "sampling");
        memcpy(sorted, logits, n * sizeof(float));
        qsort(sorted, n, sizeof(float), sample_compare);
        least = sorted[top_k - 1];
        free(sorted);
    }
    const float max = logits[best];
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        logits[i] = logits[i] < least ? 0 : expf((logits[i] - max) / (float)temperature);
        sum += logits[i];
    }
    double left = uniform * sum;
    for (size_t i = 0; i < n; i++) {
        if (logits[i] > 0 && left < logits[i]) return (int32_t)i;
        left -= logits[i];
    }
    return (int32_t)best;  // rounding used up the sum
}

typedef struct {
    int32_t *tokens;    // of the prompt, and those that were drawn
    size_t n;           // how many
    size_t first;       // the model sees tokens[first .. n - 1], at positions 0 and up
    size_t drawn;
    size_t V;           // tokens that may be drawn: 0 .. V-1
    size_t context;
    unsigned char last; // byte of the text
    uint32_t number;    // tells the samples of a run apart: same seed and number, same text
    const Options *o;
    const Tokenizer *tokenizer;
} Sample;

// Prints a part of the text; on a terminal with '?' for control characters, which could do anything
// to it, but not for newline and tab. Those beyond ASCII are C2 80 to C2 9F in UTF-8.
static inline void sample_print(Sample *s, const char *text, size_t n) {
    const bool terminal = isatty(STDOUT_FILENO);
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        const bool control = c < 32 ? c != '\n' && c != '\t'
                                    : c == 127 || (s->last == 0xC2 && c >= 0x80 && c < 0xA0);
        putchar(terminal && control ? '?' : c);
        s->last = c;
    }
    fflush(stdout);
}

// Prints --prompt, of which the model sees the end if it is longer than the context. A prompt
// without tokens becomes the one that ends a text. Ends the program if the model does not know one.
static inline Sample sample_begin(const Options *o, const Tokenizer *tokenizer,
                                  const GPT2Config *c, uint32_t number) {
    const char *prompt = o->prompt != NULL ? o->prompt : "";
    const size_t bytes = strlen(prompt);
    Sample s;
    memset(&s, 0, sizeof s);
    s.o = o;
    s.tokenizer = tokenizer;
    s.number = number;
    s.context = c->context;
    s.V = min_size(c->vocab, tokenizer_vocab(tokenizer));
    s.tokens = (int32_t *)alloc_or_fail(bytes + o->sample_tokens + 1, sizeof(int32_t), "prompt");
    s.n = tokenizer_encode(tokenizer, prompt, bytes, (uint32_t *)s.tokens);
    const int eot = tokenizer_eot(tokenizer);
    if (s.n == 0) s.tokens[s.n++] = eot >= 0 ? eot : '\n';
    for (size_t i = 0; i < s.n; i++)
        if ((size_t)s.tokens[i] >= s.V)
            die("the prompt has token %d, the model knows 0 to %zu", s.tokens[i], s.V - 1);
    s.first = s.n > s.context ? s.n - s.context : 0;
    if (number > 0) printf("--- sample\n");  // while training
    sample_print(&s, prompt, bytes);
    return s;
}

// Draws the next token from its logits (config.vocab or more; overwritten), prints it, and moves
// the window: when the context is full, the model starts again from its second half. False at the
// end of the text, or when --sample-tokens are drawn.
static inline bool sample_next(Sample *s, float *logits) {
    const Philox4 random = philox4x32(s->o->seed, (uint32_t)s->drawn, s->number, 0, RNG_SAMPLE);
    const int32_t next = sample(logits, s->V, s->o->temperature, s->o->top_k,
                                rng_uniform(random, 0));
    if (next == tokenizer_eot(s->tokenizer)) return false;
    size_t length;
    const char *text = tokenizer_token(s->tokenizer, (uint32_t)next, &length);
    sample_print(s, text, length);
    s->tokens[s->n++] = next;
    if (s->n - s->first > s->context) s->first = s->n - (s->context + 1) / 2;
    return ++s->drawn < s->o->sample_tokens;
}

static inline void sample_end(Sample *s) {
    printf("\n%s", s->number > 0 ? "---\n" : "");
    free(s->tokens);
    memset(s, 0, sizeof *s);
}

#endif
