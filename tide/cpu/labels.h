// labels.h: labels_loss(), for classification: which of a few label words, each one token, comes
// next at a given position of each sequence? The loss is the cross-entropy over the logits of these
// words alone, as in MeZO (Malladi et al. 2023).
#ifndef TIDE_LABELS_H
#define TIDE_LABELS_H
#include "../base/model.h"

// Returns the mean loss of B sequences. x (B, T, C): the head's inputs; head (V, C); word: the
// words' tokens; where (B, 2): the position, and the index of the right word. Adds to *right how
// often the right word is the likeliest. If grad_scale is not 0, adds to dx and dhead.
static double labels_loss(float *dx, float *dhead, const float *x, const float *head,
                          const int32_t *word, int words, const int32_t *where, float grad_scale,
                          size_t B, size_t T, size_t C, size_t *right) {
    double sum = 0;
    for (size_t b = 0; b < B; b++) {
        const size_t at = (b * T + (size_t)where[2 * b]) * C;
        const int label = where[2 * b + 1];
        float logit[TASK_LABELS] = {0}, max = -INFINITY, total = 0;
        int best = 0;
        for (int k = 0; k < words; k++) {
            const float *w = head + (size_t)word[k] * C;
            for (size_t c = 0; c < C; c++) logit[k] += x[at + c] * w[c];
            max = fmaxf(max, logit[k]);
            if (logit[k] > logit[best]) best = k;
        }
        for (int k = 0; k < words; k++) total += expf(logit[k] - max);
        sum += logf(total) + max - logit[label];
        *right += best == label;
        for (int k = 0; k < words && grad_scale != 0; k++) {
            const float d = (expf(logit[k] - max) / total - (float)(k == label)) * grad_scale;
            const float *w = head + (size_t)word[k] * C;
            float *dw = dhead + (size_t)word[k] * C;
            for (size_t c = 0; c < C; c++) {
                dx[at + c] += d * w[c];
                dw[c] += d * x[at + c];
            }
        }
    }
    return sum / (double)B;
}

#endif
