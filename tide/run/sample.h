// sample.h: text from a model. Drawing a token from its logits, and everything about a sample that
// does not depend on who computes them: the prompt, the window that the model sees, the printing.
//   sample_text()    prints --prompt and its continuation
//   sample()         draws a token
//   decode()         on a CPU: one token's logits, with the keys and values of those before it
#ifndef TIDE_SAMPLE_H
#define TIDE_SAMPLE_H
#include "../base/util.h"
#include "../base/model.h"
#include "options.h"
#include "../base/rng.h"
#include "../files/tokenizer.h"
#include "../base/vmath.h"

static int sample_compare(const void *a, const void *b) {  // descending
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

// Draws from softmax(logits / temperature) over the top_k largest (0: all) of n logits; uniform is
// in [0, 1). Temperature 0 (below 1e-6) takes the largest. Overwrites the logits. Returns -1 if one
// of them is not finite.
static int32_t sample(float *logits, size_t n, double temperature, size_t top_k, float uniform) {
    size_t best = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(logits[i])) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    if (temperature < 1e-6) return (int32_t)best;
    float least = -INFINITY;
    if (top_k > 0 && top_k < n) {
        float *sorted = ALLOC(float, n, "sampling");
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

// Prints a part of the text, after the byte *last; on a terminal with '?' for control characters,
// which could do anything to it, but not for newline and tab. Those beyond ASCII are C2 80 to C2 9F
// in UTF-8.
static void sample_print(const char *text, size_t n, unsigned char *last) {
    const bool terminal = isatty(STDOUT_FILENO);
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        const bool control = c < 32 ? c != '\n' && c != '\t'
                                    : c == 127 || (*last == 0xC2 && c >= 0x80 && c < 0xA0);
        putchar(terminal && control ? '?' : c);
        *last = c;
    }
    fflush(stdout);
}

// What a trainer offers: the logits (V) of the token after the last of `count` tokens. All but the
// last `fresh` of them are those of the call before.
typedef void SampleNext(void *model, const int32_t *tokens, size_t count, size_t fresh,
                        float *logits);

// Prints --prompt and its continuation, to the end of the text or for --sample-tokens. The model
// sees the last tokens that its context holds; when that is full, it starts again from its second
// half. begin: the first token of every text of this model, which stays the first that it sees; -1:
// there is none. A prompt without tokens becomes the one that ends a text; a token that the model
// does not have, or logits that are not finite, end the program. number: tells the samples of a run
// apart (same seed and number, same text); 0: nothing is trained.
static void sample_text(const Options *o, const Tokenizer *tokenizer, const GPT2Config *c,
                        int32_t begin, uint32_t number, SampleNext *next, void *model) {
    const char *prompt = o->prompt != NULL ? o->prompt : "";
    const size_t bytes = strlen(prompt), context = c->context;
    const size_t V = min_size(c->vocab, tokenizer->vocab);  // those that may be drawn
    const size_t room = tokenizer_room(tokenizer, bytes) + o->sample_tokens + 2;
    int32_t *tokens = ALLOC(int32_t, room, "prompt");
    float *logits = ALLOC(float, c->vocab, "sampling");
    unsigned char last = 0;
    size_t n = tokenizer_begin(tokenizer, begin, prompt, bytes, (uint32_t *)tokens);
    if (n == 0) tokens[n++] = tokenizer->eot >= 0 ? tokenizer->eot : '\n';
    for (size_t i = 0; i < n; i++)
        if ((size_t)tokens[i] >= V)
            die("the prompt has token %d, the model knows 0 to %zu", tokens[i], V - 1);
    if (number > 0) printf("--- sample\n");
    sample_print(prompt, bytes, &last);
    size_t first = n > context ? n - context : 0;  // the model sees tokens[first .. n - 1]
    size_t fresh = n - first;
    for (size_t drawn = 0; drawn < o->sample_tokens; drawn++) {
        if (first > 0 && begin >= 0) tokens[first] = begin;
        next(model, tokens + first, n - first, fresh, logits);
        const Philox4 random = philox4x32(o->seed, (uint32_t)drawn, number, 0, RNG_SAMPLE);
        const int32_t token = sample(logits, V, o->temperature, o->top_k, rng_uniform(random, 0));
        if (token < 0) {
            putchar('\n');
            fail("there is no next token: the logits are not finite, as the weights are damaged, "
                 "or too large for --precision");
        }
        if (tokenizer_ends(tokenizer, token)) break;
        size_t length;
        const bool first_text = bytes == 0 && drawn == 0;
        const char *text = first_text ? tokenizer_first(tokenizer, (uint32_t)token, &length)
                                      : tokenizer_token(tokenizer, (uint32_t)token, &length);
        sample_print(text, length, &last);
        tokens[n++] = token;
        fresh = 1;
        if (n - first > context) {
            first = n - (context + 1) / 2;
            fresh = n - first;
        }
    }
    printf("\n%s", number > 0 ? "---\n" : "");
    free(tokens);
    free(logits);
}

// ---------------------------------------------------------------------------------------------
// On a CPU: a new token only computes its own row, because a cache keeps the keys and values of
// those before it.

// Floats of the cache: keys and values (L, context, C); then the rows of one token.
static size_t decode_floats(const GPT2Config *c) {
    return 2 * c->layers * c->context * c->channels + 2 * c->channels + config_qkv(c)
         + config_mlp(c) + c->context;
}

// out (OC) = w (OC, C) . x + b: one row is bound by reading w, so there is nothing to block.
static void decode_matvec(float *out, const float *x, const float *w, const float *b, size_t C,
                          size_t OC) {
    #pragma omp parallel for
    for (size_t o = 0; o < OC; o++) {
        float sum = 0;
        #pragma omp simd reduction(+ : sum)
        for (size_t c = 0; c < C; c++) sum += x[c] * w[o * C + c];
        out[o] = b != NULL ? sum + b[o] : sum;
    }
}

// One query (C) over the first `seen` keys and values (context, C). scores: (context).
static void decode_attention(float *out, const float *query, const float *keys, const float *values,
                             float *scores, size_t seen, size_t C, size_t NH) {
    const size_t HS = C / NH;
    const float scale = 1.0f / sqrtf((float)HS);
    for (size_t i = 0; i < C; i++) out[i] = 0;
    for (size_t h = 0; h < C; h += HS) {
        float max = -INFINITY, sum = 0;
        for (size_t u = 0; u < seen; u++) {
            float dot = 0;
            #pragma omp simd reduction(+ : dot)
            for (size_t i = 0; i < HS; i++) dot += query[h + i] * keys[u * C + h + i];
            scores[u] = dot * scale;
            max = fmaxf(max, scores[u]);
        }
        for (size_t u = 0; u < seen; u++) {
            const float p = exp_f32(scores[u] - max);
            sum += p;
            for (size_t i = 0; i < HS; i++) out[h + i] += p * values[u * C + h + i];
        }
        for (size_t i = 0; i < HS; i++) out[h + i] /= sum;
    }
}

// The token at this position, below the context; the cache has those before it. logits (V) then
// predict the next one. NULL: nobody asks.
static void decode(const GPT2Config *c, const GPT2Table *t, const float *params, float *cache,
                   int32_t token, size_t position, float *logits) {
    const size_t C = c->channels, E = config_embed(c), F = c->ffn, L = c->layers;
    const bool post = c->post_norm;
    float mean;
    float *x = cache + 2 * L * c->context * C, *row = x + C, *qkv = row + C;
    float *wide = qkv + config_qkv(c);
    #define AT(k) (params + t->tensors[k].offset)
    const float *wte = AT(t->wte) + (size_t)token * E, *wpe = AT(t->wpe) + position * C;
    if (post) decode_matvec(row, wte, AT(t->project_in), NULL, E, C);
    for (size_t i = 0; i < C; i++) x[i] = (post ? row : wte)[i] + wpe[i];
    for (size_t l = 0; l < L; l++) {
        const int w = t->first_layer + (int)l * LAYER_TENSORS;
        float *keys = cache + l * c->context * C, *values = keys + L * c->context * C;
        if (!post) normalise(row, &mean, x, AT(w + LN_1_W), AT(w + LN_1_B), C, LAYERNORM_EPS);
        decode_matvec(qkv, post ? x : row, AT(w + QKV_W), AT(w + QKV_B), C, config_qkv(c));
        memcpy(keys + position * C, qkv + C, C * sizeof(float));
        memcpy(values + position * C, qkv + 2 * C, C * sizeof(float));
        decode_attention(row, qkv, keys, values, wide + F, position + 1, C, c->heads);
        decode_matvec(qkv, row, AT(w + ATTPROJ_W), AT(w + ATTPROJ_B), C, C);
        for (size_t i = 0; i < C; i++) x[i] += qkv[i];
        const int norm = post ? LN_1_W : LN_2_W;
        normalise(row, &mean, x, AT(w + norm), AT(w + norm + 1), C, LAYERNORM_EPS);
        if (post) memcpy(x, row, C * sizeof(float));
        decode_matvec(wide, row, AT(w + FC_W), AT(w + FC_B), C, F);
        for (size_t i = 0; i < F; i++)
            wide[i] = c->activation == ACTIVATION_RELU ? fmaxf(wide[i], 0) : gelu_f32(wide[i]);
        decode_matvec(row, wide, AT(w + FCPROJ_W), AT(w + FCPROJ_B), F, C);
        for (size_t i = 0; i < C; i++) x[i] += row[i];
        if (!post) continue;
        normalise(row, &mean, x, AT(w + LN_2_W), AT(w + LN_2_B), C, LAYERNORM_EPS);
        memcpy(x, row, C * sizeof(float));
    }
    if (logits == NULL) return;
    if (post) decode_matvec(row, x, AT(t->project_out), NULL, C, E);
    else normalise(row, &mean, x, AT(t->ln_f_w), AT(t->ln_f_b), C, LAYERNORM_EPS);
    decode_matvec(logits, row, AT(t->lm_head), NULL, E, c->vocab);
    #undef AT
}

#endif
