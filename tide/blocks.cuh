// blocks.cuh: a layer on the GPU. Its forward pass is four parts, which training, recomputation,
// evaluation, sampling and both signs of zeroth order run. Its backward pass is one function.
//
//     layer_part()       part 0: q, k, v and attention; 1: projection, sum and norm; 2: the MLP's
//                        first product and the non-linearity; 3: its second product
//     layer_backward()   the gradients of a layer's parameters and of its input
#ifndef TIDE_BLOCKS_CUH
#define TIDE_BLOCKS_CUH
#include "gpt2.cuh"

// Runs a part of a layer whose parameters are w, by LN_1_W ..: it reads those of the part, and of
// the norm of its sum. Part 0 begins with att_in: the norm of x that pre-norm layers read is made
// before. Part 3 ends with a->branch; post-norm layers add and normalise it, into a->out.
static void layer_part(GPT2 *g, int part, const LayerActs *a, floatX *const w[LAYER_TENSORS]) {
    const size_t C = g->config.channels, F = g->config.ffn, B = g->B, T = g->T, N = B * T;
    const bool post = g->config.embed > 0;
    const int middle = post ? LN_1_W : LN_2_W;
    Matmul *lt = &g->lt;
    cudaStream_t stream = g->compute;
    if (part == 0) {
        matmul_forward(lt, a->qkv, a->att_in, w[QKV_W], w[QKV_B], N, C, 3 * C, stream);
        attention_forward(a->atty, a->lse, a->qkv, g->documents, B, T, C, g->config.heads, stream);
    } else if (part == 1) {
        matmul_forward(lt, a->branch, a->atty, w[ATTPROJ_W], w[ATTPROJ_B], N, C, C, stream);
        residual_layernorm_forward(a->mid, a->mlp_in, a->mid_mean, a->mid_rstd, a->x, a->branch,
                                   w[middle], w[middle + 1], N, C, stream);
    } else if (part == 2) {
        matmul_forward(lt, a->fc, a->mlp_in, w[FC_W], w[FC_B], N, C, F, stream);
        activation_forward(a->act, a->fc, N * F, g->config.activation, stream);
    } else {
        matmul_forward(lt, a->branch, a->act, w[FCPROJ_W], w[FCPROJ_B], N, F, C, stream);
        if (post)
            residual_layernorm_forward(a->ln_2, a->out, a->mean_2, a->rstd_2, a->ln_1, a->branch,
                                       w[LN_2_W], w[LN_2_B], N, C, stream);
    }
}

// Runs the backward pass of layer l. g->dx is the gradient of the residual stream, first of the
// layer's output, at the end of its input: every branch reads it, and adds its own part where it
// left the stream. The sums of its columns are a bias's gradient, and made where it is written. For
// fcproj's bias that is the segment above, when this layer's gradient has no place yet: scratch
// keeps them until now.
static void layer_backward(GPT2 *g, size_t l) {
    const size_t C = g->config.channels, F = g->config.ffn, N = g->B * g->T;
    const bool post = g->config.embed > 0;
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
    matmul_backward(lt, dc, d[QKV_W], dwide, a.att_in, w[QKV_W], N, C, 3 * C, stream);
    bias_backward(d[QKV_B], sum, dwide, N, 3 * C, stream);
    if (post) residual_forward(dc, dx, N * C, stream);  // in g->dx again
    else layernorm_backward<floatX>(dx, d[LN_1_W], d[LN_1_B], NULL, sum, dc, a.x, w[LN_1_W],
                                    a.mean_1, a.rstd_1, N, C, stream);
}

#endif
