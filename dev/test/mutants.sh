#!/bin/sh
# Do the tests of offloading, of importance-aware updates, of zeroth-order training and of several
# GPUs notice a mistake? First, each call that orders a step (a wait, a record, a copy, work for the
# host: queue.cuh) is left out, by its place, in every program that comes by. Then, each line of the
# list below is a mistake in the sources of the GPU trainer: a buffer is used too early, a sum not
# reset. test_placement, or test_zo_gpu for those of zo*, test_zenflow_gpu for those whose name has
# "zen", test_zero_gpu for "zero", is built with all of them and runs with one at a time (MUTANT=N).
# Each mistake must be noticed: by other bits under a schedule of the emulated GPU (prio:0, prio:1,
# lazy), by a test's own checks (test), or by ThreadSanitizer (tsan). Those of "zero run" are in the
# trainer's loop, and must fail test_cli_zero.sh (cli).
# usage: sh dev/test/mutants.sh [places|list] [PATTERN]     (from the top, after make test; ALL=1:
#                                          every way that each is noticed, not only the first)
set -u
here=$PWD
only=
case ${1:-} in places | list) only=$1 && shift ;; esac
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export EMU_THREADS=1 OMP_NUM_THREADS=1 EMU_MEM_MB=2000 EMU_PEER_SECONDS=20
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}

# Places whose call can be left out, with the reason.
cat >"$work/redundant" <<'END'
visitors_begin: order(g->compute, g->fetch) :: a visitor's state and its slot depend on slot_free alone; the link is to be left to forward
gpt2_allocate: device_rest() :: loading rests, too (gpu_copy)
gpt2_free: device_rest() :: gpt2_release() does, and before it there is only the communicator
gpt2_release: device_rest() :: gpt2_free() does
gpt2_update_wait: device_rest() :: whoever reads then rests, too (gpu_copy), or waits for events
zen_exchange_columns: device_rest() :: so do its copies
gpt2_eval: device_rest() :: for what ranks exchange next, which is run_eval()'s: test_cli_zero.sh
weights_changed: event_record(g->ring_free[i], g->compute) :: an update is queued behind the norm, which is behind backward
upload: stream_wait(stream, s->used) :: zeroth order's; test_ranks of test_zo_gpu notices it
zo_fetch: stream_rest(g->compute) :: cudaFree() waits for both streams, too
zo_fetch: stream_rest(g->out) :: so it does
END

# The names of those that cannot be noticed begin with "same", with the reason above them.
# NAME :: FILE :: BEGIN                 leaves the statement out that begins like this
# NAME :: FILE :: LINE :: OLD :: NEW    an expression of the line in which LINE occurs is another
# (first) or (last) before BEGIN or LINE: of several such lines
cat >"$work/list" <<'END'
wait: the worker's counter, of the work before :: tide/host.cuh :: q->submitted, CU_STREAM_WAIT_VALUE_GEQ); :: q->submitted :: q->submitted - 1
record: slot free before flush :: train_gpt2.cu :: (g->slot_free[slot], g->out :: g->out :: g->update
record: slot full before state came :: train_gpt2.cu :: (first)     event_record(g->slot_full[slot], g->fetch :: g->fetch :: g->back
place: gradients of others overlap :: tide/gpt2.cuh :: + (size_t)(i % turns) * s[1].room :: i % turns :: i % turns / 2
place: waits for another :: train_gpt2.cu :: s->place = g->in_place :: i % g->places :: (i + 1) % (g->places + 1)
place: next to it waits :: train_gpt2.cu :: stream_wait(g->compute, g->grad_left[x->place]) :: x->place :: g->segment[s > 1 ? s - 1 : s].place
record: landing free before sum :: train_gpt2.cu :: (g->room_free[room], g->host.stream) :: g->host.stream :: g->out
# the host has waited for all sums before it queues an update (gpt2_grad_norm_squared)
same: gradient arrived before sum :: train_gpt2.cu :: lands ? g->host.stream : g->out :: lands ? g->host.stream : g->out :: g->out
record: place free before it left :: train_gpt2.cu :: freed = leaves :: leaves && !sums_on_gpu(g) && g->zen == NULL ? g->out : from :: from
record: weights returned before copy :: train_gpt2.cu :: (g->returned[s], g->back) :: g->back :: g->host.stream
record: GPU updated before it is :: train_gpt2.cu :: event_record(g->updated[s], x->streams :: g->update :: g->fetch
state: the first visitor's is fetched :: train_gpt2.cu :: copy_in(g, place[k], p->state[k] :: p->state[k] :: g->pieces.pieces[g->visits[0]].state[k]
state: all in one slot :: train_gpt2.cu :: (first) const int slot = visit :: visit % g->slot_count :: 0
state: places overlap :: offload.h :: n[kind] += p->length :: p->length :: p->length - 128
state: no room for a visitor's gradient :: tide/gpt2.cuh :: const size_t grad = g->choice :: g->choice.keep_grads ? 0 : host_grad_bytes(g) :: (size_t)0
tokens: the last of the order is missing :: tide/gpt2.cuh :: count = 3 * N + g->by_token :: g->by_token.groups + 1 :: g->by_token.groups
bits: fp16 for bf16 :: adam.h :: half[i] = master_weight(p) :: master_weight(p) :: f32_to_fp16(p)
bits: a weight that was rounded up is its master's half :: adam.h :: return bits_float((weight & 0xffff0000) :: (uint32_t)((int32_t)low >> 16) :: low >> 16
bits: gradient read as bf16 :: train_gpt2.cu :: work.grad_is_bf16 = host_grad_bytes(g) == 2 :: host_grad_bytes(g) == 2 :: sizeof(floatX) == 2
bits: visitor's gradient read as bf16 :: train_gpt2.cu :: weights, place[SLOT_GRAD], host_grad_bytes(g) == 2 :: host_grad_bytes(g) == 2 :: sizeof(floatX) == 2
gradient: sum on the host never reset :: train_gpt2.cu :: work.first = !accumulate :: !accumulate :: false
gradient: sum on the host always reset :: train_gpt2.cu :: work.first = !accumulate :: !accumulate :: true
gradient: sum on the GPU never reset :: train_gpt2.cu :: made, p->length, !accumulate :: !accumulate :: false
gradient: sum on the host in bf16 :: adam.h :: sum[i] = first ? :: fma_f32(scale, x, sum[i]) :: bf16_to_f32(f32_to_bf16(fma_f32(scale, x, sum[i])))
gradient: not kept on the GPU :: train_gpt2.cu :: else if (kept && p->grad != made) :: kept && p->grad != made :: false
gradient: wire's chunks overlap on the host :: train_gpt2.cu :: copy_out(g, (float *)to + at, g->wire :: (float *)to + at :: (float *)to
gradient: wire's chunks begin too late :: train_gpt2.cu :: at < p->length; at += WIRE_CHUNK :: WIRE_CHUNK :: WIRE_CHUNK + 8
gradient: wire's last chunk is too short :: train_gpt2.cu :: min_size(WIRE_CHUNK, p->length - at) :: p->length - at :: p->length - at - 8
gradient: places on the host overlap :: offload.h :: *grads += p->length :: p->length :: p->length - 128
norm: the host's first block alone :: train_gpt2.cu :: p->blocks * sizeof(double), cudaMemcpyHostToDevice :: p->blocks * sizeof(double) :: sizeof(double)
norm: one block short :: train_gpt2.cu :: norm_total_gpu(g->loss + 1, g->run_sums :: g->blocks :: g->blocks - 1
norm: the host's blocks of one micro-batch :: train_gpt2.cu :: if (last) work.block_sums :: last :: !accumulate
norm: two pieces share a block :: offload.h :: blocks += norm_blocks(to - from) :: norm_blocks(to - from) :: norm_blocks(to - from) - (to - from > 9000)
order: a piece is never updated :: train_gpt2.cu :: case PIECE_HOST: update_on_host( :: update_on_host(g, p, number, step) :: (number > 0 ? update_on_host(g, p, number, step) : (void)0)
choice: stride counted from 0 :: offload.h :: (number + 1) % c->stride :: number + 1 :: number
choice: visitors' gradients on the host too early :: tide/plan.h :: keep_grads = tight < 2 :: tight < 2 :: tight < 1
choice: sums on the GPU for too long :: tide/plan.h :: sum_on_host = tight > 0 :: tight > 0 :: tight > 1
choice: one byte is left :: tide/plan.h :: return gpu <= m->gpu && host :: host <= m->host :: host < m->host
memory: one landing :: train_gpt2.cu :: 2 * g->longest_segment * X_ :: 2 * g->longest_segment :: g->longest_segment
memory: slots for shorter visitors :: offload.h :: list->longest_visit = p->length :: p->length :: p->length - 128
weights: come before a visitor's have left :: train_gpt2.cu :: event_record(g->updated[s], x->streams :: g->out :: g->update
weights: come before the CPU has made them :: train_gpt2.cu :: event_record(g->returned[s], g->back :: g->back :: g->weights_in
weights: of the first layer :: tide/weights.cuh :: const Piece *p = g->zen != NULL :: x->end - 1 : x->first :: x->end - 1 : g->segment[1].first
weights: place free before it is used :: tide/weights.cuh ::         event_record(g->ring_free[g->segment[before :: g->compute :: g->weights_in
weights: waits for another place :: tide/weights.cuh :: stream_wait(stream, g->ring_free :: x->ring :: (x->ring + 1) % ring_places(g)
weights: place of another :: tide/weights.cuh :: if (layer && s->ring >= 0) s->param_at :: (size_t)s->ring :: (size_t)s->ring / 2
weights: those of the step before :: tide/weights.cuh :: g->tenant[i] = 0
weights: come though they are there :: tide/weights.cuh :: if (x->ring < 0 || g->tenant :: g->tenant[x->ring] == (int)s + 1 :: false
weights: a visitor's in the place of its gradient :: tide/gpt2.cuh :: return g->pieces.longest_visit * (piece :: g->slot_weights :: 0
weights: the first ones stream :: tide/weights.cuh :: s->streams = (number + 1) * g->streamed :: (number + 1) * g->streamed / may > number * g->streamed / may :: number < g->streamed
weights: a resident's layer streams :: tide/weights.cuh :: if (p->kind == PIECE_RESIDENT || :: p->kind == PIECE_RESIDENT || :: 
time: weights come when they are used :: tide/weights.cuh :: int ahead = g->no_overlap :: g->ring :: 1
counter: bytes in :: tide/gpt2.cuh :: g->moved_in +=
time: nothing is fetched during backward :: train_gpt2.cu :: if (last) visitors_begin(g) :: visitors_begin(g) :: (void)(g->fetched = 0)
time: forward waits for all updates :: train_gpt2.cu :: stream_wait(g->compute, g->updated[s]) :: g->updated[s] :: g->updated[g->segments - 1]
time: one slot at a time :: train_gpt2.cu :: g->slot_free[slot]) :: g->slot_free[slot] :: g->slot_free[(visit + g->slot_count - 1) % g->slot_count]
time: copies to the host wait for each other :: train_gpt2.cu :: g->landing_turn = 1 - g->landing_turn :: 1 - g->landing_turn :: 0
record: slot used after one direction :: tide/zo.cuh :: last) event_record(z->used :: last :: first
slots: one too many fetched :: tide/zo.cuh :: while (!g->no_overlap && z->fetched < :: z->visits + z->slots :: z->visits + z->slots + 1
layer: fetched from one further :: tide/zo.cuh :: const size_t number = z->fetched % z->streamed :: z->fetched % z->streamed :: (z->fetched + 1) % z->streamed
layer: goes home to its first group :: tide/zo.cuh :: copy_out(g, home + at, theta + at :: home + at :: home
layer: noise of the first :: tide/zo.cuh :: group.range[i].tensor += :: (uint32_t)l :: 0u
update: not stored :: tide/zo.cuh :: if (u.step != 0) zo_store8
update: twice with two directions :: tide/zo.cuh :: first ? &p->update : &zo_nothing :: &zo_nothing :: &p->update
update: embeddings are not stored :: tide/zo.cuh :: zo_weights(g, tensor(g, t->wte), &head, &p->update
update: with every micro-batch :: tide/zo.cuh :: z->pending = zo_nothing;  // it is
update: skipped steps count :: zo.h :: return isfinite(loss) && lr * norm < 1e30 :: lr * norm < 1e30 :: true
update: the newest weights are not evaluated :: train_gpt2.cu :: if (g->zo != NULL) zo_update_weights(g)
noise: minus is plus :: tide/zo.cuh :: w[k] = fmaf(-scale, z[k], th[k]) :: -scale :: scale
update: padding is updated :: tide/zo.cuh :: zo_clear_padding(th, n) :: zo_clear_padding(th, n) :: (void)n
loss: second chunk alone :: tide/zo.cuh :: sum = fmaf(sum, expf(max - top), row_sum :: row_sum[n] :: 0.0f
ranks: losses of the third dropped :: zo.h :: sum += all[r * stride + m * n + i] :: all[r * stride + m * n + i] :: (r > 1 ? 0.0 : all[r * stride + m * n + i])
ranks: losses added from the last rank on :: zo.h :: sum += all[r * stride + m * n + i] :: r :: (size_t)world - 1 - r
ranks: losses of rank 0 alone :: zo.h :: sum += all[r * stride + m * n + i] :: r :: (size_t)0
ranks: losses are not exchanged :: tide/zo.cuh :: ranks_exchange(z->mine, bytes, z->all)
ranks: damaged data of another one :: tide/zo.cuh :: if (z->all[k * news + n + ZO_DAMAGED] :: k * news :: 0 * k
ranks: all evaluate the first batches :: tide/run.h :: min_size(i * R + r->rank, batches - 1) :: r->rank :: 0
ranks: evaluation of rank 0 alone :: tide/run.h :: mean.loss += all[i % R * turns :: i % R :: (size_t)0
time: a group waits for its whole layer :: tide/zo.cuh :: stream_wait(g->compute, z->there[event] :: event :: event / ZO_GROUPS * ZO_GROUPS + 3
zen pieces: the rest's state is where the chosen's is :: tide/zenflow.cuh :: late->state_at = late->grad_at = :: s->rest_at :: s->chosen_at
zen pieces: the norm lacks the last one's blocks :: tide/zenflow.cuh :: late->first_block += late->blocks
zen pieces: one room for all segments' gradients :: train_gpt2.cu :: const size_t room = lands ? :: s :: (size_t)0
zen wait: late update at rest :: train_gpt2.cu :: if (g->zen != NULL) zen_compute_until(g
zen record: half free before it left :: train_gpt2.cu :: event_record(g->zen->packed_free :: g->out :: g->zen->pack
zen record: gradient arrived before it did :: train_gpt2.cu :: lands ? g->host.stream : g->out :: lands ? g->host.stream : g->out :: g->zen->pack
zen record: place free before it is packed :: train_gpt2.cu :: freed = leaves :: from :: g->leave
zen record: room free before it is added :: tide/zenflow.cuh :: if (gradient) event_record(g->room_free :: g->host.stream :: g->out
zen record: computed before it is :: tide/zenflow.cuh :: event_record(z->computed :: g->host.stream :: g->update
zen record: result left before it did :: tide/zenflow.cuh :: event_record(z->result_free[s] :: stream); :: g->update);
zen record: weights returned before they are :: tide/zenflow.cuh :: event_record(g->returned[s] :: stream); :: g->update);
zen record: chosen updated before they are :: train_gpt2.cu :: event_record(g->updated[s], x->streams :: g->update :: g->leave
zen copy: weights not scattered :: tide/zenflow.cuh :: columns_move_gpu(false, p->params
zen window: late, not shown :: tide/zenflow.cuh :: for (int s = 0; !turn.drains
zen copy: half of the segments :: tide/zenflow.cuh :: for (int s = 0; !turn.drains :: segments :: segments / 2
zen copy: result of the first segment :: tide/zenflow.cuh :: copy_in(g, zen_landing(z, false), p->weights :: p->weights :: g->segment[0].first[1].weights
zen copy: gradient to the first segment's place :: train_gpt2.cu :: void *to = p->host_grad :: p->host_grad :: g->segment[0].first[1].host_grad
zen copy: gradient of the chosen not packed :: tide/zenflow.cuh :: columns_move_gpu(true, zen_grad
zen copy: both halves of packed are one :: tide/zenflow.cuh :: (size_t)z->packing * z->map.longest :: z->packing :: 0
zen copy: landing too small :: tide/zenflow.cuh :: Buffer{"packed", landings * longest :: landings * longest :: landings * longest / 2
zen copy: one landing for both streams :: tide/zenflow.cuh :: return z->landing + (streams :: streams ? z->map.longest : 0 :: 0
zen weights: in use as they were :: tide/zenflow.cuh :: host_queue_submit(&g->host, zen_copies
zen weights: of the chosen as they were :: tide/zenflow.cuh :: columns_move_gpu(false, place, is_bf16, g->segment[s].first->state[0]
zen weights: selected, in use as they were :: tide/zenflow.cuh :: if (k == 0 && g->segment[s].streams) shown
zen weights: chosen before they are updated :: train_gpt2.cu :: event_record(g->updated[s], x->streams :: g->zen == NULL :: true
zen weights: of the chosen rounded to even :: tide/columns.cuh :: else return weight_from<To> :: weight_from<To> :: from_f32<To>
zen copy: sums never leave :: train_gpt2.cu :: if (g->zen != NULL) zen_sums_leave(g)
zen sums: never made :: tide/zenflow.cuh :: columns_sums_gpu(z->column_sums
zen sums: of several micro-batches read as bf16 :: tide/zenflow.cuh :: columns_sums_gpu(z->column_sums :: is_bf16 :: true
zen sums: micro-batches never reset :: train_gpt2.cu :: made, p->length, !accumulate :: !accumulate :: false
zen window: sums never change places :: tide/zenflow.cuh :: if (z->sums == 2 && !one_pass) z->sum :: 1 - z->sum :: z->sum
zen window: last step not in one pass :: tide/zenflow.cuh :: const bool one_pass = :: turn.drains || z->sums < 2 :: z->sums < 2
zen window: rest of a late update forgotten :: tide/zenflow.cuh :: zen_compute_until(g, SIZE_MAX);  // what
zen window: update begun when it is to show :: tide/zenflow.cuh :: zen_compute_until(g, z->due += z->share)
zen window: update all at once :: tide/zenflow.cuh :: z->share = z->map.rest / :: z->map.rest / (z->config.window > 0 ? z->config.window : turn.steps) :: z->map.rest
zen window: drained, not shown :: tide/zenflow.cuh :: if (turn.drains) zen_show(g, i)
zen window: shown twice :: tide/zenflow.cuh :: for (int s = 0; !turn.drains :: !turn.drains :: true
zen window: mean of one step :: tide/zenflow.cuh :: z->late_step = zen_rest_step( :: turn.steps :: (size_t)1
zen window: backward's room last :: tide/zenflow.cuh :: zen_on_host(g, turn.drains ? :: turn.drains ? i : segments - 1 - i :: i
zen window: forward's weights last :: tide/zenflow.cuh :: zen_on_host(g, turn.drains ? :: turn.drains ? i : segments - 1 - i :: segments - 1 - i
zen scale: not in one pass :: tide/zenflow.cuh :: zen_on_host(g, turn.drains ? :: scale :: 1.0f
zen scale: not added :: tide/zenflow.cuh :: zen_on_host(g, s, true, false, scale) :: scale :: 1.0f
zen window: first step adds :: tide/zenflow.cuh :: work.first = gradient && z->clock.filled == 0 :: z->clock.filled == 0 :: false
zen window: each step is the first :: tide/zenflow.cuh :: work.first = gradient && z->clock.filled == 0 :: z->clock.filled == 0 :: true
zen window: update of the open sum :: tide/zenflow.cuh :: work.sum = z->acc + (size_t)(gradient :: 1 - z->sum :: z->sum
zen selection: only masters :: tide/zenflow.cuh :: for (int k = 0; k < 3 && t->rows :: k < 3 :: k < 1
zen selection: masters that come stay away :: tide/zenflow.cuh :: *(float *)b = master_f32(*weight, *low) :: *weight, *low :: *weight, 0
zen selection: v is m :: tide/zenflow.cuh :: char *here = (char *)mine->state[k] :: mine->state[k] :: mine->state[k > 1 ? 1 : k]
zen selection: the host's first matrix :: tide/zenflow.cuh :: const size_t at = t->rest_at - x->rest_at + r :: t->rest_at - x->rest_at :: (size_t)0
zen selection: slots of the rest are one :: tide/zenflow.cuh :: const size_t at = t->rest_at - x->rest_at + r :: swaps[j].rest :: swaps[0].rest
zen selection: scores of the first matrix :: tide/zenflow.cuh :: z->clock.scores + t->column_at :: t->column_at :: (size_t)0
zen selection: map as it was :: tide/zenflow.cuh :: zen_swap(&z->map, i, swaps, count)
zen selection: the GPU's list as it was :: tide/zenflow.cuh :: (last) gpu_copy(z->column, z->map.column
zen selection: not counted :: tide/zenflow.cuh :: z->swapped += count
zen checkpoint: update computed again :: tide/zenflow.cuh :: z->queued = z->map.segments;
zen plan: two sums that are not used :: tide/zenflow.cuh :: else z->sums = z->config.overlap :: z->config.overlap && !tight :: !tight
zen plan: never one sum :: train_gpt2.cu :: zen_settle_sums(g->zen :: c->sum_on_host :: false
zen host: gradient of one step not clipped :: tide/zenflow.cuh :: if (update && work.first) work.step.grad_scale :: scale :: 1.0f
zen host: last gradient replaces the sum :: adam.h :: if (has_sum) g = fma_f32(scale, g, sum[i]); :: sum[i] :: 0.0f
zen columns: the rest's begin at the first :: tide/columns.cuh :: w.column_at = z->column_at + (rest :: rest ? z->chosen : 0 :: 0
zen columns: packed for the arena, not the segment :: tide/columns.cuh :: w.packed_at = rest ? z->rest_at :: z->rest_at - s->rest_at :: z->rest_at
zen columns: vectors decay :: tide/columns.cuh :: const float decay = w.decay :: w.decay ? s.weight_decay : 0.0f :: s.weight_decay
zero wait: gradient summed, then used :: tide/zero.cuh :: return g->zero != NULL ? g->zero->reduced[s] :: g->zero != NULL :: false
zero wait: --no-overlap :: train_gpt2.cu :: if (g->no_overlap && (leaves :: g->zero != NULL :: false
zero record: place free before it is used :: tide/weights.cuh ::         event_record(g->ring_free[g->segment[before :: g->compute :: g->zero->stream
zero record: numbers before they come :: tide/zero.cuh :: event_record(g->step_left :: z->stream :: g->leave
zero place: waits for the other :: tide/weights.cuh :: stream_wait(stream, g->ring_free :: x->ring :: (x->ring + 1) % ring_places(g)
zero place: frees the other :: tide/weights.cuh ::         event_record(g->ring_free[g->segment[before :: g->segment[before].ring :: (g->segment[before].ring + 1) % ring_places(g)
zero place: one for all layers :: tide/weights.cuh :: s->ring = turn++ % g->ring :: turn++ % g->ring :: 0
zero place: one for all gradients :: tide/gpt2.cuh :: + (size_t)(i % turns) * s[1].room :: i % turns :: 0
zero place: weights of the step before :: tide/weights.cuh :: g->tenant[i] = 0
zero place: weights come though they are there :: tide/weights.cuh :: if (x->ring < 0 || g->tenant :: g->tenant[x->ring] == (int)s + 1 :: false
zero gather: not in stage 1 and 2 :: tide/weights.cuh :: if (g->zero == NULL || g->zero->stage == 3) return; :: g->zero->stage == 3 :: true
zero gather: layer's shard where the layer comes :: tide/zero.cuh :: else all_gather(z, g->params + x->param_at :: x->own_param_at :: (x->param_at + z->rank * x->cut)
zero gather: what is updated stays :: train_gpt2.cu :: (first)     weights_changed(g)
zero shard: gradient at the segment's begin :: train_gpt2.cu :: s->own_grad_at = s->grad_at + :: s->own_from - s->at :: 0
zero shard: weights at the segment's begin :: tide/weights.cuh :: s->own_param_at = s->param_at + :: s->own_from - s->at :: 0
zero shard: state at the segment's begin :: tide/zero.cuh :: x->own_from = x->at + :: z->rank * x->cut :: (size_t)0
zero shard: landing of a whole segment :: train_gpt2.cu :: work.grad = landing + :: p->at - x->own_at :: p->at % x->length
zero shard: cut at 64 :: zero.h :: return round_up((n + world - 1) / world, ALIGN_ELEMENTS) :: ALIGN_ELEMENTS :: (size_t)64
zero norm: ranks in the other order :: zero.h :: order[n++] = (uint32_t)(r * stride :: r * stride :: (world - 1 - r) * stride
zero norm: a rank's first blocks again :: zero.h :: order[n++] = (uint32_t)(r * stride :: taken[r]++ :: i
zero norm: of as many as this rank has :: tide/zero.cuh :: z->all + ZERO_HEAD, z->order, z->all_blocks :: z->all_blocks :: g->blocks
zero norm: sums of all, one short :: tide/zero.cuh :: stream_copy(z->mine + ZERO_HEAD, g->norm_sums :: g->blocks * sizeof(double) :: (g->blocks > 0 ? g->blocks - 1 : 0) * sizeof(double)
zero loss: of rank 0 :: tide/zero.cuh :: *loss += z->host_all[r * ZERO_HEAD :: r * ZERO_HEAD :: 0 * r
zero flag: signal of rank 0 alone :: tide/run.h :: run_news[i] = fmax(run_news[i] :: said[k * stride + (size_t)i] :: said[i]
zero flag: signal not handed on :: tide/run.h :: if (run_news[NEWS_SIGNAL] != 0 && :: run_news[NEWS_SIGNAL] != 0 :: false
zero flag: no checkpoint is due :: tide/run.h :: mine[NEWS_DUE] =
zero counter: reduced :: tide/zero.cuh :: z->reduced_bytes +=
zero counter: gathered :: tide/zero.cuh :: (first) z->gathered_bytes +=
zero memory: one place in stage 3 :: tide/weights.cuh :: g->param_elements = at + :: g->ring :: (g->ring - 1)
zero memory: whole layers in stage 3 :: tide/weights.cuh :: g->param_elements += s->cut :: s->cut :: s->room
zero memory: gradients of all wait :: train_gpt2.cu :: g->in_place = !g->accumulating :: stage < 2 :: true
zero time: next layer comes when it is used :: tide/weights.cuh :: int ahead = g->no_overlap :: g->ring :: 1
zero time: weights come from the last on :: tide/weights.cuh :: zero_gather(g, (size_t)s); :: (size_t)s :: (size_t)(g->segments - 1 - s)
zero time: backward waits for every sum :: train_gpt2.cu :: if (g->no_overlap && (leaves :: g->no_overlap :: (g->no_overlap || g->zero != NULL)
zero run: loss of one rank's share :: train_gpt2.cu :: 1 / (double)(r->o.accum * r->world) :: r->world :: 1
zero run: gradient of one rank's share :: tide/run.h :: r->step_tokens = :: r->step_sequences :: (r->step_sequences / r->world)
zero run: all ranks read the same :: tide/run.h :: * r->world + r->rank) * r->B :: r->rank :: 0
zero run: ranks read what others read later :: tide/run.h :: * r->world + r->rank) * r->B :: r->world :: 1
zero run: all evaluate the same :: tide/run.h :: min_size(i * R + r->rank, batches - 1) :: r->rank :: 0
zero run: evaluations of rank 0 :: tide/run.h :: mean.loss += all[i % R * turns :: i % R :: (size_t)0
zero run: signal of this rank :: tide/run.h :: if (ranks.world == 1) run_tell :: ranks.world == 1 :: true
zero run: what zenflow has loaded stays :: train_gpt2.cu ::         weights_changed(g)
zero run: sums of rows by rank 0 :: tide/zero.cuh :: NCCL(ncclReduce(shard :: r :: 0
zero run: rows of rank 0 :: tide/zero.cuh :: NCCL(ncclBroadcast(shard :: r :: 0
zero run: rows not counted :: tide/zero.cuh :: (last) z->gathered_bytes +=
zero run: every rank logs :: tide/run.h :: log_open(&r->log, r->rank == 0 ? :: r->rank == 0 :: true
zero run: resumed with one rank's sequences :: tide/run.h :: const size_t each = o->batch * r->world :: r->world :: 1
zero run: damaged data of one rank are saved :: tide/run.h :: if (r->world > 1) die("%s", r->damage.text) :: r->world > 1 :: false
zero run: options are not compared :: tide/run.h :: ranks_agree("options", text)
zero run: data are not compared :: tide/run.h :: ranks_agree("data", text)
END

# Configurations of test_zero_gpu, each of which is several processes; of the others all.
configs_of() {
    case $1 in
        test_zero_gpu) echo 8 13 18 26 30 31 32 ;;
        test_zero_gpu_fp32) echo 16 27 ;;
        *) echo all ;;
    esac
}

# hashes PROGRAM SCHEDULE
hashes() {
    for p in "$1" "${1}_fp32"; do
        for k in $(configs_of "$p"); do
            [ "$k" = all ] || export EMU_PROTECT=0  # it takes three times as long
            EMU_SCHED=$2 timeout 300 "$bin/emu/$p" --config "$k" 3 2>&1
        done
    done
}

# sanitize PROGRAM
sanitize() {
    for p in "$1" "${1}_fp32"; do
        for k in $(configs_of "$p"); do
            EMU_RACECHECK=0 timeout 900 "$bin/tsan/$p" --config "$k" 2 || return
        done
    done
}

# cli PROGRAM: with the command line's test
cli() {
    (cd "$here" && TIDE_GPU="$work/$1" timeout 600 sh dev/test/test_cli_zero.sh) \
        >"cli.$MUTANT"
    grep -q '^ok' "cli.$MUTANT" && ! grep -q '^FAIL' "cli.$MUTANT"
}

# Says how mistake N is noticed, by a test.
try() {
    ways="prio:0 prio:1 lazy test tsan"
    [ "$2" != train_gpt2emu ] || ways=cli
    for way in $ways; do
        case $way in
            cli) cli "$2" ;;
            tsan) sanitize "$2" ;;
            test) timeout 900 "$bin/emu/$2" && timeout 900 "$bin/emu/${2}_fp32" ;;
            *) hashes "$2" $way >"out.$1"; cmp "out.$1" "hashes.$2" ;;
        esac >/dev/null 2>&1 || { printf '%s ' $way; [ "${ALL:-0}" = 1 ] || return; }
    done
}

# said NAME WAYS: the verdict. Those that are "same" cannot be noticed.
said() {
    case $1$2 in
        same*" ") echo "FAIL mutant $1: noticed by ${2% }" ;;
        same* | *" ") echo "ok $1: ${2:-not noticed}" ;;
        *) echo "FAIL mutant $1: not noticed" ;;
    esac
}

# Not more at a time than there are cores.
running=0
pause() {
    running=$((running + 1))
    [ $((running % jobs)) -ne 0 ] || wait
}

# --- places --------------------------------------------------------------------------------------

bin=$here/build
cd "$work" || exit 1
for program in test_placement test_zenflow_gpu test_zo_gpu test_zero_gpu; do
    [ "$only" != list ] || break
    (cd "$here" && make -s build/emu/$program build/emu/${program}_fp32 build/tsan/$program \
        build/tsan/${program}_fp32) >log 2>&1 || { cat log; exit 1; }
    TIDE_SITES=$work/places.$program hashes $program eager >"hashes.$program"
    touch "places.$program" places.known
    # what opens and closes is not of a step
    sort -u "places.$program" | grep -v '^host_\(alloc\|queue\)' | grep -vxFf places.known |
        grep -F -- "${1:-}" >places
    cat places >>places.known
    number=0
    while read -r place; do
        number=$((number + 1))
        name=$place
        grep -qF -- "$place ::" redundant && name="same: $place"
        (export TIDE_LEAVE_OUT="$place"; said "$name" "$(try "$program.$number" $program)") &
        pause
    done <places
    wait
done

# --- the list ------------------------------------------------------------------------------------

[ "$only" != places ] || exit 0
bin=build
# A copy of the tree by links, in which files are replaced.
mkdir -p "$work/dev/test" "$work/tide" "$work/build/emu" "$work/build/tsan"
ln -s "$here"/*.h "$here"/*.c "$here"/*.cu "$here/Makefile" "$work"
ln -s "$here"/tide/* "$work/tide"
ln -s "$here/dev/emu" "$here/dev/bench" "$work/dev"
ln -s "$here"/dev/test/*.* "$work/dev/test"
ln -s "$here/build/emu/runtime" "$here/build/emu/runtime-tsan" "$here/build/emu/cpu_reference.o" \
      "$work/build/emu"
ln -s "$here/build/tsan/cpu_reference.o" "$work/build/tsan"
cd "$work" || exit 1
cat >mutants.pl <<'END'
my (%was, %is);  # lines of files
sub lines { my $f = shift; $is{$f} = [@{$was{$f} = [do { local @ARGV = $f; <> }]}] if !$is{$f}; }
lines("tide/util.h");
my ($first) = grep { $is{"tide/util.h"}[$_] =~ /^#include/ } 0 .. 99;
$is{"tide/util.h"}[$first] .= '
#include <stdlib.h>
#include <string.h>
static const char *const mutant_text = getenv("MUTANT");
static const int mutant_chosen = mutant_text == nullptr ? 0 : atoi(mutant_text);
static inline bool mutant(int n) { return n == mutant_chosen; }
static inline uint16_t f32_to_fp16(float f) {
    uint32_t x;
    memcpy(&x, &f, 4);
    return (uint16_t)((x >> 16 & 0x8000) | ((x >> 13) - (112 << 10) & 0x7fff));
}
';
for (my $n = 1; my $line = <STDIN>; $n++) {
    next if $line =~ /^#/;
    chomp $line;
    my ($name, $file, $place, $old, $new) = split / :: /, $line;
    lines($file);
    my $which = $place =~ s/^\((first|last)\) // ? $1 : "";
    my @found = grep { index($was{$file}[$_], $place) >= 0 } 0 .. $#{$was{$file}};
    @found = $found[$which eq "last" ? -1 : 0] if $which && @found > 1;
    my $from = \($is{$file}[$found[0] // 0]);
    my $changes = @found != 1 ? 0
        : defined $old ? $$from =~ s/^(.*)(?<!\w)\Q$old\E(?!\w)/$1(mutant($n) ? $new : $old)/s
        : $$from =~ s/(?=\Q$place\E)/if (mutant($n)) {} else /;
    print "FAIL mutant $name: not in $file\n" if !$changes;
}
for (keys %is) { unlink; open(my $f, ">", $_) or die; print $f @{$is{$_}}; }
END
perl mutants.pl <list || exit 1
test_of() {
    case $1 in
        "zero run"*) echo train_gpt2emu ;;
        zero*) echo test_zero_gpu ;;
        *" :: zo."* | *" :: tide/zo."* | *zo_* | ranks:*) echo test_zo_gpu ;;
        *"zen "*) echo test_zenflow_gpu ;;
        *) echo test_placement ;;
    esac
}
programs=$(grep -v '^#' list | grep -F -- "${1:-}" | while read -r line; do test_of "$line"; done |
           sort -u)
for program in $(for p in $programs; do
        if [ "$p" = train_gpt2emu ]; then echo $p
        else echo "build/emu/$p build/emu/${p}_fp32 build/tsan/$p build/tsan/${p}_fp32"; fi
    done); do
    make -s -o tide/util.h -o build/emu/cpu_reference.o -o build/tsan/cpu_reference.o $program >log 2>&1 ||
        { cat log; exit 1; }
done

for program in $programs; do
    [ "$program" = train_gpt2emu ] || hashes "$program" eager >"hashes.$program"
done
number=0
while read -r line; do
    number=$((number + 1)) name=${line%% :: *}
    case $line in "#"*) continue ;; *"${1:-}"*) ;; *) continue ;; esac
    (
        export MUTANT=$number
        ways=$(try $number "$(test_of "$line")")
        said "$name" "$ways"
    ) &
    pause
done <list
wait
