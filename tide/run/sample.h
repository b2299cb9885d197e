// sample.h: text from a model: how a token is drawn from logits, and all parts of a sample that do
// not depend on who computes the logits: the prompt, the window that the model sees, the output.
//   sample_text()    prints --prompt and its continuation
//   sample_chat()    --chat: answers each turn from the standard input
//   sample()         draws a token
#ifndef TIDE_SAMPLE_H
#define TIDE_SAMPLE_H
#include "options.h"
#include "../files/chat.h"

// Keeps the `most` largest of n probabilities, and of these the nucleus (Holtzman et al. 2020): as
// few of the largest as have `share` > 0 of their sum. If some are equal, it takes the first. Sets
// all others to 0. Returns the sum of those that it keeps.
static double sample_keep(float *p, size_t n, size_t most, double share) {
    uint64_t *order = ALLOC(uint64_t, n, "sampling");  // bits of numbers >= 0 are in their order
    size_t kept = 0;
    double all = 0, sum = 0;
    for (size_t i = 0; i < n; i++) order[i] = (uint64_t)~float_bits(p[i]) << 32 | i;
    qsort(order, n, sizeof *order, compare_words);
    for (size_t k = 0; k < most; k++) all += p[(uint32_t)order[k]];
    for (; kept < most && sum < share * all; kept++) sum += p[(uint32_t)order[kept]];
    for (size_t k = kept; k < n; k++) p[(uint32_t)order[k]] = 0;
    free(order);
    return sum;
}

// Draws a token from softmax(logits / temperature), by a random number `uniform` in [0, 1). Draws
// only from the top_k largest of n logits (0: all), and of these only from the fewest that have the
// share top_p of the probability (1: all). Temperature 0 (below 1e-6) takes the largest. Overwrites
// the logits. Returns -1 if one of them is not finite.
static int32_t sample(float *logits, size_t n, double temperature, size_t top_k, double top_p,
                      float uniform) {
    size_t best = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(logits[i])) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    if (temperature < 1e-6) return (int32_t)best;
    const float max = logits[best];
    const size_t most = top_k > 0 ? min_size(top_k, n) : n;
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        logits[i] = expf((logits[i] - max) / (float)temperature);
        sum += logits[i];
    }
    if (most < n || top_p < 1) sum = sample_keep(logits, n, most, top_p);
    double left = uniform * sum;
    for (size_t i = 0; i < n; i++) {
        if (logits[i] > 0 && left < logits[i]) return (int32_t)i;
        left -= logits[i];
    }
    return (int32_t)best;  // only if `left` was rounded up to the sum
}

// Prints n bytes of a text. *last: the byte printed before. On a terminal prints '?' for control
// characters, except newline and tab, because a terminal would obey them. Control characters beyond
// ASCII are C2 80 to C2 9F in UTF-8.
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

// A trainer's function: computes the logits (V) of the token after `count` tokens. All tokens but
// the last `fresh` are the same as in the previous call.
typedef void SampleNext(void *model, const int32_t *tokens, size_t count, size_t fresh,
                        float *logits);

// A text that a model continues.
typedef struct {
    const Options *o;
    const Tokenizer *tokenizer;
    SampleNext *next;
    void *model;
    int32_t begin, end;  // begins every text; ends a text, besides the tokenizer's own; -1: none
    uint32_t number;          // the number of the sample, for its random numbers
    size_t V, context;        // number of tokens that can be drawn; that the model sees at once
    Tokens tokens;            // of the text so far
    size_t first;             // the model sees the tokens from this one on
    size_t seen;              // how many of these the model has seen before
    size_t drawn;
    bool spaceless;           // the next text is printed without the space at its start
    unsigned char last;       // the last byte that was printed
    float *logits;
    FILE *copy;               // gets a copy of all that is printed; NULL: no copy is made
    const volatile sig_atomic_t *stop;  // the text ends when it is not 0; NULL: it is ignored
} Sampler;

// Ends the program if the model lacks one of the tokens.
static void sample_check(const Sampler *s, const char *what) {
    for (size_t i = 0; i < s->tokens.count; i++)
        if (s->tokens.ids[i] >= s->V)
            die("the %s has token %u, the model knows 0 to %zu", what, s->tokens.ids[i], s->V - 1);
}

// Draws and prints at most `most` tokens, up to the end of the text. The model sees the last
// tokens, as many as config_window() allows. When this window is full, a new one begins with the
// second half of the old one. The program ends if logits are not finite.
static void sample_on(Sampler *s, size_t most) {
    const Options *o = s->o;
    for (size_t i = 0; i < most && (s->stop == NULL || *s->stop == 0); i++) {
        if (s->tokens.count - s->first > s->context) {
            s->first = s->tokens.count - (s->context + 1) / 2;
            s->seen = 0;
        }
        int32_t *const from = (int32_t *)s->tokens.ids + s->first;
        const size_t count = s->tokens.count - s->first;
        if (s->first > 0 && s->begin >= 0) *from = s->begin;
        s->next(s->model, from, count, count - s->seen, s->logits);
        s->seen = count;
        const Philox4 random = philox4x32(o->seed, (uint32_t)s->drawn++, s->number, 0, RNG_SAMPLE);
        const int32_t token = sample(s->logits, s->V, o->temperature, o->top_k, o->top_p,
                                     rng_uniform(random, 0));
        if (token < 0) {
            putchar('\n');
            fail("there is no next token: the logits are not finite, as the weights are damaged, "
                 "or too large for --precision");
        }
        if (tokenizer_ends(s->tokenizer, token) || token == s->end) break;
        size_t length;
        const char *text = tokenizer_token(s->tokenizer, (uint32_t)token, &length);
        const bool space = s->spaceless && length > 0 && *text == ' ';
        sample_print(text + space, length - space, &s->last);
        if (s->copy != NULL) fwrite(text + space, 1, length - space, s->copy);
        s->spaceless = false;
        tokens_add(&s->tokens, (uint32_t)token);
    }
}

// Prints --prompt and its continuation, up to the end of the text or to --sample-tokens. An empty
// prompt becomes s->begin, or else the token that ends a text. A token that the model lacks ends
// the program.
static void sample_text(Sampler *s) {
    const char *prompt = s->o->prompt != NULL ? s->o->prompt : "";
    const size_t bytes = strlen(prompt);
    tokenizer_text(s->tokenizer, prompt, bytes, 0, s->begin, -1, &s->tokens);
    const int end = s->tokenizer->eot >= 0 ? s->tokenizer->eot : '\n';
    if (s->tokens.count == 0) tokens_add(&s->tokens, (uint32_t)end);
    sample_check(s, "prompt");
    if (s->number > 0) printf("--- sample\n");
    sample_print(prompt, bytes, &s->last);
    s->first = s->tokens.count - min_size(s->tokens.count, s->context);
    s->spaceless = bytes == 0 && (s->tokenizer->steps & STEP_STRIP) != 0;
    sample_on(s, s->o->sample_tokens);
    printf("\n%s", s->number > 0 ? "---\n" : "");
}

// ---------------------------------------------------------------------------------------------
// A conversation

// Replaces the sampler's tokens by those of the conversation, and returns their number. Tokens at
// its beginning that the model has already seen there are not computed again.
static size_t chat_tokens(Sampler *s, const Chat *chat, const ChatMessage *m, size_t count) {
    size_t n, same = 0;
    int32_t *tokens = chat_encode(chat, m, count, &n);
    for (size_t i = 0; i < n; i++) tokens[i] = token_id(tokens[i]);
    while (same + 1 < n && same < s->seen && tokens[same] == (int32_t)s->tokens.ids[same]) same++;
    free(s->tokens.ids);
    s->tokens = (Tokens){(uint32_t *)tokens, n, n};
    s->first = 0;
    s->seen = same;
    sample_check(s, "conversation");
    return n;
}

// Does the work of --chat: answers each turn, a line of the standard input that is not empty, with
// at most --sample-tokens. --prompt is the system message. If the window has no room for an answer,
// forgets the oldest turns. Ends with the input, or when *s->stop is not 0.
static void sample_chat(Sampler *s, const Chat *chat) {
    const Options *o = s->o;
    const bool terminal = isatty(STDIN_FILENO), system = option_given(o, "prompt");
    bool full = false;
    const size_t room = min_size(o->sample_tokens, s->context / 2);
    ChatMessage *m = ALLOC(ChatMessage, 1, "a conversation");
    size_t count = 0;
    if (system) m[count++] = (ChatMessage){CHAT_SYSTEM, o->prompt, strlen(o->prompt)};
    while (*s->stop == 0) {
        char *text = NULL, *answer = NULL;  // both stay in memory, as parts of m
        size_t space = 0, before;
        if (terminal) printf("> ");
        fflush(stdout);
        if (getline(&text, &space, stdin) < 0) break;
        const size_t length = strcspn(text, "\r\n");
        if (encode_white(text, length, false, true) == length) continue;
        m = (ChatMessage *)realloc(m, (count + 2) * sizeof *m);
        if (m == NULL) fail("out of memory: a conversation");
        m[count++] = (ChatMessage){CHAT_USER, text, length};
        m[count++] = (ChatMessage){CHAT_ASSISTANT, NULL, 0};
        while ((before = chat_tokens(s, chat, m, count)) + room > s->context
               && count - system > 2) {
            if (!full) fprintf(stderr, "tide: the window of %zu tokens is full: from here on the "
                               "model forgets the oldest turns\n", s->context);
            full = true;
            count -= 2;
            memmove(m + system, m + system + 2, (count - system) * sizeof *m);
        }
        if (before > s->context) {
            fprintf(stderr, "tide: that is too long: %zu tokens, and the model sees %zu\n", before,
                    s->context);
            count -= 2;
            continue;
        }
        const size_t most = min_size(o->sample_tokens, s->context + 1 - before);
        s->spaceless = (chat->format->rules & CHAT_SPACED) != 0;
        s->copy = text_open(&answer, &m[count - 1].n);
        sample_on(s, most);
        text_close(s->copy);
        m[count - 1].text = answer;
        sample_print("\n", 1, &s->last);
        if (s->tokens.count - before == most)
            fprintf(stderr, "tide: the answer was cut here, after %zu token%s (%s)\n", most,
                    plural(most), most < o->sample_tokens ? "a full window" : "--sample-tokens");
    }
    if (terminal) printf("\n");
}

#endif
