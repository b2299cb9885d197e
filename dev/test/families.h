// families.h: a small model of each family. Include it after files.h.
#ifndef TIDE_FAMILIES_H
#define TIDE_FAMILIES_H
#include "../../tide/base/model.h"

// Sizes that no tile, block or alignment divides; and all that the LLaMA family's config.json says.
static GPT2Config config_of(int family, int tied) {
    static const Rope ropes[] = {
        {5e5, ROPE_LLAMA3, 8, 1, 4, 7}, {1e4, ROPE_NONE, 0, 0, 0, 0},
        {123.4567, ROPE_LINEAR, 2.5, 0, 0, 0}, {1e6, ROPE_NONE, 0, 0, 0, 0},
        {5e6, ROPE_NONE, 0, 0, 0, 0}};
    GPT2Config c = {.family = family};
    config_family(&c);
    c.layers = 2; c.heads = 4; c.channels = 20; c.ffn = 37; c.context = 9; c.vocab = 131;
    c.tied = tied;
    if (family >= FAMILY_LLAMA) {
        c.kv_heads = 2;
        c.head_size = 6;  // not C / NH
        c.norm_eps = tied ? 1e-5 : 3e-7;
        c.rope = ropes[family - FAMILY_LLAMA];
    }
    if (family == FAMILY_LLAMA && tied) c.unbiased = 0;
    if (family == FAMILY_QWEN3 && !tied) c.unbiased = BIAS_MLP;
    if (family == FAMILY_SMOLLM3) c.unturned = tied ? 4 : 2;
    if (family == FAMILY_MISTRAL && tied) c.window = 5;
    gpt2_finish(&c, &err);
    return c;
}

#endif
