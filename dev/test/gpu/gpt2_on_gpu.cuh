// gpt2_on_gpu.cuh: test_gpt2.c's half for the GPU trainer. The CPU's is dev/test/gpt2_on_cpu.h.

// The tolerances in bf16, which rounds a number by up to 2^-8 of its size: errors add up over the
// layers and, in these models, are not averaged over many channels. Twice what was seen. Near ReLU's
// bend, rounding switches a whole unit on or off: such models are allowed four times as much, for
// gradients and parameters. test_model.cu has bands for each kind of tensor, also in larger models.
#define BF16_LOSS_TOLERANCE 8e-3
#define BF16_LOGITS_TOLERANCE 6e-2
#define BF16_GRAD_TOLERANCE 0.18
#define BF16_NORM_TOLERANCE 8e-2
#define BF16_PARAM_TOLERANCE 0.14
#define TOLERANCE(of) (IS_BF16 ? BF16_##of##_TOLERANCE : of##_TOLERANCE)

static double relu(const GPT2 *g) {
    return IS_BF16 && g->config.activation == ACTIVATION_RELU ? 4 : 1;
}

// A GPU works on whole packs of 16 bytes: of the reference's small models, train() refuses some.
static bool refused(const GPT2 *g) {
    const GPT2Config *c = &g->config;
    const size_t pack = Pack<floatX>::N;
    return c->channels % pack != 0 || c->ffn % pack != 0 || config_att(c) % pack != 0
        || config_qkv(c) % pack != 0;
}

static RunState state_of(GPT2 *g) { return gpt2_state(g); }

static void gpt2_make(GPT2 *g, size_t B, size_t T, size_t accum) {
    Error err;
    if (!gpt2_finish(&g->config, &err)) die("%s", err.text);
    g->table = gpt2_table(&g->config);
    g->shards = gpt2_shards_all(&g->table);
    g->max_B = B;
    g->max_T = T;
    g->training = true;
    g->accumulating = accum > 1;
    g->packed = true;  // room for begins
    g->head_rows = 5;
    mlp_chunk = g->config.qk_norm ? 5 : (size_t)1 << 14;  // Qwen3's MLP works in chunks
    g->choice.mode = OFFLOAD_NONE;
    gpt2_place(g);
    gpt2_allocate(g);
}

static void micro_batch(GPT2 *g, const int32_t *inputs, const int32_t *targets,
                        const int32_t *begins, size_t B, size_t T, size_t micro, size_t accum,
                        float *logits) {
    const size_t trained = targets_of(targets, B * T);  // as many in each micro-batch
    gpt2_forward(g, inputs, begins, targets, B, T);
    gpt2_head(g, 1.0f / (float)(trained * accum),
              (double)(B * T) / (double)(trained * accum), micro > 0, logits);
    gpt2_backward(g, micro > 0, micro + 1 == accum);
}

static double norm_and_loss(GPT2 *g, double *loss) { return gpt2_grad_norm_squared(g, loss); }

static float *gradients(GPT2 *g) {
    float *grads = ALLOC(float, g->table.elements, "gradients");
    floats_move(g->grads, grads, g->table.elements, true);
    return grads;
}
