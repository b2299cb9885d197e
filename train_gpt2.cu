// train_gpt2.cu: train a GPT-2, OPT, LLaMA, Mistral or Qwen on a GPU, in bf16 or fp16 with fp32
// master weights, or in fp32.
//
//   1. The layers: forward, recomputation, backward
//   2. One step: its streams and events, forward, backward, gradients, norm, update
//   3. Sampling, evaluation, checkpoints
//   4. Logs, the training loop, and main()
//
// This file is the twin of train_gpt2.c; a test compares every tensor of the two. Section 2
// queues a step, and lets streams wait for each other; upload() (gpt2.cuh), weights.cuh,
// zenflow.cuh, zero.cuh and zo.cuh do so, too. In tide/gpu/, heads.cuh computes logits and loss,
// layout.cuh plans memory. Lessons: doc/mixed_precision.md (fp16), doc/streams.md, doc/offload.md.
//
// floatX is the type in which parameters, activations and gradients are stored (gpu.cuh). This file
// is compiled once for each type: bf16, float, and f16 (run.h scales its gradients). All arithmetic
// is in fp32. Shapes have the letters of train_gpt2.c. No sum uses atomics: the same run gives the
// same bits. The host queues all work in streams, and runs ahead of the GPU by at most two
// micro-batches (upload()). It waits once per step, for loss and gradient norm. --plan runs
// train_step() with streams that only write their work down (rehearsal.h).
//
// The words:
//   segment     0: the embeddings; l + 1: layer l; L + 1: the tail (the last norm, an untied head).
//               One range of the parameters, whose gradient backward completes in one go
//   shard       the part of a segment that this process updates: all of it, or ZeRO's share
//   piece       what is updated in one go (offload.h): a range of one shard
//   resident    a piece whose optimizer state is on the GPU
//   host piece  a piece whose state is on the host, and which the CPU updates
//   visitor     a piece whose state is on the host, and which the GPU updates: each step copies the
//               state to the GPU and back
//   room        memory that is filled and freed by turns; one event says that it is full, another
//               that it is free (Rooms). Gradients are made in rooms, weights are copied to them
//   slot        a room for a visitor's state
//   landing     one of two rooms on the host for gradients that the worker adds to a sum
//   chosen      ZenFlow (zenflow.h): the columns of a segment that the GPU updates in every step
//   late        all other columns, which the CPU updates when a window of steps closes
//   worker      the thread that does the CPU's work, in a stream of its own (host.cuh)
//   zo          zeroth-order training, without a backward pass (tide/gpu/zo.cuh)

#include "tide/gpu/choose.cuh"
#include "tide/run/evaluate.h"

// =============================================================================================
// 1. The layers
//
// A layer's forward pass has four parts. Training, recomputation, evaluation, sampling and both
// signs of zeroth-order training run the same parts:
//
//     part 0      q, k, v and attention          part 2      the MLP's first product, non-linearity
//     part 1      projection, sum and norm       part 3      its second product

// Runs part number `part` of a layer. w has the weights of the part and of the norm after it.
// Pre-norm: the caller has made att_in, which is ln_1, from x; part 3 writes branch. Post-norm:
// att_in is x, mlp_in is ln_1; part 3 also makes ln_2 = ln_1 + branch, and out, the norm of ln_2.
static void layer_part(GPT2 *g, int part, const LayerActs *a, const LayerWeights *w) {
    const GPT2Config *c = &g->config;
    const size_t C = c->channels, F = c->ffn, N = a->rows;
    const size_t A = config_att(c), Q = config_qkv(c), M = config_mlp(c);
    const AttentionShape s = layer_shape(g);
    const float eps = config_eps(c);
    Matmul *lt = &g->lt;
    cudaStream_t stream = g->compute;
    if (part == 0) {
        matmul_forward(lt, a->qkv, a->att_in, w->qkv_w, w->qkv_b, N, C, Q, stream);
        if (a->turned)
            heads_forward(a->qkv, a->qk, a->qk_rstd, w->q_norm, w->k_norm,
                          g->rope + g->position * s.HS, g->documents, s, eps, stream);
        if (a->cache != NULL)
            cache_store(a->cache + g->position * cache_row(c), a->qkv, N, s, stream);
        if (a->cache != NULL && N == 1)
            attention_cached(a->atty, a->lse, a->qkv, a->cache, g->position + 1, s, stream);
        else
            attention_forward(a->atty, a->lse, a->qkv, g->sees, s, stream);
    } else if (part == 1) {
        matmul_forward(lt, a->branch, a->atty, w->attproj_w, w->attproj_b, N, A, C, stream);
        residual_layernorm_forward(a->mid, a->mlp_in, a->mid_mean, a->mid_rstd, a->x, a->branch,
                                   w->mid_w, w->mid_b, N, C, eps, stream);
    } else if (part == 2) {
        matmul_forward(lt, a->fc, a->mlp_in, w->fc_w, w->fc_b, N, C, M, stream);
        activation_forward(a->act, a->fc, N, F, c->activation, stream);
    } else {
        matmul_forward(lt, a->branch, a->act, w->fcproj_w, w->fcproj_b, N, F, C, stream);
        if (c->post_norm)
            residual_layernorm_forward(a->ln_2, a->out, a->mean_2, a->rstd_2, a->ln_1, a->branch,
                                       w->ln_2_w, w->ln_2_b, N, C, eps, stream);
    }
}

// Runs the MLP's backward pass for a->rows rows: dx -> dact -> dfc (both in dwide) -> dmlp_in (in
// dc). Writes the weights' gradients, or adds to them (fp32) if `adds`. d_bias: fc's, or NULL.
template <typename D>
static void mlp_backward(GPT2 *g, const LayerActs *a, const LayerWeights *w, floatX *d_bias,
                         D *d_fc, D *d_proj, floatX *dc, const floatX *dx, bool adds) {
    const GPT2Config *c = &g->config;
    const size_t C = c->channels, F = c->ffn, M = config_mlp(c), N = a->rows;
    const bool sloped =
        matmul_backward(&g->lt, g->dwide, M, d_proj, dx, a->act, w->fcproj_w, N, F, C, g->compute,
                        c->activation == ACTIVATION_GELU ? a->fc : NULL, NULL, NULL, adds);
    if (!sloped)
        activation_backward(g->dwide, d_bias, g->scratch, a->fc, N, F, c->activation, g->compute);
    matmul_backward(&g->lt, dc, C, d_fc, g->dwide, a->mlp_in, w->fc_w, N, C, M, g->compute, NULL,
                    sloped ? d_bias : NULL, g->scratch, adds);
}

// Runs the backward pass of layer l: g->dx is the gradient of its output, on return of its input.
// dx is the gradient of a residual sum, dc a gradient in a branch; post-norm layers swap the two
// buffers. A bias's gradient is the column sums of dx; the kernel that writes dx makes the sums. In
// a pre-norm layer, the sums for fcproj's bias are in g->scratch: the segment above has made them.
static void layer_backward(GPT2 *g, size_t l) {
    const GPT2Config *c = &g->config;
    const size_t C = c->channels, N = g->B * g->T;
    const size_t A = config_att(c), Q = config_qkv(c), M = config_mlp(c);
    const AttentionShape s = layer_shape(g);
    const bool post = c->post_norm;
    const LayerActs a = layer_acts(g, l);
    const LayerWeights w = layer_weights(g, l);
    const LayerWeights d = layer_pointers(g, l, g->grads + g->segment[l + 1].grad_at);  // of w
    floatX *dx = g->dx, *dc = g->branch, *const dwide = g->dwide;
    float *sum = g->scratch;
    Matmul *lt = &g->lt;
    cudaStream_t stream = g->compute;
    if (post) {  // only the norm reads the sum, so dx has no gradient yet
        dx = g->branch;
        dc = g->dx;
        stream_zero(dx, N * C * sizeof(floatX), stream);
        layernorm_backward(dx, d.ln_2_w, d.ln_2_b, d.fcproj_b, sum, dc, a.ln_2, w.ln_2_w,
                           a.mean_2, a.rstd_2, N, C, stream);
    } else if (d.fcproj_b != NULL) {
        layernorm_dinp_sum(d.fcproj_b, sum, N, C, stream);  // adds up the segment above's sums
    }
    // MLP branch: dx -> dmlp_in (in dc) -> dx
    if (N <= mlp_rows(g)) {
        mlp_backward(g, &a, &w, d.fc_b, d.fc_w, d.fcproj_w, dc, dx, false);
    } else {
        float *const fc = g->mlp_sums, *const proj = fc + M * C;
        for (size_t first = 0; first < N; first += mlp_rows(g)) {
            const LayerActs chunk = acts_chunk(g, &a, first);
            if (one_chunk(g)) layer_part(g, 2, &chunk, &w);
            mlp_backward(g, &chunk, &w, NULL, fc, proj, dc + first * C, dx + first * C, first > 0);
        }
        round_gradient(d.fc_w, fc, M * C, stream);
        round_gradient(d.fcproj_w, proj, c->ffn * C, stream);
    }
    if (post) {
        residual_forward(dc, dx, N * C, stream);
        stream_zero(dx, N * C * sizeof(floatX), stream);
    }
    layernorm_backward(dx, d.mid_w, d.mid_b, d.attproj_b, sum, dc, a.mid, w.mid_w,
                       a.mid_mean, a.mid_rstd, N, C, stream);
    // attention branch: dx -> datty (in dc) -> dqkv (in dwide) -> datt_in (in dc) -> dx
    matmul_backward(lt, dc, A, d.attproj_w, dx, a.atty, w.attproj_w, N, A, C, stream);
    attention_backward(dwide, attention_room(g), g->delta, dc, a.atty, a.lse, a.qkv, g->sees, s,
                       stream);
    if (a.turned)
        heads_backward(dwide, d.q_norm, d.k_norm, sum, a.qk, a.qk_rstd, w.q_norm, w.k_norm, g->rope,
                       g->documents, s, stream);
    matmul_backward(lt, dc, C, d.qkv_w, dwide, a.att_in, w.qkv_w, N, C, Q, stream, NULL, d.qkv_b,
                    sum);
    if (post) residual_forward(dc, dx, N * C, stream);  // dc is g->dx
    else layernorm_backward<floatX>(dx, d.ln_1_w, d.ln_1_b, NULL, sum, dc, a.x, w.ln_1_w,
                                    a.mean_1, a.rstd_1, N, C, stream);
}

// Runs segment s of the forward pass: the embeddings, a layer, or the tail, which makes g->ln_f (N,
// C). A pre-norm layer leaves its last branch in g->branch; the next segment adds this branch to
// the residual stream, in the kernel that normalises the sum.
static void forward_segment(GPT2 *g, size_t s) {
    const size_t C = g->config.channels, L = g->config.layers, N = g->B * g->T;
    const size_t E = g->config.embed;
    const float eps = config_eps(&g->config);
    const GPT2Table *t = &g->table;
    cudaStream_t stream = g->compute;
    floatX *x = layer_input(g, s > 0 ? s - 1 : 0), *const none = NULL;
    const floatX *wpe = t->wpe < 0 ? NULL : tensor(g, t->wpe) + g->position * C;
    const floatX *sum = layer_acts(g, s > 1 ? s - 2 : 0).mid;  // the residual sum in layer s - 2
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
    for (int part = 0; part < 2; part++) layer_part(g, part, &a, &w);
    for (size_t first = 0; first < N; first += mlp_rows(g)) {
        const LayerActs chunk = acts_chunk(g, &a, first);
        for (int part = 2; part < LAYER_PARTS; part++) layer_part(g, part, &chunk, &w);
    }
    layer_passes(g, false);
}

// Computes again the activations of layer l that backward reads and that forward has not kept. With
// RECOMPUTE_BLOCK these are all but the layer's input; else the outputs of both norms and of the
// non-linearity, which need no product (but in post-norm layers part 3, for the second norm).
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
    if (layer_recompute(g, l) == RECOMPUTE_BLOCK) {
        // backward reads no result of a pre-norm layer's part 3; it runs part 2 itself in chunks
        const int parts = N > mlp_rows(g) ? 2 : LAYER_PARTS - !post;
        for (int part = 0; part < parts; part++) layer_part(g, part, &a, &w);
        layer_passes(g, false);
        return;
    }
    GPU_TAKES(g->compute, (4 * C + M + F) * N * sizeof(floatX), gpu_bytes);
    activation_forward(a.act, a.fc, N, F, g->config.activation, g->compute);
    layernorm_forward(a.mlp_in, a.mid_mean, a.mid_rstd, a.mid, w.mid_w, w.mid_b, N, C,
                      eps, g->compute);
    if (post) layer_part(g, 3, &a, &w);
}

// Runs the backward pass of segment s: the tail, whose output's gradient gpt2_head() has left in
// g->branch; a layer; or the embeddings.
static void backward_segment(GPT2 *g, size_t s) {
    const size_t C = g->config.channels, L = g->config.layers, B = g->B, T = g->T, N = B * T;
    const size_t E = g->config.embed;
    const GPT2Table *t = &g->table;
    cudaStream_t stream = g->compute;
    if (s > L) {
        if (!g->config.tied && !head_in_place(g)) {  // g->dwte had lm_head's sum; now it is wte's
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
        // If the head is tied, its sum is in g->dwte: adds the embeddings' gradient, and rounds.
        const size_t positions = g->by_position.groups > 0 ? g->by_position.groups : T;
        const size_t size = t->tensors[t->wte].size;
        floatX *wte_grad = tensor_grad(g, t->wte), *const none = NULL;
        floatX *rounded = head_in_place(g) ? wte_grad : NULL;
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
        if (sum != NULL) round_gradient(wte_grad, sum, size, stream);
        if (t->wpe >= 0)  // no token is at these positions
            stream_zero(tensor_grad(g, t->wpe) + positions * C,
                        (g->config.context - positions) * C * sizeof(floatX), stream);
    }
}

// =============================================================================================
// 2. One step
//
// The plain case (one GPU, bf16, one micro-batch, no ZenFlow, no ZeRO), streams in brackets:
//
//     for each segment, from the first to the last:
//         [compute] wait for its new weights, the GPU's and the CPU's; forward
//     [compute] the head: logits, loss, and their gradient
//     for each segment, from the last to the first:
//         [compute] wait until its room is free; make its gradient there
//         [sums]    copy its parts that wait on the GPU; the gradient's share of the norm
//         [out]     copy its parts that wait on the host for the update; the room is free
//     the host waits for loss and norm
//     for each piece, in the order of the next forward pass, in all streams at once:
//         resident    [update] AdamW
//         visitor     [fetch] its state to the GPU; [update] AdamW; [out] its state to the host
//         host piece  [host] AdamW; [back] its new weights to the GPU
//
// With --clip 0 no update needs the norm: a segment is updated as soon as its gradient is made.

// The streams and events of a step. s: a segment; in brackets: the field, if its name is another.
//
//   stream    does
//   compute   forward and backward
//   sums      norm of each complete gradient, and the sum of micro-batches, on the GPU; copies the
//             worker's part of the norm there
//   pack      ZenFlow: packs the part of a gradient that goes to the host [zen->pack]
//   out       copies to the host: gradients, and visitors (state; weights that are on the host)
//   flush     visitors' copies to the host: `out` itself, but with --clip 0 a stream beside it
//   fetch     copies to the GPU: visitors, and those of their gradients that wait on the host
//   back      copies to the GPU: weights that the CPU has updated
//   weights   copies to the GPU: layers' weights that are on the host [weights_in] (weights.cuh)
//   inputs    copies inputs of layers to the host, and back before backward [inputs_link]
//   update    AdamW on the GPU
//   host      the worker: AdamW on the CPU, sums of micro-batches on the host. A host function
//             wakes it, and the stream waits for a word in memory [host.stream]
//   ranks     collectives between GPUs [zero->stream] (zero.cuh)
//
//   event             recorded in      it says                              who waits
//   updated[s]        update           the GPU has updated its part of s;   compute, weights, ranks
//       (so it has read the gradient, which may lie where forward of s writes activations)
//   updated[s]        flush            the host has the visitors' weights   weights, ranks
//   returned[s]       back             the GPU has the CPU's new weights    compute, weights, ranks
//   updated[s]        update, flush    the GPU has read the host's gradient  out, for the next one
//   returned[s]       back             the CPU has read that gradient       out, for the next one
//   returned[s]       host             ZenFlow: the host has new weights    weights
//   weight_rooms.full[i]  weights      weights are in room i                compute, ranks
//   weight_rooms.free[i]  compute      room i is free again                 weights, ranks
//   gathered[s]       ranks            the GPU has all ranks' new weights   compute
//       (ZeRO: compute waits for this event alone, and ranks waits for updated, returned and full)
//   input_rooms.free[i]  inputs        a layer's input is on the host       compute
//   input_rooms.full[i]  inputs        a layer's input is on the GPU again  compute
//   grad_rooms.full[i]  compute        backward has filled room i           sums, ranks
//   reduced[s]        ranks            s's gradient is summed over ranks    sums, compute*
//   grad_rooms.free[i]  sums, pack, out  the gradient in room i was read    compute
//   grad_rooms.free[i]  update         the update has read it (--clip 0)    compute
//   packed.free[i]    out              ZenFlow: packed gradients are copied  pack
//   grad_arrived[s]   out, host        the gradient of s is on the host     host, fetch, compute*
//   landings.full[i]  out              a gradient is in landing i           host
//   landings.free[i]  host             the worker has read it               out
//       (ZenFlow: the host's gradient of s)
//   computed[s]       host             ZenFlow: s's late update is made     back, host
//   result_free[s]    back, host       ZenFlow: its result is copied        host
//   step_left         sums, ranks      loss and norm are on the host        main
//   slots.full[i]     fetch            all that a visitor needs is in slot i  update
//   slots.free[i]     flush            a visitor's state is on the host     fetch: the next one
//   copied            compute          a micro-batch's tokens are copied    main, to fill the next
//
// Zeroth-order training also has these events (zo.cuh). k: a part of a layer.
//
//   copied            fetch            a micro-batch's tokens are copied    main, compute
//   used              compute          the tokens are read no more          fetch, compute: at once
//   there[k]          fetch            a visitor's weights are in its slot  compute
//   used[k]           compute          the weights are read no more         fetch: the next one's
//   left[k]           out              the weights are on the host again    fetch
//   step_left         compute          the losses are on the host           main
//
// main: the host's thread. *: only with --no-overlap. A wait for an event that no stream has
// recorded yet, as in the first step, returns at once. order(g, a, b) makes stream b wait for all
// work that stream a has been given; the table does not list these waits. test_house.sh compares
// the table with the calls. A plan rehearses the same code (gpt2_rehearse()).

// Copies the input of layer l to the host, once stream compute has made it. If `back`, copies it to
// the GPU, once stream compute has used the other layer's input that is in the room now.
static void input_moves(GPT2 *g, size_t l, bool back) {
    const size_t bytes = g->B * g->T * g->config.channels * sizeof(floatX);
    const size_t room = input_room(g, l);
    char *const there = g->host_inputs + l * g->input_rooms.bytes;
    floatX *const here = layer_input(g, l);
    cudaStream_t stream = g->inputs_link;
    order(g, g->compute, stream);
    const int span = timeline_begin(&g->timeline, back ? ROW_INPUTS_BACK : ROW_INPUTS_OUT, "input",
                                    l, bytes, stream);
    if (back) copy_in(g, here, there, bytes, stream);
    else copy_out(g, there, here, bytes, stream);
    timeline_end(&g->timeline, span, stream);
    event_record(back ? g->input_rooms.full[room] : g->input_rooms.free[room], stream);
    if (g->no_overlap) order(g, stream, g->compute);
}

// Computes g->ln_f (N, C), the normalised output of the last layer, from inputs (B, T) on the host.
// Copies the targets (B, T), too, for gpt2_head(); NULL: there are none. begins (B, T): where in
// its row each token's document begins; NULL: each row is one document. Queues the work and
// returns. Each segment first waits for its own last update.
static void gpt2_forward(GPT2 *g, const int32_t *inputs, const int32_t *begins,
                         const int32_t *targets, size_t B, size_t T) {
    g->B = B;
    g->T = T;
    g->turn = 1 - g->turn;
    upload(g, g->turn, inputs, targets, begins, B, T, g->compute);
    g->documents = g->staging[g->turn].begins;
    g->sees = g->staging[g->turn].sees;
    const bool leave = g->choice.inputs_leave && !g->timeline.between;
    for (size_t s = 0; s < (size_t)g->segments; s++) {
        const size_t made = s + (g->config.post_norm != 0);  // inputs that exist after segment s
        weights_use(g, (int)s, 1);
        compute_span(g, "wait", s);
        if (g->zero != NULL || g->segment[s].on_host) {
            stream_wait(g->compute, weights_event(g, s));
        } else {
            stream_wait(g->compute, g->updated[s]);
            if (g->offloaded) stream_wait(g->compute, g->returned[s]);
        }
        if (leave && made > 0)
            stream_wait(g->compute, g->input_rooms.free[input_room(g, made - 1)]);
        compute_span(g, g->timeline.between ? "evaluate" : "forward", s,
                     s >= 1 && s <= g->config.layers && !leave ? layer_bytes(g, s - 1) : 0);
        forward_segment(g, s);
        // the last layer's input and output stay on the GPU
        if (leave && made > 0 && made < g->config.layers) input_moves(g, made - 1, false);
    }
    // The head writes its gradient into the tail's room, which must be free.
    if (g->training && head_in_place(g))
        stream_wait(g->compute, g->grad_rooms.free[g->segment[g->segments - 1].grad_room]);
}

// Copies those gradients of segment s to the host, in stream `out`, that wait on the host for the
// update; the caller has made `out` wait for them. If the worker sums micro-batches, the copies go
// to a landing, once it is free, and the worker adds the landing to its sum. Else the copies go to
// the host's buffer of gradients, which has been read: forward of s has waited for the events
// updated[s] and returned[s] of the last update. If layers take turns in a few rooms on the host,
// `out` waits for both events of the layer whose gradients were in this room before.
static void gradient_to_host(GPT2 *g, size_t s, bool accumulate, bool last) {
    const Segment *seg = &g->segment[s];
    Rooms *landings = &g->landings;
    const bool lands = g->lands;
    const int room = lands ? landings->turn : (int)s;
    floatX *landing = (floatX *)room_at(landings, room);
    const size_t bytes = lands ? sizeof(floatX) : g->host_grad_bytes;  // per element
    Timeline *t = &g->timeline;
    if (landings->count > 0) stream_wait(g->out, landings->free[room]);
    const size_t before = s + (size_t)g->host_rooms;  // the layer that had this room
    if (g->host_rooms > 0 && s > 0 && before <= g->config.layers) {
        stream_wait(g->out, g->updated[before]);
        stream_wait(g->out, g->returned[before]);
    }
    const int leaving = timeline_begin(t, ROW_LEAVE, "leave", s, seg->leaving * bytes, g->out);
    for (const Piece *p = seg->first; p < seg->end; p++) {
        if (p->leaves == NULL) continue;
        const void *from = p->leaves;
        if (g->zen != NULL) from = room_at(&g->zen->packed, g->zen->packed.turn);
        void *to = lands ? landing + (p->at - seg->own_at) : p->host_grad;
        if (g->wire == NULL) copy_out(g, to, from, p->length * bytes, g->out);
        else copy_out_wide(g, (float *)to, (const floatX *)from, p->length);
    }
    timeline_end(t, leaving, g->out);
    if (g->zen != NULL) {
        event_record(g->zen->packed.free[g->zen->packed.turn], g->out);
        rooms_turn(&g->zen->packed);
    }
    if (lands) {
        event_record(landings->full[room], g->out);
        stream_wait(g->host.stream, landings->full[room]);
        for (const Piece *p = seg->first; p < seg->end; p++)
            if (p->leaves != NULL)
                host_adds(g, p, s, landing + (p->at - seg->own_at), accumulate, last);
        event_record(landings->free[room], g->host.stream);
        rooms_turn(landings);
    }
    event_record(g->grad_arrived[s], lands ? g->host.stream : g->out);
}

// Takes a micro-batch's gradient of segment s from its room (p->made) to where it waits for the
// update. On the GPU it waits in p->grad, which is the step's sum or may be p->made itself; to the
// host, p->leaves is copied. If `last`, sums the squares of p->normed for the norm; the worker does
// so for pieces whose p->normed is NULL.
static void gradient_complete(GPT2 *g, size_t s, bool accumulate, bool last) {
    const Segment *seg = &g->segment[s];
    stream_wait(g->sums, gradient_event(g, s));
    for (const Piece *p = seg->first; p < seg->end; p++) {
        const floatX *made = (const floatX *)p->made;
        if (p->grad != NULL && g->accumulating)
            accumulate_gradient((float *)p->grad, made, p->length, !accumulate, g->sums);
        else if (p->grad != NULL && p->grad != made)
            stream_copy(p->grad, made, p->length * sizeof(floatX), cudaMemcpyDeviceToDevice,
                        g->sums);
        if (last && p->normed != NULL)
            norm_block_sums_gpu(p->normed, g->waiting_bytes == 2, g->pieces.runs + p->first_run,
                                p->runs, g->norm_sums + p->first_block, g->sums);
    }
    if (g->zen != NULL && last) zen_chosen_waits(g, s);
    // gradients that the GPU sums cross the link once, in the last micro-batch
    const bool leaves = seg->leaving > 0 && (last || !g->sums_on_gpu);
    if (leaves) {
        if (g->zen != NULL) zen_rest_leaves(g, s);
        order(g, g->ready_stream, g->out);
        gradient_to_host(g, s, accumulate, last);
    }
    if (!updates_from_room(g, seg))
        event_record(g->grad_rooms.free[seg->grad_room], leaves ? g->freed_stream : g->sums);
    if (g->no_overlap && (leaves || g->zero != NULL)) {
        compute_span(g, "wait", s);
        stream_wait(g->compute, leaves ? g->grad_arrived[s] : g->zero->reduced[s]);
        compute_span(g, NULL, 0);
    }
}

// Copies a visitor's state into its slot, once slots.free says that the slot is empty. By then
// the host has the state that the last step left, because copies to the host run in order.
static void visitor_fetch(GPT2 *g, int visit) {
    const Visitor *v = &g->visits[visit];
    const Piece *p = v->piece;
    g->fetched = visit + 1;
    stream_wait(g->fetch, g->slots.free[v->slot]);
    const int span = timeline_begin(&g->timeline, ROW_FETCH, "fetch", v->number, v->bytes,
                                    g->fetch);
    for (int k = first_state(g, p); k < 3; k++)  // 0: the weights' low bits, 1: m, 2: v
        copy_in(g, v->here.state[k], p->state[k], p->length * g->state_bytes[p->kind][k],
                g->fetch);
    if (v->weight_bytes > 0) copy_in(g, v->here.params, p->weights, v->weight_bytes, g->fetch);
    timeline_end(&g->timeline, span, g->fetch);
    event_record(g->slots.full[v->slot], g->fetch);
}

// Lets the CPU update a host piece once its gradient is on the host: one pass over weights and
// state. Then copies the weights to the GPU.
static void update_on_host(GPT2 *g, const Piece *p, size_t number, const AdamStep *step) {
    const size_t bytes = p->length * sizeof(floatX);
    AdamWork work = host_work(g, p, step);
    work.grad = p->host_grad;
    work.grad_is_half = g->host_grad_bytes == 2;
    stream_wait(g->host.stream, g->grad_arrived[p->segment]);
    host_submit(g, p, number, &work);
    order(g, g->host.stream, g->back);
    if (g->segment[p->segment].on_host) return;  // weights_copy() copies them
    const int returning = timeline_begin(&g->timeline, ROW_BACK, "back", number, bytes, g->back);
    copy_in(g, p->params, p->weights, bytes, g->back);
    timeline_end(&g->timeline, returning, g->back);
}

// Updates a piece on the GPU, where its state and gradient are.
static void update_on_gpu(GPT2 *g, const Piece *p, const AdamStep *step) {
    const size_t bytes = p->grad_on_gpu ? g->waiting_bytes : g->host_grad_bytes;  // per element
    const int updating = timeline_begin(&g->timeline, ROW_UPDATE, "update", (size_t)p->segment,
                                        p->grad_on_gpu ? p->length * bytes : 0, g->update);
    adam_update_gpu(p->params, (uint16_t *)p->state[0], p->state[1], p->state[2], p->grad,
                    bytes == 2, g->pieces.runs + p->first_run, p->runs, step, g->update);
    timeline_end(&g->timeline, updating, g->update);
}

// Lets the GPU update a visitor: copies its state into a slot (unless that is queued already),
// updates the piece, and copies the state back, while the next visitor's state is copied in.
static void update_visitor(GPT2 *g, int visit, const AdamStep *step) {
    const Visitor *v = &g->visits[visit];
    const Piece *p = v->piece;
    Timeline *t = &g->timeline;
    if (visit >= g->fetched) visitor_fetch(g, visit);
    if (!p->grad_on_gpu) {
        const size_t grad_bytes = p->length * g->host_grad_bytes;
        stream_wait(g->fetch, g->grad_arrived[p->segment]);
        const int span = timeline_begin(t, ROW_FETCH, "fetch", v->number, grad_bytes, g->fetch);
        copy_in(g, v->here.grad, p->host_grad, grad_bytes, g->fetch);
        timeline_end(t, span, g->fetch);
        event_record(g->slots.full[v->slot], g->fetch);
    }
    // waits for this slot alone: order() would also wait for the copies of the next visitors
    stream_wait(g->update, g->slots.full[v->slot]);
    update_on_gpu(g, &v->here, step);
    order(g, g->update, g->flush);
    const int flushing = timeline_begin(t, ROW_FLUSH, "flush", v->number, v->bytes, g->flush);
    for (int k = first_state(g, p); k < 3; k++)
        copy_out(g, p->state[k], v->here.state[k], p->length * g->state_bytes[p->kind][k],
                 g->flush);
    if (v->weight_bytes > 0) copy_out(g, p->weights, v->here.params, v->weight_bytes, g->flush);
    timeline_end(t, flushing, g->flush);
    event_record(g->slots.free[v->slot], g->flush);
    // for speed alone: copy the next visitor's state now, while its gradient is being made
    if (g->update_in_backward && g->fetched < g->pieces.visits) visitor_fetch(g, g->fetched);
}

// Queues the update of segment s. visit: the number of its first visitor. Returns the number of the
// first visitor after segment s. If backward calls it, stream `update` first waits until backward
// has read the weights of s and made the gradient; the other streams wait for grad_arrived.
static int update_segment(GPT2 *g, size_t s, int visit, const AdamStep *step) {
    const Segment *seg = &g->segment[s];
    if (g->update_in_backward) order(g, g->sums, g->update);
    for (const Piece *p = seg->first; p < seg->end; p++) {
        switch (p->kind) {
        case PIECE_RESIDENT: update_on_gpu(g, p, step); break;
        case PIECE_VISIT: update_visitor(g, visit++, step); break;
        case PIECE_HOST: update_on_host(g, p, (size_t)(p - g->pieces.pieces), step); break;
        case PIECE_CHOSEN: update_chosen(g, p, step); break;
        case PIECE_LATE: break;  // zen_window() updates it
        }
    }
    if (updates_from_room(g, seg)) {
        if (seg->leaving > 0) order(g, g->out, g->update);
        event_record(g->grad_rooms.free[seg->grad_room], g->update);
    }
    event_record(g->updated[s], seg->on_host && g->zen == NULL ? g->flush : g->update);
    event_record(g->returned[s], g->back);
    return visit;
}

// Runs the backward pass, from the head's gradient down to the embeddings. accumulate is false in
// the first micro-batch of a step, last is true in the last one. Before a segment's gradient is
// made, its room must be free; then gradient_complete() handles the gradient. step: AdamW's
// constants, if the last micro-batch then updates the segment; NULL: gpt2_update() updates all.
static void gpt2_backward(GPT2 *g, bool accumulate, bool last, const AdamStep *step = NULL) {
    const size_t L = g->config.layers;
    int visit = 0;
    if (last && g->pieces.visits > 0) {
        // The first visitors' state does not depend on the gradient, so it is fetched now. For
        // speed alone, the fetches wait for forward, whose weights need the link first.
        order(g, g->compute, g->fetch);
        while (g->fetched < g->slots.count) visitor_fetch(g, g->fetched);
    }
    for (size_t s = (size_t)g->segments; s-- > 0;) {
        const Segment *seg = &g->segment[s];
        weights_use(g, (int)s, -1);
        if (seg->weight_room >= 0) {  // its weights may be copied again
            compute_span(g, "wait", s);
            stream_wait(g->compute, weights_event(g, s));
        }
        // segment L still has its activations
        if (g->choice.recompute >= RECOMPUTE_LIGHT && s >= 1 && s < L) {
            if (g->choice.inputs_leave) {
                compute_span(g, "wait", s);
                stream_wait(g->compute, g->input_rooms.full[input_room(g, s - 1)]);
            }
            compute_span(g, "backward", s);
            recompute(g, s - 1);
        }
        compute_span(g, "wait", s);
        stream_wait(g->compute, g->grad_rooms.free[seg->grad_room]);
        compute_span(g, "backward", s,
                     seg->own * (g->sums_on_gpu ? g->waiting_bytes : sizeof(floatX)));
        backward_segment(g, s);
        compute_span(g, NULL, 0);
        if (g->choice.inputs_leave && s >= 3) input_moves(g, s - 3, true);  // 2 layers below
        event_record(g->grad_rooms.full[seg->grad_room], g->compute);
        if (g->zero != NULL) zero_reduce(g, s);  // the gradient becomes the sum over ranks
        gradient_complete(g, s, accumulate, last);
        if (last && step != NULL) visit = update_segment(g, s, visit, step);
    }
}

// Returns the sum of the squares of all gradients, in the blocks and the order that adam.h defines.
// Sets *loss to the mean loss of the step. The host waits here, once per step. No event protects
// the weights that backward reads: this wait does, because the update, which overwrites them, is
// queued after it. (An update that backward queues waits for events: update_segment().) The GPU
// adds up all block sums, also the worker's.
static double gpt2_grad_norm_squared(GPT2 *g, double *loss) {
    const bool on_host = g->lands && g->pieces.grads_host > 0;
    if (on_host) order(g, g->host.stream, g->sums);
    if (g->zen != NULL) zen_sums_leave(g);
    const Pieces *list = &g->pieces;
    for (const Piece *p = list->pieces; on_host && p < list->pieces + list->count; p++)
        if (!p->grad_on_gpu)
            stream_copy(g->norm_sums + p->first_block, g->worker_sums + p->first_block,
                        p->blocks * sizeof(double), cudaMemcpyHostToDevice, g->sums);
    if (g->zero != NULL) return zero_norm_squared(g, loss);
    norm_total_gpu(g->loss + 1, g->run_sums, g->norm_sums, NULL, g->pieces.blocks, g->sums);
    tell_host(g->host_loss, g->loss, 1, 0, 2, g->sums);
    event_record(g->step_left, g->sums);
    event_wait(g->step_left);
    *loss = g->host_loss[0];
    return g->host_loss[1];
}

// Queues one AdamW step (adam.h) over everything that this process owns, unless backward has queued
// it: first of the last choice.early segments, then of the others in the order of the next forward
// pass, which waits for each segment by itself. zen_window() queues the update of late columns.
static void gpt2_update(GPT2 *g, const AdamStep *step) {
    for (int i = 0, visit = 0; i < g->segments && !g->update_in_backward; i++)
        visit = update_segment(g, (size_t)update_order(g, i), visit, step);
    g->fetched = 0;
    if (g->zen != NULL) zen_window(g, step->grad_scale);
    weights_renew(g);
    if (g->zen != NULL && g->zen->turn.selects) zen_exchange_columns(g);
}

// Queues one training step, waits for its norm, queues the update, and returns loss and norm.
static StepResult train_step(GPT2 *g, Run *r, size_t step) {
    StepResult result = {};
    timeline_step(&g->timeline, step);
    g->moved_in = g->moved_out = 0;
    if (g->zo != NULL) return zo_step(g, r, step, schedule_lr(&r->o, step));
    if (g->zero != NULL) g->zero->reduced_bytes = g->zero->gathered_bytes = 0;
    const double loss_scale = run_loss_scale(r);
    const float grad_scale = (float)loss_scale / (float)run_targets(r, step);
    const double share = 1 / run_parts(r, step);  // weight of a micro-batch in the mean loss
    const AdamStep unclipped = run_adam_step(r, step, 0, &result);  // for updates in backward

    // Queue the gradient of the mean loss over all trained tokens of the step. Forward waits for
    // each segment's update of the step before; norm, sum and copy of each segment's gradient are
    // queued in streams of their own as soon as backward has made that gradient.
    for (size_t micro = 0; micro < r->o.accum; micro++) {
        if (rehearsal == NULL
            && !run_micro_batch(r, step, micro, g->inputs, g->targets, g->begins))
            return run_damaged(r);
        gpt2_forward(g, g->inputs, g->begins, g->targets, r->B, r->T);
        if (r->words) gpt2_classify(g, grad_scale, share, micro > 0);
        else gpt2_head(g, grad_scale, share, micro > 0, NULL);
        const bool last = micro + 1 == r->o.accum;
        gpt2_backward(g, micro > 0, last, g->update_in_backward ? &unclipped : NULL);
    }
    // Wait for loss and norm, clip to --clip, and queue the update. The GPU updates while it runs
    // the next step, whose time includes the update's.
    const double squared = gpt2_grad_norm_squared(g, &result.loss);
    const AdamStep adam = run_adam_step(r, step, squared, &result);
    if (result.skipped) {  // fp16: there is no update; the visitors' state stays in the slots
        // the next step overwrites sums of gradients, whose copies to the host may still run
        if (g->offloaded) order(g, g->out, g->compute);
        return result;
    }
    if (g->zen != NULL) zen_begin(g, zen_rates(&r->o, step), loss_scale);
    gpt2_update(g, &adam);
    r->open = g->zen != NULL && zen_is_open(&g->zen->config, &g->zen->clock);
    if (g->no_overlap) {
        compute_span(g, "wait", 0);
        gpt2_update_wait(g);
        compute_span(g, NULL, 0);
    }
    step_log(g, &result);
    return result;
}

// Runs one micro-batch of training, for calibration: no update follows.
static void one_micro_batch(GPT2 *g, size_t B, size_t T, float scale) {
    gpt2_forward(g, g->inputs, NULL, g->targets, B, T);
    gpt2_head(g, scale, 1, false, NULL);
    gpt2_backward(g, false, true);
}

static const Steps trainer_steps = {train_step, one_micro_batch, layer_part};

static GPT2 *gpt2_new(void) {
    GPT2 *g = (GPT2 *)alloc_or_fail(1, sizeof(GPT2), "model");
    g->steps = &trainer_steps;
    return g;
}

// =============================================================================================
// 3. Sampling, evaluation, checkpoints

// Runs a forward pass over g->inputs (B, T), outside training, after all updates. Leaves the loss
// for g->targets in g->loss, for gpt2_loss(); or, if logits (V) is not NULL, copies to it the
// logits after token number `last`.
static void gpt2_look(GPT2 *g, size_t B, size_t T, size_t last, float *logits) {
    const size_t C = config_embed(&g->config), Vp = g->config.vocab_padded;
    gpt2_update_wait(g);  // its time must not count as the forward pass's
    g->timeline.between = true;
    if (g->zo != NULL) {
        zo_look(g, B, T, last, logits);
    } else {
        gpt2_forward(g, g->inputs, NULL, logits != NULL ? NULL : g->targets, B, T);
        if (logits != NULL)
            matmul_forward<floatX>(&g->lt, g->logits, g->ln_f + last * C,
                                   tensor(g, g->table.lm_head), NULL, 1, C, Vp, g->compute);
        else if (g->words.count > 0) gpt2_classify(g, 0, 1, false);
        else gpt2_head(g, 0, 1, false, NULL);
        compute_span(g, NULL, 0);
        if (logits != NULL) floats_move(g->logits, logits, g->config.vocab, true);
    }
    g->timeline.between = false;
}

// Computes, for run_sample(), the logits (V) after the last of `count` tokens, on the host. If only
// the last token is new, runs a forward pass over its row alone; attention reads the keys and
// values of the other tokens in the cache (cache.cuh). Else runs a pass over all rows, which fills
// the cache. Zeroth-order training, whose weights may stream, has no cache.
static void gpt2_next(void *model, const int32_t *tokens, size_t count, size_t fresh,
                      float *logits) {
    GPT2 *g = (GPT2 *)model;
    const size_t first = fresh == 1 && g->sampling ? count - 1 : 0, rows = count - first;
    // Lengths are rounded up, so that few shapes of products are needed. The zeros after the last
    // token change nothing: no row sees a later token.
    const size_t T = first > 0 ? 1 : min_size(round_up(count, 64), config_window(&g->config));
    memset(g->inputs, 0, T * sizeof(int32_t));
    memcpy(g->inputs, tokens + first, rows * sizeof(int32_t));
    g->caching = g->sampling;
    g->position = first;
    gpt2_look(g, 1, T, rows - 1, logits);
    g->caching = false;
    g->position = 0;
}

// Evaluates rows for run_eval(): see RunLoss.
static double gpt2_eval(void *model, Run *r, size_t first, size_t rows, float *losses,
                        size_t *right) {
    GPT2 *g = (GPT2 *)model;
    const size_t T = r->val.T;
    if (!run_batch(r, &r->val, first, rows, g->inputs, g->targets, NULL, &r->damage)) return 0;
    gpt2_look(g, rows, T, 0, NULL);
    const double loss = gpt2_loss(g);
    if (g->words.count > 0) *right += (size_t)g->host_loss[1];
    if (losses != NULL) gpu_copy(losses, g->losses, rows * T * sizeof *losses);
    device_sync();  // completes collectives for which other ranks may wait
    return loss;
}

static void save(GPT2 *g, Run *r) {
    gpt2_update_wait(g);
    r->state.products = g->lt.tune.seal;
    run_save(r, g->zen != NULL ? zen_text(&g->zen->map, &g->zen->clock) : NULL);
}

// =============================================================================================
// 4. Logs, the training loop, and main()

// Plans the memory of the run that run_open() has opened. Returns the bytes of GPU memory.
static size_t gpt2_open(GPT2 *g, Run *r) {
    const Options *o = &r->o;
    g->config = r->state.config;
    g->table = r->table;
    g->no_overlap = o->no_overlap;
    g->host_threads = (int)o->threads;
    g->packed = r->packed;
    if (r->words) {
        g->words.count = run_task(r)->labels;
        memcpy(g->words.word, run_task(r)->word, sizeof g->words.word);
    }
    zo_open(g, r);
    g->zero = zero_open(r);
    gpt2_follow(g, r, zero_stage(g->zero));
    if (o->weights == WEIGHTS_HOST && g->weights == WEIGHTS_GPU && !r->only_sampling)
        printf("without training, all weights are on the GPU\n");
    g->shards = g->zero == NULL ? gpt2_shards_all(&g->table)
              : zero_shards(&g->table, r->world, r->rank, g->zero->rows);
    return settle(g, r);
}

// Writes the first batch's loss, logits and gradients (--dump). In fp16 it halves the loss scale
// until the gradients are finite (run.h).
static int gpt2_dump(GPT2 *g, Run *r) {
    const size_t N = r->B * r->T, P = g->table.elements;
    float *logits = (float *)alloc_or_fail(N * g->config.vocab_padded, sizeof(float), "logits");
    float *grads = (float *)alloc_or_fail(P, sizeof(float), "gradients");
    if (!run_micro_batch(r, 1, 0, g->inputs, g->targets, g->begins)) die("%s", r->damage.text);
    size_t finite = 0;
    for (float scale = (float)run_loss_scale(r); finite < P && scale >= 1; scale /= 2) {
        gpt2_forward(g, g->inputs, g->begins, g->targets, r->B, r->T);
        gpt2_head(g, scale / (float)run_targets(r, 1), 1 / run_parts(r, 1), false, logits);
        gpt2_backward(g, false, true);
        for (const Piece *p = g->pieces.pieces; p < g->pieces.pieces + g->pieces.count; p++)
            floats_move((floatX *)p->grad, grads + arena_at(g, p), p->length, true);
        for (finite = 0; finite < P && isfinite(grads[finite]); finite++) grads[finite] /= scale;
    }
    return run_dump(r, g->inputs, g->targets, g->begins, gpt2_loss(g), logits, grads);
}

int train_bf16(Run *r), train_fp32(Run *r), train_fp16(Run *r);

// Trains, or does what other options ask for; returns the exit code. See TRAIN in gpt2.cuh.
int TRAIN(Run *r) {
    if (r->o.calibrate) return calibrate(r, &trainer_steps);
    GPT2 *g = gpt2_new();
    const Options *o = &r->o;
    const size_t planned = gpt2_open(g, r);
    if (o->plan) return print_end();
    const size_t available = gpu_available();
    gpt2_allocate(g);
    const size_t taken = available - gpu_available();
    tune_open(&g->lt.tune, o->tune, r->world == 1);
    if (o->resume && r->state.products != g->lt.tune.seal)
        printf("the products' algorithms are not those of the checkpoint (--tune): results may "
               "differ in their last bits\n");
    gpt2_load(g, r);
    if (o->dump != NULL) return gpt2_dump(g, r);
    if (o->steps == 0) return run_without_steps(r, gpt2_eval, gpt2_next, g);

    if (g->offloaded && g->training) host_describe(&g->host);
    size_t step = run_begin(r, device_peak(sizeof(floatX) == sizeof(float)) * (double)r->world);
    const char *trace = r->rank == 0 ? o->trace : NULL;
    if (g->offloaded || g->zero != NULL || trace != NULL) timeline_open(&g->timeline, trace);
    if (trace != NULL) {  // memory of constant size; spans show all other memory
        const size_t state = g->pieces.elements[PIECE_RESIDENT] * g->piece_bytes[PIECE_RESIDENT];
        trace_memory(&g->timeline.trace, "weights", g->param_elements * sizeof(floatX));
        trace_memory(&g->timeline.trace, "resident state", g->training ? state : 0);
    }
    for (; run_goes_on(r, step); step++) {
        StepResult result = train_step(g, r, step);
        tune_print(&g->lt.tune);
        run_log_step(r, step, &result);
        if (run_wants_eval(r, step)) run_eval(r, step, gpt2_eval, g);
        if (run_wants_sample(r, step)) run_sample(r, step, gpt2_next, g);
        if (run_wants_save(r, step)) save(g, r);
    }
    save(g, r);
    const int code = run_end(r);
    printf("GPU memory: %.1f MiB taken, planned %.1f MiB\n", mib(taken), mib(planned));
    timeline_close(&g->timeline);
    gpt2_free(g);
    return code;
}

#if defined ENABLE_BF16 && !defined TESTING
int main(int argc, char **argv) {
    static Run run;
    program_begin();
    cpu_wait_briefly(argv);
    run_open(&run, argc, argv, true);
    const int p = run.o.precision, code = p == PRECISION_FP32 ? train_fp32(&run)
                                        : p == PRECISION_FP16 ? train_fp16(&run) : train_bf16(&run);
    ranks_close();
    return code;
}
#endif
