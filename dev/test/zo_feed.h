// zo_feed.h: what zeroth-order steps of a test are fed with: windows of tokens, or prompts with
// labels.
#ifndef TIDE_ZO_FEED_H
#define TIDE_ZO_FEED_H
#include "../../tide/base/rng.h"
#include "../../tide/run/open.h"

enum { FEED_TOKENS = 1500, FEED_PROMPTS = 7, FEED_ROOM = 16 };

typedef struct {
    Run r;
    uint16_t tokens[FEED_TOKENS];
    TokenSegment segment;
    TokenData data;
    size_t first[FEED_PROMPTS + 1], example[FEED_PROMPTS + 1];
    int32_t prompts[FEED_PROMPTS * FEED_ROOM];
    int label[FEED_PROMPTS];
} Feed;

// Makes *f for rows (B, T) of tokens below `below`; with `task`, of prompts of 3, 5, .. tokens, the
// last ones longer than a row, each with one of three words as its label.
static void feed_fill(Feed *f, const GPT2Config *c, size_t B, size_t T, size_t below, bool task) {
    Run *r = &f->r;
    memset(f, 0, sizeof *f);
    r->state.config = *c;
    r->B = B;
    r->T = T;
    r->world = 1;
    for (size_t i = 0; i < FEED_TOKENS; i++)
        f->tokens[i] = (uint16_t)(philox4x32(50, (uint32_t)i, 0, 0, 0).x[0] % below);
    f->segment.name = "tokens";
    f->segment.tokens = f->tokens;
    f->segment.count = f->data.tokens = FEED_TOKENS;
    f->segment.width = 2;
    f->data.count = 1;
    f->data.segments = &f->segment;
    r->train = loader_make(&f->data, 0, FEED_TOKENS, T, 3, false, NULL);
    r->task = r->asks = r->words = task;
    if (!task) return;
    for (size_t i = 0; i < FEED_PROMPTS; i++) {
        f->first[i + 1] = f->first[i] + 3 + 2 * i;
        f->label[i] = (int)(i % 3);
        f->example[i + 1] = i + 1;
    }
    for (size_t i = 0; i < FEED_PROMPTS * FEED_ROOM; i++) f->prompts[i] = f->tokens[i];
    Task *t = &r->task_all;
    t->count = FEED_PROMPTS;
    t->example = f->example;
    t->first = f->first;
    t->pieces = FEED_PROMPTS;
    t->tokens = f->prompts;
    t->label = f->label;
    t->labels = 3;
    t->first_token = -1;
    for (int k = 0; k < 3; k++) t->word[k] = 5 + 9 * k;
    r->task_train = r->task_val = task_view(t, 0, FEED_PROMPTS);
    task_pack(&r->task_train, T, false);
}
#endif
