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

// Runs a part of a layer whose parameters are w, by LN_1_W ..: it reads those of the part, and of
// the norm of its sum. Part 0 begins with att_in: the norm of x that pre-norm layers read is made
// before. Part 3 ends with a->branch; post-norm layers add and normalise it, into a->out.
static void layer_part(GPT2 *g, int part, const LayerActs *a, floatX *const w[LAYER_TENSORS]) {
    const size_t C = g->config.channels, F = g->config.ffn, B = g->B, T = g->T, N = B * T;
    const bool post = g->config.post_norm;
    const int middle = post ? LN_1_W : LN_2_W;
    Matmul *lt = &g->lt;
    cudaStream_t stream = g->compute;
    if (part == 0) {
        matmul_forward(lt, a->qkv, a->att_in, w[QKV_W], w[QKV_B], N, C,
                       config_qkv(&g->config), stream);
        attention_forward(a->atty, a->lse, a->qkv, g->documents, B, T, C, g->config.heads, stream);
    } else if (part == 1) {
        matmul_forward(lt, a->branch, a->atty, w[ATTPROJ_W], w[ATTPROJ_B], N, C, C, stream);
        residual_layernorm_forward(a->mid, a->mlp_in, a->mid_mean, a->mid_rstd, a->x, a->branch,
                                   w[middle], w[middle + 1], N, C, LAYERNORM_EPS, stream);
    } else if (part == 2) {
        matmul_forward(lt, a->fc, a->mlp_in, w[FC_W], w[FC_B], N, C, F, stream);
        activation_forward(a->act, a->fc, N, F, g->config.activation, stream);
    } else {
        matmul_forward(lt, a->branch, a->act, w[FCPROJ_W], w[FCPROJ_B], N, F, C, stream);
        if (post)
            residual_layernorm_forward(a->ln_2, a->out, a->mean_2, a->rstd_2, a->ln_1, a->branch,
                                       w[LN_2_W], w[LN_2_B], N, C, LAYERNORM_EPS, stream);
    }
}

// Runs the backward pass of layer l. g->dx is the gradient of the residual stream, first of the
// layer's output, at the end of its input: every branch reads it, and adds its own part where it
// left the stream. The sums of its columns are a bias's gradient, and made where it is written. For
// fcproj's bias that is the segment above, when this layer's gradient has no place yet: scratch
// keeps them until now.
static void layer_backward(GPT2 *g, size_t l) {
    const size_t C = g->config.channels, F = g->config.ffn, N = g->B * g->T;
    const bool post = g->config.post_norm;
    const int middle = post ? LN_1_W : LN_2_W;
    const LayerActs a = layer_acts(g, l);
    floatX *w[LAYER_TENSORS], *d[LAYER_TENSORS], *dwide = g->dwide;
    floatX *dx = g->dx, *dc = g->branch;  // the gradients of the stream and in a branch
    float *sum = g->scratch;
    Matmul *lt = &g->lt;
    cudaStream_t stream = g->compute;
    layer_tensors(g, l, w, d);
    if (post) {  // the gradient of a sum is made anew by its normalisation
        dx = g->branch;
        dc = g->dx;
        stream_zero(dx, N * C * sizeof(floatX), stream);
        layernorm_backward(dx, d[LN_2_W], d[LN_2_B], d[FCPROJ_B], sum, dc, a.ln_2, w[LN_2_W],
                           a.mean_2, a.rstd_2, N, C, stream);
    } else {
        layernorm_dinp_sum(d[FCPROJ_B], sum, N, C, stream);  // by the norm above this layer
    }
    // MLP branch: dx -> dact -> dfc -> dmlp_in -> dx
    matmul_backward(lt, dwide, d[FCPROJ_W], dx, a.act, w[FCPROJ_W], N, F, C, stream);
    activation_backward(dwide, d[FC_B], sum, a.fc, N, F, g->config.activation, stream);
    matmul_backward(lt, dc, d[FC_W], dwide, a.mlp_in, w[FC_W], N, C, F, stream);
    if (post) {
        residual_forward(dc, dx, N * C, stream);
        stream_zero(dx, N * C * sizeof(floatX), stream);
    }
    layernorm_backward(dx, d[middle], d[middle + 1], d[ATTPROJ_B], sum, dc, a.mid, w[middle],
                       a.mid_mean, a.mid_rstd, N, C, stream);
    // attention branch: dx -> datty -> dqkv -> datt_in -> dx
    matmul_backward(lt, dc, d[ATTPROJ_W], dx, a.atty, w[ATTPROJ_W], N, C, C, stream);
    attention_backward(dwide, g->delta, dc, a.atty, a.lse, a.qkv, g->documents, g->B, g->T, C,
                       g->config.heads, stream);
    const size_t Q = config_qkv(&g->config);
    matmul_backward(lt, dc, d[QKV_W], dwide, a.att_in, w[QKV_W], N, C, Q, stream);
    bias_backward(d[QKV_B], sum, dwide, N, Q, stream);
    if (post) residual_forward(dc, dx, N * C, stream);  // in g->dx again
    else layernorm_backward<floatX>(dx, d[LN_1_W], d[LN_1_B], NULL, sum, dc, a.x, w[LN_1_W],
                                    a.mean_1, a.rstd_1, N, C, stream);
}

// Segment s of the forward pass, up to the branch that is to be added to the residual stream: the
// embeddings; a layer; or the last normalisation, g->ln_f (N, C). Each adds the branch of the one
// before, in the pass that normalises the sum.
static void forward_segment(GPT2 *g, size_t s) {
    const size_t C = g->config.channels, L = g->config.layers, N = g->B * g->T;
    const size_t E = g->config.embed;
    const GPT2Table *t = &g->table;
    cudaStream_t stream = g->compute;
    floatX *x = layer_input(g, s > 0 ? s - 1 : 0), *const none = NULL;
    const floatX *sum = layer_acts(g, s > 1 ? s - 2 : 0).mid;  // of the layer before
    if (s == 0 && E == 0) {
        encoder_forward(x, g->tokens, g->documents, tensor(g, t->wte), tensor(g, t->wpe), g->B,
                        g->T, C, stream);
    } else if (s == 0) {
        encoder_forward(g->ln_f, g->tokens, NULL, tensor(g, t->wte), none, g->B, g->T, E, stream);
        encoder_forward(x, g->tokens, g->documents, none, tensor(g, t->wpe), g->B, g->T, C, stream);
        matmul_forward(&g->lt, g->branch, g->ln_f, tensor(g, t->project_in), none, N, E, C, stream);
        residual_forward(x, g->branch, N * C, stream);
    } else if (s > L && E > 0) {
        matmul_forward(&g->lt, g->ln_f, x, tensor(g, t->project_out), none, N, C, E, stream);
    } else if (s > L) {
        residual_layernorm_forward(x, g->ln_f, g->mean_f, g->rstd_f, sum, g->branch,
                                   tensor(g, t->ln_f_w), tensor(g, t->ln_f_b), N, C,
                                   LAYERNORM_EPS, stream);
    }
    if (s == 0 || s > L) return;
    const LayerActs a = layer_acts(g, s - 1);
    floatX *w[LAYER_TENSORS];
    layer_tensors(g, s - 1, w, NULL);
    const bool post = g->config.post_norm;
    if (s == 1 && !post)
        layernorm_forward(a.ln_1, a.mean_1, a.rstd_1, a.x, w[LN_1_W], w[LN_1_B], N, C,
                          LAYERNORM_EPS, stream);
    else if (!post)
        residual_layernorm_forward(x, a.ln_1, a.mean_1, a.rstd_1, sum, g->branch, w[LN_1_W],
                                   w[LN_1_B], N, C, LAYERNORM_EPS, stream);
    for (int part = 0; part < LAYER_PARTS; part++) layer_part(g, part, &a, w);
    if (!g->timeline.between) live(g, "activations", layer_elements(g), sizeof(floatX), stream);
}

// Computes again what backward reads of layer l and forward has not kept: all that is between the
// residual additions, or the outputs of both layer norms and of the non-linearity, which need no
// product (one in post-norm layers, for the second sum).
static void recompute(GPT2 *g, size_t l) {
    const size_t C = g->config.channels, F = g->config.ffn, N = g->B * g->T;
    const LayerActs a = layer_acts(g, l);
    floatX *w[LAYER_TENSORS];
    const bool post = g->config.post_norm;
    const int middle = post ? LN_1_W : LN_2_W;
    layer_tensors(g, l, w, NULL);
    if (!post)
        layernorm_forward(a.ln_1, a.mean_1, a.rstd_1, a.x, w[LN_1_W], w[LN_1_B], N, C,
                          LAYERNORM_EPS, g->compute);
    if (g->choice.recompute == RECOMPUTE_BLOCK) {
        const ActTable t = gpt2_acts(&g->config);
        bool makes[LAYER_PARTS] = {};  // something that backward reads
        for (int k = 0; k < LAYER_ACTS; k++) makes[t.acts[k].part] = true;
        for (int part = 0; part < LAYER_PARTS; part++)
            if (makes[part]) layer_part(g, part, &a, w);
        return;
    }
    GPU_TAKES(g->compute, 2 * (2 * C + F) * N * sizeof(floatX), gpu_bytes);
    activation_forward(a.act, a.fc, N, F, g->config.activation, g->compute);
    layernorm_forward(a.mlp_in, a.mid_mean, a.mid_rstd, a.mid, w[middle], w[middle + 1], N, C,
                      LAYERNORM_EPS, g->compute);
    if (post) layer_part(g, 3, &a, w);
}

// Backward of segment s: the tail, from the head's gradient (made by gpt2_head); a layer; or the
// embeddings.
static void backward_segment(GPT2 *g, size_t s) {
    const size_t C = g->config.channels, L = g->config.layers, B = g->B, T = g->T, N = B * T;
    const size_t E = g->config.embed;
    const GPT2Table *t = &g->table;
    cudaStream_t stream = g->compute;
    if (s > L) {
        if (!g->config.tied) {  // dwte was the head's alone: it is complete; the embeddings' begins
            round_gradient(tensor_grad(g, t->lm_head), g->dwte, t->tensors[t->lm_head].size,
                           stream);
            stream_zero(g->dwte, t->tensors[t->wte].size * sizeof(float), stream);
        }
        if (E > 0) {
            matmul_backward(&g->lt, g->dx, tensor_grad(g, t->project_out), g->branch,
                            layer_input(g, L), tensor(g, t->project_out), N, C, E, stream);
            return;
        }
        stream_zero(g->dx, N * C * sizeof(floatX), stream);
        layernorm_backward<floatX>(g->dx, tensor_grad(g, t->ln_f_w), tensor_grad(g, t->ln_f_b),
                                   NULL, g->scratch, g->branch, layer_input(g, L),
                                   tensor(g, t->ln_f_w), g->mean_f, g->rstd_f, N, C, stream);
    } else if (s > 0) {
        layer_backward(g, s - 1);
    } else {
        // A tied head has left its part in dwte; the embeddings add theirs, and the sum is rounded.
        const size_t positions = g->by_position.groups > 0 ? g->by_position.groups : T;
        encoder_backward(E > 0 ? NULL : g->dwte, tensor_grad(g, t->wpe), g->dx, g->tokens,
                         g->by_token, g->by_position, B, T, C, stream);
        if (E > 0) {
            encoder_forward(g->ln_f, g->tokens, NULL, tensor(g, t->wte), (floatX *)NULL, B, T, E,
                            stream);
            matmul_backward(&g->lt, g->branch, tensor_grad(g, t->project_in), g->dx, g->ln_f,
                            tensor(g, t->project_in), N, E, C, stream);
            encoder_backward(g->dwte, (floatX *)NULL, g->branch, g->tokens, g->by_token,
                             g->by_position, B, T, E, stream);
        }
        round_gradient(tensor_grad(g, t->wte), g->dwte, t->tensors[t->wte].size, stream);
        // positions without a gradient
        stream_zero(tensor_grad(g, t->wpe) + positions * C,
                    (g->config.context - positions) * C * sizeof(floatX), stream);
    }
}

#endif
