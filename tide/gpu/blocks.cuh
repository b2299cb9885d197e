// blocks.cuh: a layer on the GPU. Its forward pass is four parts, which training, recomputation,
// evaluation, sampling and both signs of zeroth order run. Its backward pass is one function.
//
//     layer_part()       part 0: q, k, v and attention; 1: projection, sum and norm; 2: the MLP's
//                        first product and the non-linearity; 3: its second product
//     layer_backward()   the gradients of a layer's parameters and of its input
//     forward_segment(), recompute(), backward_segment()    the embeddings, a layer, or the tail
#ifndef TIDE_BLOCKS_CUH
#define TIDE_BLOCKS_CUH
#include "gpt2.cuh"

// Counts, in a rehearsal, the bytes that the passes between a layer's products read and write:
// norms and sums, rotation, non-linearity. Norms take twice the time of their bytes in backward
// (doc/gpu_results.md). There, GELU's slopes and the sums of biases take none in 16 bits: they are
// in the epilogues of products (matmul_backward).
static void layer_passes(GPT2 *g, bool backward) {
    const GPT2Config *c = &g->config;
    const size_t C = c->channels, F = c->ffn, M = config_mlp(c);
    const size_t turned = c->rope.theta > 0 ? 2 * config_qk(c) : 0;
    const bool passes = sizeof(floatX) == 4;
    const size_t summed = passes && config_biased(c, BIAS_QKV) ? config_qkv(c) : 0;
    const size_t sloped = passes || c->activation != ACTIVATION_GELU ? F + 2 * M : 0;
    const size_t each = backward ? 16 * C + sloped + summed : 8 * C + F + M;
    GPU_TAKES(g->compute, (each + turned) * g->B * g->T * sizeof(floatX), gpu_bytes);
}

// Runs a part of a layer with weights w: the part's, and those of the norm of its sum. Part 0
// begins with att_in: the norm of x that pre-norm layers read is made before. Part 3 ends with
// a->branch; post-norm layers add and normalise it, into a->out.
static void layer_part(GPT2 *g, int part, const LayerActs *a, const LayerWeights *w) {
    const GPT2Config *c = &g->config;
    const size_t C = c->channels, F = c->ffn, B = g->B, T = g->T, N = B * T;
    const size_t A = config_att(c), Q = config_qkv(c), M = config_mlp(c);
    const AttentionShape s = attention_shape(B, T, c->heads, config_kv(c), config_head(c));
    const float eps = config_eps(c);
    const bool post = c->post_norm;
    Matmul *lt = &g->lt;
    cudaStream_t stream = g->compute;
    if (part == 0) {
        matmul_forward(lt, a->qkv, a->att_in, w->qkv_w, w->qkv_b, N, C, Q, stream);
        if (c->rope.theta > 0)
            heads_forward(a->qkv, a->qk, a->qk_rstd, w->q_norm, w->k_norm,
                          g->rope + g->position * s.HS, g->documents, s, eps, stream);
        if (a->cache != NULL)
            cache_store(a->cache + g->position * cache_row(c), a->qkv, N, s, stream);
        if (a->cache != NULL && N == 1)
            attention_cached(a->atty, a->lse, a->qkv, a->cache, g->position + 1, s, stream);
        else
            attention_forward(a->atty, a->lse, a->qkv, g->documents, s, stream);
    } else if (part == 1) {
        matmul_forward(lt, a->branch, a->atty, w->attproj_w, w->attproj_b, N, A, C, stream);
        residual_layernorm_forward(a->mid, a->mlp_in, a->mid_mean, a->mid_rstd, a->x, a->branch,
                                   w->mid_w, w->mid_b, N, C, eps, stream);
    } else if (part == 2) {
        matmul_forward(lt, a->fc, a->mlp_in, w->fc_w, w->fc_b, N, C, M, stream);
        activation_forward(a->act, a->fc, N, F, c->activation, stream);
    } else {
        matmul_forward(lt, a->branch, a->act, w->fcproj_w, w->fcproj_b, N, F, C, stream);
        if (post)
            residual_layernorm_forward(a->ln_2, a->out, a->mean_2, a->rstd_2, a->ln_1, a->branch,
                                       w->ln_2_w, w->ln_2_b, N, C, eps, stream);
    }
}

// Runs the backward pass of layer l. g->dx is the gradient of the residual stream, first of the
// layer's output, at the end of its input: every branch reads it, and adds its own part where it
// left the stream. The sums of its columns are a bias's gradient, and made where it is written. For
// fcproj's bias that is the segment above, when this layer's gradient has no place yet: scratch
// keeps them until now.
static void layer_backward(GPT2 *g, size_t l) {
    const GPT2Config *c = &g->config;
    const size_t C = c->channels, F = c->ffn, B = g->B, T = g->T, N = B * T;
    const size_t A = config_att(c), Q = config_qkv(c), M = config_mlp(c);
    const AttentionShape s = attention_shape(B, T, c->heads, config_kv(c), config_head(c));
    const bool post = c->post_norm;
    const LayerActs a = layer_acts(g, l);
    const LayerWeights w = layer_weights(g, l), d = layer_grads(g, l);
    floatX *dwide = g->dwide;
    floatX *dx = g->dx, *dc = g->branch;  // the gradients of the stream and in a branch
    float *sum = g->scratch;
    Matmul *lt = &g->lt;
    cudaStream_t stream = g->compute;
    if (post) {  // the gradient of a sum is made anew by its normalisation
        dx = g->branch;
        dc = g->dx;
        stream_zero(dx, N * C * sizeof(floatX), stream);
        layernorm_backward(dx, d.ln_2_w, d.ln_2_b, d.fcproj_b, sum, dc, a.ln_2, w.ln_2_w,
                           a.mean_2, a.rstd_2, N, C, stream);
    } else if (d.fcproj_b != NULL) {
        layernorm_dinp_sum(d.fcproj_b, sum, N, C, stream);  // by the norm above this layer
    }
    // MLP branch: dx -> dact -> dfc -> dmlp_in -> dx
    const bool sloped = matmul_backward(lt, dwide, M, d.fcproj_w, dx, a.act, w.fcproj_w, N, F, C,
                                        stream, c->activation == ACTIVATION_GELU ? a.fc : NULL);
    if (!sloped) activation_backward(dwide, d.fc_b, sum, a.fc, N, F, c->activation, stream);
    matmul_backward(lt, dc, C, d.fc_w, dwide, a.mlp_in, w.fc_w, N, C, M, stream, NULL,
                    sloped ? d.fc_b : NULL, sum);
    if (post) {
        residual_forward(dc, dx, N * C, stream);
        stream_zero(dx, N * C * sizeof(floatX), stream);
    }
    layernorm_backward(dx, d.mid_w, d.mid_b, d.attproj_b, sum, dc, a.mid, w.mid_w,
                       a.mid_mean, a.mid_rstd, N, C, stream);
    // attention branch: dx -> datty -> dqkv -> datt_in -> dx
    matmul_backward(lt, dc, A, d.attproj_w, dx, a.atty, w.attproj_w, N, A, C, stream);
    attention_backward(dwide, attention_room(g), g->delta, dc, a.atty, a.lse, a.qkv, g->documents,
                       s, stream);
    if (c->rope.theta > 0)
        heads_backward(dwide, d.q_norm, d.k_norm, sum, a.qk, a.qk_rstd, w.q_norm, w.k_norm, g->rope,
                       g->documents, s, stream);
    matmul_backward(lt, dc, C, d.qkv_w, dwide, a.att_in, w.qkv_w, N, C, Q, stream, NULL, d.qkv_b,
                    sum);
    if (post) residual_forward(dc, dx, N * C, stream);  // in g->dx again
    else layernorm_backward<floatX>(dx, d.ln_1_w, d.ln_1_b, NULL, sum, dc, a.x, w.ln_1_w,
                                    a.mean_1, a.rstd_1, N, C, stream);
}

// Segment s of the forward pass, up to the branch that is to be added to the residual stream: the
// embeddings; a layer; or the last normalisation, g->ln_f (N, C). Each adds the branch of the one
// before, in the pass that normalises the sum.
static void forward_segment(GPT2 *g, size_t s) {
    const size_t C = g->config.channels, L = g->config.layers, N = g->B * g->T;
    const size_t E = g->config.embed;
    const float eps = config_eps(&g->config);
    const GPT2Table *t = &g->table;
    cudaStream_t stream = g->compute;
    floatX *x = layer_input(g, s > 0 ? s - 1 : 0), *const none = NULL;
    const floatX *wpe = t->wpe < 0 ? NULL : tensor(g, t->wpe) + g->position * C;
    const floatX *sum = layer_acts(g, s > 1 ? s - 2 : 0).mid;  // of the layer before
    if (s == 0 && E == 0) {
        encoder_forward(x, g->tokens, g->documents, tensor(g, t->wte), wpe, g->B, g->T, C, stream);
    } else if (s == 0) {
        encoder_forward(g->ln_f, g->tokens, NULL, tensor(g, t->wte), none, g->B, g->T, E, stream);
        encoder_forward(x, g->tokens, g->documents, none, wpe, g->B, g->T, C, stream);
        matmul_forward(&g->lt, g->branch, g->ln_f, tensor(g, t->project_in), none, N, E, C, stream);
        residual_forward(x, g->branch, N * C, stream);
    } else if (s > L && E > 0) {
        matmul_forward(&g->lt, g->ln_f, x, tensor(g, t->project_out), none, N, C, E, stream);
    } else if (s > L) {
        residual_layernorm_forward(x, g->ln_f, g->mean_f, g->rstd_f, sum, g->branch,
                                   tensor(g, t->ln_f_w), tensor(g, t->ln_f_b), N, C, eps, stream);
    }
    if (s == 0 || s > L) return;
    const LayerActs a = layer_acts(g, s - 1);
    const LayerWeights w = layer_weights(g, s - 1);
    const bool post = g->config.post_norm;
    if (s == 1 && !post)
        layernorm_forward(a.ln_1, a.mean_1, a.rstd_1, a.x, w.ln_1_w, w.ln_1_b, N, C, eps, stream);
    else if (!post)
        residual_layernorm_forward(x, a.ln_1, a.mean_1, a.rstd_1, sum, g->branch, w.ln_1_w,
                                   w.ln_1_b, N, C, eps, stream);
    for (int part = 0; part < LAYER_PARTS; part++) layer_part(g, part, &a, &w);
    layer_passes(g, false);
}

// Computes again what backward reads of layer l and forward has not kept: all that is between the
// residual additions, or the outputs of both layer norms and of the non-linearity, which need no
// product (one in post-norm layers, for the second sum).
static void recompute(GPT2 *g, size_t l) {
    const size_t C = g->config.channels, F = g->config.ffn, N = g->B * g->T;
    const size_t M = config_mlp(&g->config);
    const float eps = config_eps(&g->config);
    const LayerActs a = layer_acts(g, l);
    const LayerWeights w = layer_weights(g, l);
    const bool post = g->config.post_norm;
    if (!post)
        layernorm_forward(a.ln_1, a.mean_1, a.rstd_1, a.x, w.ln_1_w, w.ln_1_b, N, C, eps,
                          g->compute);
    if (g->choice.recompute == RECOMPUTE_BLOCK) {
        // what the last part of pre-norm layers makes, backward does not read
        for (int part = 0; part < LAYER_PARTS - !post; part++) layer_part(g, part, &a, &w);
        layer_passes(g, false);
        return;
    }
    GPU_TAKES(g->compute, (4 * C + M + F) * N * sizeof(floatX), gpu_bytes);
    activation_forward(a.act, a.fc, N, F, g->config.activation, g->compute);
    layernorm_forward(a.mlp_in, a.mid_mean, a.mid_rstd, a.mid, w.mid_w, w.mid_b, N, C,
                      eps, g->compute);
    if (post) layer_part(g, 3, &a, &w);
}

// Backward of segment s: the tail, from the head's gradient (made by gpt2_head); a layer; or the
// embeddings.
static void backward_segment(GPT2 *g, size_t s) {
    const size_t C = g->config.channels, L = g->config.layers, B = g->B, T = g->T, N = B * T;
    const size_t E = g->config.embed;
    const GPT2Table *t = &g->table;
    cudaStream_t stream = g->compute;
    if (s > L) {
        if (!g->config.tied && !head_in_place(g)) {  // dwte is complete; the embeddings' begins
            round_gradient(tensor_grad(g, t->lm_head), g->dwte, t->tensors[t->lm_head].size,
                           stream);
            stream_zero(g->dwte, t->tensors[t->wte].size * sizeof(float), stream);
        }
        if (E > 0) {
            matmul_backward(&g->lt, g->dx, C, tensor_grad(g, t->project_out), g->branch,
                            layer_input(g, L), tensor(g, t->project_out), N, C, E, stream);
            return;
        }
        stream_zero(g->dx, N * C * sizeof(floatX), stream);
        layernorm_backward<floatX>(g->dx, tensor_grad(g, t->ln_f_w), tensor_grad(g, t->ln_f_b),
                                   NULL, g->scratch, g->branch, layer_input(g, L),
                                   tensor(g, t->ln_f_w), g->mean_f, g->rstd_f, N, C, stream);
    } else if (s > 0) {
        layer_backward(g, s - 1);
        layer_passes(g, true);
    } else {
        // A tied head has left its part in dwte; the embeddings add theirs, and the sum is rounded.
        const size_t positions = g->by_position.groups > 0 ? g->by_position.groups : T;
        const size_t size = t->tensors[t->wte].size;
        floatX *dwte = tensor_grad(g, t->wte), *const none = NULL;
        floatX *rounded = head_in_place(g) ? dwte : NULL;
        float *sum = rounded != NULL ? NULL : g->dwte;
        if (rounded != NULL) stream_zero(rounded, size * sizeof(floatX), stream);
        encoder_backward(E > 0 ? NULL : sum, E > 0 ? NULL : rounded, tensor_grad(g, t->wpe), g->dx,
                         g->tokens, g->by_token, g->by_position, B, T, C, stream);
        if (E > 0) {
            encoder_forward(g->ln_f, g->tokens, NULL, tensor(g, t->wte), none, B, T, E, stream);
            matmul_backward(&g->lt, g->branch, E, tensor_grad(g, t->project_in), g->dx, g->ln_f,
                            tensor(g, t->project_in), N, E, C, stream);
            encoder_backward(sum, rounded, none, g->branch, g->tokens, g->by_token, g->by_position,
                             B, T, E, stream);
        }
        if (sum != NULL) round_gradient(dwte, sum, size, stream);
        if (t->wpe >= 0)  // positions without a gradient
            stream_zero(tensor_grad(g, t->wpe) + positions * C,
                        (g->config.context - positions) * C * sizeof(floatX), stream);
    }
}

#endif
