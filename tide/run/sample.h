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

// Returns a copy of the n numbers, the largest first; the caller frees it.
static float *sample_sorted(const float *x, size_t n) {
    float *sorted = ALLOC(float, n, "sampling");
    memcpy(sorted, x, n * sizeof(float));
    qsort(sorted, n, sizeof(float), sample_compare);
    return sorted;
}

// Keeps the nucleus (Holtzman et al. 2020): the largest of n probabilities, as few as add up to
// `enough`, which is above 0; of equal ones, the first. Makes all others 0. Returns the sum.
static double sample_nucleus(float *p, size_t n, double enough) {
    float *sorted = sample_sorted(p, n);
    size_t kept = 0, equal = 0;
    double sum = 0;
    while (kept < n && sum < enough) sum += sorted[kept++];
    const float least = sorted[kept - 1];
    while (equal < kept && sorted[kept - 1 - equal] == least) equal++;
    for (size_t i = 0; i < n; i++) {
        const bool last = p[i] == least && equal > 0;  // on the border, and still in
        if (p[i] <= least && !last) p[i] = 0;
        equal -= last;
    }
    free(sorted);
    return sum;
}

// Draws from softmax(logits / temperature) over the top_k largest (0: all) of n logits, and of
// these over as few of the largest as have the share top_p of their probability (1: all); uniform
// is in [0, 1). Temperature 0 (below 1e-6) takes the largest. Overwrites the logits. Returns -1 if
// one of them is not finite.
static int32_t sample(float *logits, size_t n, double temperature, size_t top_k, double top_p,
                      float uniform) {
    size_t best = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(logits[i])) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    if (temperature < 1e-6) return (int32_t)best;
    float least = -INFINITY;
    if (top_k > 0 && top_k < n) {
        float *sorted = sample_sorted(logits, n);
        least = sorted[top_k - 1];
        free(sorted);
    }
    const float max = logits[best];
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        logits[i] = logits[i] < least ? 0 : expf((logits[i] - max) / (float)temperature);
        sum += logits[i];
    }
    if (top_p < 1) sum = sample_nucleus(logits, n, top_p * sum);
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
// sees the last tokens, as many as config_window() allows; when these are too many, it starts again
// from their second half. begin: the first token of every text of this model, which stays the first
// that it sees; -1: there is none. A prompt without tokens becomes the one that ends a text; a
// token that the model does not have, or logits that are not finite, end the program. number: tells
// the samples of a run apart (same seed and number, same text); 0: nothing is trained.
static void sample_text(const Options *o, const Tokenizer *tokenizer, const GPT2Config *c,
                        int32_t begin, uint32_t number, SampleNext *next, void *model) {
    const char *prompt = o->prompt != NULL ? o->prompt : "";
    const size_t bytes = strlen(prompt), context = config_window(c);
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
        const int32_t token = sample(logits, V, o->temperature, o->top_k, o->top_p,
                                     rng_uniform(random, 0));
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

// Width of the row that holds what a branch reads and adds, by turns.
static size_t decode_row(const GPT2Config *c) {
    return config_att(c) > c->channels ? config_att(c) : c->channels;
}

// Floats of the cache: keys and values (L, window, NKV HS); then the rows of one token, and the
// cosines and sines of its position.
static size_t decode_floats(const GPT2Config *c) {
    return 2 * c->layers * config_window(c) * config_kv(c) * config_head(c) + 2 * c->channels
         + decode_row(c) + config_qkv(c) + config_mlp(c) + config_window(c) + config_head(c);
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

// The queries of one token (NH, HS) over the first `seen` keys and values (context, NKV, HS).
// scores: (context).
static void decode_attention(float *out, const float *queries, const float *keys,
                             const float *values, float *scores, size_t seen, size_t NH,
                             size_t NKV, size_t HS) {
    const float scale = 1.0f / sqrtf((float)HS);
    memset(out, 0, NH * HS * sizeof *out);
    for (size_t h = 0; h < NH; h++) {
        const float *q = queries + h * HS;
        const size_t at = h / (NH / NKV) * HS, pitch = NKV * HS;
        float max = -INFINITY, sum = 0, *o = out + h * HS;
        for (size_t u = 0; u < seen; u++) {
            float dot = 0;
            #pragma omp simd reduction(+ : dot)
            for (size_t i = 0; i < HS; i++) dot += q[i] * keys[u * pitch + at + i];
            scores[u] = dot * scale;
            max = fmaxf(max, scores[u]);
        }
        for (size_t u = 0; u < seen; u++) {
            const float p = exp_f32(scores[u] - max);
            sum += p;
            for (size_t i = 0; i < HS; i++) o[i] += p * values[u * pitch + at + i];
        }
        for (size_t i = 0; i < HS; i++) o[i] /= sum;
    }
}

// The token at this position, below config_window(); the cache has those before it. logits (V) then
// predict the next one. NULL: nobody asks.
static void decode(const GPT2Config *c, const GPT2Table *t, const float *params, float *cache,
                   int32_t token, size_t position, float *logits) {
    const size_t C = c->channels, E = config_embed(c), F = c->ffn, L = c->layers;
    const size_t NH = c->heads, NKV = config_kv(c), HS = config_head(c), K = NKV * HS;
    const size_t window = config_window(c);
    const bool post = c->post_norm;
    const float eps = config_eps(c);
    float unused, *const mean = c->rms ? NULL : &unused;
    float *x = cache + 2 * L * window * K, *row = x + C, *qkv = row + decode_row(c);
    float *wide = qkv + config_qkv(c), *added = wide + config_mlp(c);
    float *scores = added + C, *angle = scores + window;
    #define AT(i) ((i) < 0 ? NULL : params + t->tensors[i].offset)
    #define LAYER(kind) AT(layer_tensor(t, l, kind))
    const float *wte = AT(t->wte) + (size_t)token * E, *wpe = AT(t->wpe);
    if (post) decode_matvec(row, wte, AT(t->project_in), NULL, E, C);
    memcpy(x, post ? row : wte, C * sizeof *x);
    if (wpe != NULL)
        for (size_t i = 0; i < C; i++) x[i] += wpe[position * C + i];
    else rope_row(&c->rope, position, HS, angle);
    for (size_t l = 0; l < L; l++) {
        float *keys = cache + l * window * K, *values = keys + L * window * K;
        if (!post) normalise(row, mean, x, LAYER(LN_1_W), LAYER(LN_1_B), C, eps);
        decode_matvec(qkv, post ? x : row, LAYER(QKV_W), LAYER(QKV_B), C, config_qkv(c));
        if (wpe == NULL)
            for (size_t h = 0; h < NH + NKV; h++) {
                float *head = qkv + h * HS;
                const float *w = LAYER(h < NH ? Q_NORM : K_NORM);
                if (w != NULL) normalise(head, NULL, head, w, NULL, HS, eps);
                rope_rotate(head, angle, HS, 1);
            }
        memcpy(keys + position * K, qkv + NH * HS, K * sizeof(float));
        memcpy(values + position * K, qkv + NH * HS + K, K * sizeof(float));
        decode_attention(row, qkv, keys, values, scores, position + 1, NH, NKV, HS);
        decode_matvec(added, row, LAYER(ATTPROJ_W), LAYER(ATTPROJ_B), NH * HS, C);
        for (size_t i = 0; i < C; i++) x[i] += added[i];
        if (post) normalise(row, mean, x, LAYER(LN_1_W), LAYER(LN_1_B), C, eps);
        else normalise(row, mean, x, LAYER(LN_2_W), LAYER(LN_2_B), C, eps);
        if (post) memcpy(x, row, C * sizeof(float));
        decode_matvec(wide, row, LAYER(FC_W), LAYER(FC_B), C, config_mlp(c));
        for (size_t i = 0; i < F; i++) {
            if (config_gated(c)) wide[i] *= sigmoid_f32(wide[i]) * wide[F + i];
            else wide[i] = c->activation == ACTIVATION_RELU ? fmaxf(wide[i], 0) : gelu_f32(wide[i]);
        }
        decode_matvec(row, wide, LAYER(FCPROJ_W), LAYER(FCPROJ_B), F, C);
        for (size_t i = 0; i < C; i++) x[i] += row[i];
        if (!post) continue;
        normalise(row, mean, x, LAYER(LN_2_W), LAYER(LN_2_B), C, eps);
        memcpy(x, row, C * sizeof(float));
    }
    if (logits == NULL) return;
    if (post) decode_matvec(row, x, AT(t->project_out), NULL, C, E);
    else normalise(row, mean, x, AT(t->ln_f_w), AT(t->ln_f_b), C, eps);
    decode_matvec(logits, row, AT(t->lm_head), NULL, E, c->vocab);
    #undef LAYER
    #undef AT
}

#endif
