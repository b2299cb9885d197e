// test_offload.c: the decisions of offload.h, for presets and for random models, whole or one
// rank's shards: pieces and runs cover all parameters once, no cut divides a norm block (whose sum
// is so that of the whole tensor's), and each choice gives what it asks for.
#include "../../../offload.h"
#include "../../../zero.h"
#include "../test.h"

// Pieces are in order and gapless, none crosses the end of a segment, and each has one place; runs
// are the shards in order, cut at whole norm blocks.
static void check_pieces(const GPT2Table *t, const ShardMap *map, const Pieces *list,
                         const OffloadChoice *c) {
    size_t at = 0, home[2] = {0, 0}, grads[2] = {0, 0}, longest = 0, block = 0, within = 0;
    int visits = 0, run = 0, shard = 0;
    for (int i = 0; i < list->count; i++) {
        const Piece *p = &list->pieces[i];
        const size_t before = block;
        const bool gpu = p->kind == PIECE_RESIDENT;
        const bool grad_gpu = gpu || (p->kind == PIECE_VISIT && visits++ < c->kept_grads);
        CHECK(p->at == at && p->length > 0, "piece %d at %zu, not %zu", i, p->at, at);
        CHECK(p->state_at == home[gpu], "state of piece %d", i);
        CHECK(p->grad_at == grads[grad_gpu], "gradient of piece %d", i);
        at += p->length;
        home[gpu] += p->length;
        grads[grad_gpu] += p->length;
        if (p->kind == PIECE_VISIT && p->length > longest) longest = p->length;
        CHECK(p->first_run == run && p->first_block == block && p->runs > 0, "piece %d", i);
        for (int k = 0; k < p->runs && shard < map->count; k++, run++) {
            const AdamRun *r = &list->runs[run];
            const Shard *s = &map->shards[shard];
            const GPT2Tensor *x = &t->tensors[s->tensor];
            CHECK(x->layer + 1 == p->segment, "piece %d has %s", i, x->name);
            CHECK(p->at + r->at == s->at + within && within % NORM_BLOCK == 0 && r->length > 0
                  && r->length <= s->length - within && r->at + r->length <= p->length
                  && r->decay == (x->rank == 2) && r->index == x->offset + s->offset + within,
                  "piece %d, run %d", i, k);
            block += norm_blocks(r->length);
            within += r->length;
            if (within < s->length) continue;
            within = 0;
            shard++;
        }
        CHECK(p->blocks == block - before, "piece %d: %zu blocks", i, p->blocks);
    }
    CHECK(at == map->elements && shard == map->count && within == 0, "%zu elements", at);
    CHECK(list->grads_host == grads[0] && list->grads_gpu == grads[1], "gradients");
    CHECK(list->longest_visit == longest, "%zu, not %zu", list->longest_visit, longest);
}

// A cut is where it should be, but for the way to the next legal place: half a norm block, or the
// gap behind a tensor.
#define NEAR(a, b) ((a) < (b) ? (b) - (a) <= NORM_BLOCK / 2 + ALIGN_ELEMENTS \
                              : (a) - (b) <= NORM_BLOCK / 2 + ALIGN_ELEMENTS)

static void check_kinds(const GPT2Table *t, const ShardMap *map, const Pieces *list,
                        const OffloadChoice *c) {
    size_t embeddings = 0;
    for (int i = 0; i < map->count && t->tensors[map->shards[i].tensor].layer < 0; i++)
        embeddings = shard_begin(map, i + 1);
    const double share = c->mode == OFFLOAD_NONE ? 1 : c->mode == OFFLOAD_ZERO ? 0 : c->resident;
    const size_t budget = (size_t)(share * (double)map->elements);
    const size_t resident = list->elements[PIECE_RESIDENT];
    CHECK(c->stride > 0 ? resident <= budget + NORM_BLOCK : NEAR(resident, budget),
          "%zu resident, not %zu", resident, budget);
    // residents are the end, and before it the embeddings if there is room
    int last = list->count;
    while (last > 0 && list->pieces[last - 1].kind == PIECE_RESIDENT) last--;
    double dealt = 0, visiting = 0;  // elements of sub-groups so far
    for (int i = 0; i < last;) {
        const Piece *p = &list->pieces[i];
        const bool first = c->stride == 0 && budget >= embeddings && p->segment == 0;
        double length = 0;
        for (; i < last && list->pieces[i].subgroup == p->subgroup; i++) {
            CHECK(list->pieces[i].kind == p->kind, "a sub-group is cut");
            length += (double)list->pieces[i].length;
        }
        CHECK((p->kind == PIECE_RESIDENT) == first, "piece %d of %d", i, last);
        if (first) continue;
        const size_t size = c->subgroup, end = p->at + (size_t)length;
        CHECK(size > 0 ? i == last || NEAR(end, (end + size / 2) / size * size)
                       : length <= (double)(SUBGROUP_PARAMETERS + NORM_BLOCK), "ends at %zu", end);
        dealt += length;
        if (c->mode != OFFLOAD_INTERLEAVE)
            CHECK(p->kind == PIECE_HOST, "visitors");
        else if (c->stride > 0)  // Algorithm 1
            CHECK((p->kind == PIECE_VISIT) == (((size_t)p->subgroup + 1) % c->stride == 0),
                  "sub-group %d", p->subgroup);
        else if (p->kind == PIECE_VISIT)
            CHECK(visiting + length <= c->share * dealt + 1, "too much visits");
        else
            CHECK(visiting + length > c->share * dealt, "too little visits");
        if (p->kind == PIECE_VISIT) visiting += length;
    }
}

static const double shares[] = {0, 1e-9, 0.01, 0.3, 0.5, 0.68, 0.999999, 1};

// A third of the models are presets, of which some have segments of several sub-groups.
static void every_choice_covers_all_models(void) {
    enum { PRESETS = sizeof gpt2_presets / sizeof *gpt2_presets };
    uint64_t x = 88172645463325252u;
    #define RANDOM(n) (x ^= x << 13, x ^= x >> 7, x ^= x << 17, (size_t)(x % (n)))
    for (int trial = 0; trial < 9000; trial++) {
        GPT2Config config;
        Error err;
        memset(&config, 0, sizeof config);
        config.layers = 1 + RANDOM(7);
        config.heads = 1 + RANDOM(4);
        config.channels = config.heads * (1 + RANDOM(trial % 3 == 0 ? 300 : 20));
        config.ffn = RANDOM(2) ? 0 : 1 + RANDOM(3000);
        config.context = 1 + RANDOM(3000);
        config.vocab = 1 + RANDOM(3000);
        config.tied = (int)RANDOM(2);
        if (trial % 3 == 2) gpt2_preset(&config, gpt2_presets[trial / 3 % PRESETS].name);
        gpt2_finish(&config, &err);
        GPT2Table t = gpt2_table(&config);
        // half of them whole; the last rank often, which may own nothing of a short segment, or at all
        const size_t world = RANDOM(2) ? 1 : RANDOM(9) ? 2 + RANDOM(8) : 64;
        const size_t rank = RANDOM(3) == 0 ? world - 1 : RANDOM(world);
        ShardMap map = zero_shards(&t, world, rank, RANDOM(3) == 0);
        OffloadChoice c;
        memset(&c, 0, sizeof c);
        c.mode = OFFLOAD_NONE + (int)RANDOM(4);
        c.resident = RANDOM(3) == 0 ? shares[RANDOM(8)] : (double)RANDOM(1001) / 1000;
        if (c.mode == OFFLOAD_INTERLEAVE) {
            c.stride = RANDOM(2) ? 1 + RANDOM(5) : 0;
            if (c.stride == 0)
                c.share = RANDOM(3) == 0 ? shares[RANDOM(8)] : (double)RANDOM(1001) / 1000;
        }
        c.subgroup = RANDOM(3) == 0 ? 0 : 4096 + RANDOM(2 * map.elements + 1);
        if (RANDOM(4) == 0) c.subgroup = 4096;
        if (t.elements > 1 << 28) c.subgroup = RANDOM(2) ? 0 : 100000000;
        c.kept_grads = RANDOM(2) ? KEEP_ALL : (int)RANDOM(4);
        Pieces list = offload_pieces(&t, &map, &c);
        check_pieces(&t, &map, &list, &c);
        check_kinds(&t, &map, &list, &c);
        pieces_free(&list);
        free(map.shards);
        free(t.tensors);
    }
    #undef RANDOM
}

// The numbers that transformers counts in these models; OPT without the two rows of its position
// table that no token uses.
static void presets_have_their_parameters(void) {
    static const struct { const char *name; size_t parameters; } known[] = {
        {"gpt2", 124439808}, {"gpt2-xl", 1557611200}, {"opt-125m", 125237760},
        {"opt-350m", 331194368}, {"smollm2-135m", 134515008}, {"smollm2-360m", 361821120},
        {"tinyllama-1.1b", 1100048384}, {"llama2-7b", 6738415616}, {"llama2-13b", 13015864320},
        {"llama3.2-1b", 1235814400}, {"llama3.2-3b", 3212749824}, {"llama3.1-8b", 8030261248},
        {"mistral-7b", 7241732096}, {"qwen2.5-0.5b", 494032768}, {"qwen2.5-1.5b", 1543714304},
        {"qwen2.5-3b", 3085938688}, {"qwen2.5-7b", 7615616512}, {"qwen2.5-14b", 14770033664},
        {"qwen3-0.6b", 596049920}, {"qwen3-1.7b", 1720574976}, {"qwen3-4b", 4022468096},
        {"qwen3-8b", 8190735360}, {"qwen3-14b", 14768307200}, {"llama2-70b", 68976648192},
        {"llama3.1-70b", 70553706496}, {"qwen2.5-32b", 32763876352}, {"qwen2.5-72b", 72706203648},
        {"qwen3-32b", 32762123264}, {"smollm3-3b", 3075098624}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        GPT2Config c;
        Error err;
        CHECK(gpt2_preset(&c, known[i].name) && gpt2_finish(&c, &err), "%s", known[i].name);
        GPT2Table t = gpt2_table(&c);
        CHECK(t.parameters == known[i].parameters, "%s has %zu", known[i].name, t.parameters);
        free(t.tensors);
    }
    // Presets have the norms and rotary positions of the models' config.json.
    static const struct { const char *name; double eps, theta, factor; } said[] = {
        {"llama2-7b", 1e-5, 1e4, 0}, {"llama3.1-8b", 1e-5, 5e5, 8}, {"llama3.2-1b", 1e-5, 5e5, 32},
        {"mistral-7b", 1e-5, 1e4, 0}, {"qwen2.5-7b", 1e-6, 1e6, 0}, {"qwen3-8b", 1e-6, 1e6, 0},
        {"smollm3-3b", 1e-6, 5e6, 0}};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        GPT2Config c;
        gpt2_preset(&c, said[i].name);
        const bool slowed = said[i].factor > 0, llama3 = c.rope.scaling == ROPE_LLAMA3;
        CHECK(c.norm_eps == said[i].eps && c.rope.theta == said[i].theta
              && c.rope.factor == said[i].factor && llama3 == slowed
              && (!slowed || (c.rope.low == 1 && c.rope.high == 4 && c.rope.original == 8192)),
              "%s: eps %g, theta %g, factor %g", said[i].name, c.norm_eps, c.rope.theta,
              c.rope.factor);
    }
}

int main(void) {
    RUN(presets_have_their_parameters);
    RUN(every_choice_covers_all_models);
    return test_summary();
}
