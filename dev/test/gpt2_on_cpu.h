// gpt2_on_cpu.h: test_gpt2.c's half for the CPU trainer. The GPU's is dev/test/gpu/gpt2_on_gpu.cuh.

#define TOLERANCE(of) of##_TOLERANCE

// Returns the factor by which a tolerance is looser in a model with ReLU.
static double relu(const GPT2 *g) { return (void)g, 1; }

// Does the trainer refuse this shape?
static bool refused(const GPT2 *g) { return (void)g, false; }

static RunState state_of(GPT2 *g) { return state_in(&g->params, 1); }

// A model of g->config for steps of so many micro-batches; the rest of *g is 0. accum 0: it does
// not train, and layers share their activations.
static void gpt2_make(GPT2 *g, size_t B, size_t T, size_t accum) {
    Error err;
    if (!gpt2_finish(&g->config, &err)) die("%s", err.text);
    g->table = gpt2_table(&g->config);
    g->max_B = B;
    g->max_T = T;
    g->training = accum > 0;
    g->sampling = true;
    gpt2_allocate(g, 0, true);
}

// Forward and backward of one of a step's `accum` micro-batches.
static double loss_so_far;
static void micro_batch(GPT2 *g, const int32_t *inputs, const int32_t *targets,
                        const int32_t *begins, size_t B, size_t T, size_t micro, size_t accum,
                        float *logits) {
    const size_t trained = targets_of(targets, B * T);  // as many in each micro-batch
    gpt2_forward(g, inputs, begins, B, T);
    const double loss = gpt2_head(g, targets, 1.0f / (float)(trained * accum), micro > 0, logits)
                      * (double)(B * T) / (double)trained;
    loss_so_far = (micro > 0 ? loss_so_far : 0) + loss / (double)accum;
    gpt2_backward(g, inputs, micro > 0);
}

// The square of the gradient's norm, and the loss, of the step.
static double norm_and_loss(GPT2 *g, double *loss) {
    *loss = loss_so_far;
    return gpt2_grad_norm_squared(g);
}

// The gradient of a step with one micro-batch, as floats. free() it.
static float *gradients(GPT2 *g) {
    float *grads = ALLOC(float, g->table.elements, "gradients");
    memcpy(grads, g->grads, g->table.elements * sizeof(float));
    return grads;
}
