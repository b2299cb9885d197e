// runs.cuh: the table of training runs and the loop over its rows. A row is what a user would type,
// with a shape's name and words for what a plan decides ("five --offload zero places=9"). Training
// leaves the bits of the row's reference: of AdamW's, MeZO's and several ranks' that is the same
// training with everything on one GPU, of ZenFlow's it is zenflow.h's; also after a stop and a
// resume as another row. A program has the rows under its name, and adds its own checks of a model
// that is open and of one that has trained.
#ifndef TIDE_RUNS_CUH
#define TIDE_RUNS_CUH
#include "model_harness.cuh"
#include "../processes.h"
#include <sys/mman.h>
#include <sys/prctl.h>

// ---------------------------------------------------------------------------------------------
// The table

// With gaps between tensors, padded rows, tied and untied heads, odd widths. "labels", in fp32, has
// rows that begin and end amid the eight elements that MeZO draws at once.
static const Shape row_shapes[] = {
    // name     L NH   C    F    V  ctx  B   T  act  tied recompute accum head repeated
    {"tied",    2, 2,  32,  64, 131, 20, 3, 15, GELU, 1, KEEP, 1, 99, false},
    {"odd",     3, 3,  24,  40, 257, 17, 2,  9, RELU, 0, KEEP, 1,  5, false},
    {"tail",    3, 3,  24,  40, 257, 17, 2,  9, RELU, 1, KEEP, 1,  5, false},  // short, as "five"'s
    {"one",     1, 2,  48,  72, 131, 17, 1, 17, GELU, 0, KEEP, 1, 99, false},
    {"five",    5, 1,  16,  32, 131,  9, 2,  8, RELU, 1, KEEP, 1, 99, false},
    // the head's gradient is made where it waits; or, in chunks, summed first
    {"llama",   3, 4,  32,  40, 131, 18, 2,  9, GELU, 0, KEEP, 1, 99, false, 0,
     FAMILY_QWEN3, 2, 16},
    {"chunks",  2, 2,  24,  40, 131, 20, 2,  9, GELU, 0, KEEP, 1,  5, false, 4,
     FAMILY_QWEN2, 1, 16},
    {"rows",    2, 1,  24,  40, 131,  9, 1,  9, GELU, 0, KEEP, 1,  1, false},
    // ZenFlow's: matrices of several blocks of rows, and of columns; layers that hide much
    {"wide",    2, 3,  72, 400, 131,  8, 1,  7, GELU, 1, KEEP, 1, 99, false},
    {"deep",    6, 1,  32,  64, 131,  8, 1,  8, GELU, 1, KEEP, 1, 99, false},
    // MeZO's: a vocabulary of two chunks, the second one not full; losses of labels
    {"four",    4, 2,  32,  64, 131,  8, 2,  4, GELU, 1, KEEP, 1, 99, false},
    {"vocab",   3, 1,  16,  24, 700,  6, 2,  3, GELU, 0, KEEP, 1, 99, false},
    {"labels",  3, 1,  PRECISION == PRECISION_FP32 ? 20 : 16, 32, 150, 8, 2, 6, RELU, 1, KEEP, 1,
     99, false},
    {"words",   3, 4,  16,  24, 150,  8, 2,  6, GELU, 1, KEEP, 1, 99, false, 0,
     FAMILY_QWEN2, 1, 16},
    // of 7B's proportions: 32 layers, embeddings as large as one
    {"7B",     32, 2,  16,  64, 131,  8, 1,  8, GELU, 1, KEEP, 1, 99, false}};

enum { ROW_TEXT = 400, MOST_ROWS = 120, MOST_SETTINGS = 24 };

// What a user may say of AdamW's step, whose state is somewhere; or, `or_none`, also on the GPU.
#define PLACEMENTS(or_none) \
    "--precision bf16|--precision fp32", "|--accum 3", \
    "|--recompute light|--recompute block|--activations host", \
    "--clip 0.05|--clip 1e6|--clip 0", "|sizes", "|evaluates", \
    "--offload zero|--offload twinflow --resident 0.3|--offload twinflow --resident 0.9" \
        "|--offload interleave --stride 1 --resident 0.3|--offload interleave --stride 2" \
        "|--offload interleave --share 0.3 --resident 0.9|--offload interleave --share 0.5" \
        "|--offload interleave --share 1 --resident 0.3" or_none, \
    "|--subgroup 4096|--subgroup 8192|--subgroup 20000", "--slots 2|--slots 1|--slots 3", \
    "|places=3|places=9", "|--grad-wire fp32", "|tight=1|tight=2|tight=3", \
    "|--threads 2", "|--no-overlap"

// The rows of a program: so many that are drawn, each with a value of each setting ("a|b|" are two
// values, and none); then what is used most, and special cases. above=...: these counters of a row
// must be above zero. `some` of the first cover most of what there is: with the special ones,
// enough for `make test`.
static const struct {
    const char *program;
    int drawn, some;
    const char *settings[MOST_SETTINGS], *special[40];
} table[] = {
    {"test_placement", 40, 12, {"tied|odd|one|five", PLACEMENTS(""), "|--moments bf16",
     "|streamed=1|streamed=2|streamed=9 ring=3", "|early=1|early=5"}, {
    // one layer: two segments that leave in different ways, one after the other
    "one --accum 4 --clip 0 --offload interleave --stride 2 tight=1 streamed=9",
    // every third visits; slots for more than there is
    "five --clip 0.05 --offload interleave --stride 3 --subgroup 4096 places=9 streamed=3",
    "tied --clip 0.05 --offload interleave --share 1 --slots 9 tight=2 streamed=9",
    // without clipping, the update begins in backward
    "five --clip 0 --accum 3 --offload zero tight=1 streamed=2", "five --clip 0 evaluates",
    "five --clip 0 --offload interleave --share 0.5 --subgroup 4096 --resident 0.3 tight=3 "
        "streamed=2 --moments bf16 sizes",
    // nothing is anywhere else
    "tied --accum 3 --recompute light", "rows --precision fp32 --accum 2 --recompute block",
    // the LLaMA family
    "llama --accum 2 --recompute block --clip 0.05 evaluates --offload interleave --resident 0.3 "
        "--share 0.5 --subgroup 4096 tight=1 --threads 2 --moments bf16 streamed=2",
    "chunks --precision fp32 --accum 2 --clip 0.05 sizes --offload interleave --share 1 "
        "--subgroup 4096 --slots 1 places=3 --grad-wire fp32 tight=1 --moments bf16 streamed=1 "
        "ring=3",
    // the MLP works in chunks, of which one is in memory, or all
    "chunks --recompute block --clip 0.05 sizes evaluates --offload zero streamed=2",
    "chunks --recompute light --clip 0.05 --offload interleave --share 0.5",
    // the last layers keep activations
    "llama --accum 2 --recompute block keeps=2 --clip 0.05 sizes evaluates --offload zero streamed=2",
    "deep --recompute block keeps=4 --clip 0 --offload interleave --share 0.5 --subgroup 4096",
    "five --precision fp32 --recompute block keeps=1 --clip 0.05 evaluates",
    // inputs of layers leave, and nothing else
    "deep --accum 3 --activations host --clip 0.05 sizes evaluates",
    // masters in bf16: residents, visitors and the CPU's; sums; weights on the host
    "five --master bf16 --clip 0.05 evaluates --offload interleave --resident 0.3 --share 0.5 "
        "--subgroup 4096 places=3 --threads 2 --moments bf16 streamed=2",
    "odd --master bf16 --accum 2 --recompute block --clip 0 sizes --offload zero --moments bf16",
    // of one layer's gradient, a part leaves
    "odd --clip 0 --offload interleave --share 0.5 --subgroup 4096",
    }},
    {"test_zero_gpu", 51, 12, {"tied|tail|one|five", PLACEMENTS("|--offload none"),
     "ranks=1|ranks=2|ranks=3|ranks=4",
     "--zero 2|--zero 1|--zero 3|--zero 3 streamed=1|--zero 3 streamed=9 ring=3"}, {
    // as they are used most
    "five ranks=2 --zero 3 --accum 3 --clip 0.05 --offload interleave --share 0.5 places=9 "
        "streamed=2 --recompute block keeps=1",
    "odd ranks=2 --zero 1 --clip 0 --offload interleave --stride 2 --subgroup 4096 places=3",
    "five ranks=2 --zero 3 --clip 0.05 --offload zero --slots 1 streamed=9 ring=3",
    // the LLaMA family
    "llama ranks=2 --zero 2 --precision fp32 --accum 2 --clip 0.05 evaluates",
    "llama ranks=2 --zero 3 --accum 2 --recompute light --clip 0.05 evaluates --offload interleave "
        "--share 0.5 tight=1 streamed=2",
    "llama ranks=2 --zero 3 --master bf16 --clip 0.05 --offload interleave --share 0.5 streamed=2",
    "chunks ranks=2 --zero 3 --recompute block --accum 2 --clip 0.05",
    "chunks ranks=2 --zero 2 --recompute block --clip 0.05 --offload zero",
    }},
    {"test_zenflow_gpu", 30, 6, {"five|odd|wide|one", "--precision bf16|--precision fp32",
     "|--accum 2", "--recompute none|--recompute block|--activations host", "--clip 0.05|--clip 0",
     "--zen-topk 0 --zen-window 1|--zen-topk 0.05 --zen-window 4|--zen-topk 0.3 --zen-window 2"
        "|--zen-topk 0.3 --zen-window auto|--zen-topk 0.05 --zen-window 1"
        "|--zen-topk 1 --zen-window 4",
     "--zen-reselect 0|--zen-reselect 1|--zen-reselect 3", "--zen-warmup 1|--zen-warmup 3",
     "--zen-overlap on|--zen-overlap off", "sums=2|sums=1",
     "--offload zenflow|--offload zenflow --resident 0.4|--offload zenflow --resident 1",
     "|--threads 3", "|--no-overlap", "|rests", "|evaluates", "|sizes", "|timed", "|places=9",
     "|--moments bf16", "|streamed=1|streamed=9"}, {
    "tied --clip 0.05 --offload zenflow --zen-window 4 --zen-reselect 3 timed "
        "above=late,drained,selected,swapped",
    "odd --accum 2 --clip 0.05 --offload zenflow --zen-topk 0.3 --zen-window 3 "
        "--zen-reselect 3 --zen-warmup 2 --resident 0.4 evaluates sizes places=9 streamed=1 "
        "above=late,selected,swapped",
    "wide --accum 2 --clip 0.05 --offload zenflow --zen-window auto --zen-reselect 0 "
        "--threads 1 timed places=9 streamed=9 above=late",
    // a window of two steps follows one of three, and queues the rest of its update at its end
    "five --clip 0.05 --offload zenflow --zen-topk 0.7 --zen-window auto --zen-reselect 0 steps=9 "
        "--recompute block keeps=2",
    "llama --accum 2 --recompute light --clip 0.05 --offload zenflow --zen-topk 0.3 "
        "--zen-window 2 --zen-reselect 3 timed streamed=1 above=late,swapped",
    "tied --master bf16 --clip 0.05 --offload zenflow --zen-topk 0.3 --zen-window 2 "
        "--zen-reselect 3 --moments bf16 evaluates above=late,selected,swapped",
    "chunks --recompute block --clip 0.05 --offload zenflow --zen-topk 0.3 --zen-window 2 "
        "--zen-reselect 3 above=late",
    // gradients that are scaled, as fp16's, by another factor in the next step
    "five scaled --offload zenflow --zen-topk 0.3 --zen-window 2 --zen-reselect 3 --zen-warmup 2 "
        "--zen-overlap off above=selected",
    // plain AdamW: each step is a window, all is chosen, or a warm-up
    "five adamw --clip 0.5 --offload zenflow --zen-topk 0 --zen-window 1 --zen-reselect 0 "
        "--zen-overlap off --resident 0.2",
    "one adamw --accum 2 --clip 0.5 --offload zenflow --zen-topk 1 --zen-window 3 "
        "--zen-reselect 0",
    }},
    {"test_zo_gpu", 24, 6, {"four|odd|labels|vocab", "--precision bf16|--precision fp32",
     "--optimizer mezo|--optimizer mezo --zo-noise rademacher", "|--zo-queries 2", "|--accum 2",
     "--slots 1|--slots 2|--slots 3|--slots 9",
     "--resident-blocks 0|--resident-blocks 1|--resident-blocks 2|", "|--no-overlap",
     "|--zo-no-slots", "|--zo-no-fused-update", "|evaluates", "|timed", "|rests"}, {
    // for longer; and with fewer and more slots
    "four --optimizer mezo --slots 2 --resident-blocks 0 --zo-no-fused-update steps=24",
    "odd --optimizer mezo --zo-queries 3 --zo-noise rademacher --slots 9 --resident-blocks 0",
    "llama --precision fp32 --optimizer mezo --zo-queries 2 --zo-noise rademacher --accum 2 "
        "--slots 3 --resident-blocks 0 --zo-no-fused-update timed",
    "words --optimizer mezo --zo-queries 2 --zo-noise rademacher --accum 2 --slots 9 "
        "--resident-blocks 0 --zo-no-slots evaluates",
    // several processes, with the bits of one
    "four --optimizer mezo ranks=3 --accum 2 --slots 3 evaluates",
    "odd --precision fp32 --optimizer mezo ranks=2 --zo-queries 3 --zo-noise rademacher "
        "--accum 3 --slots 2 --resident-blocks 0 evaluates",
    "labels --optimizer mezo ranks=3 --zo-noise rademacher --accum 2 --slots 1 "
        "--resident-blocks 0 evaluates",
    }},
};

// ---------------------------------------------------------------------------------------------
// Rows

// Of a run that begins. late, drained: updates of the rest that show a window late, or at once;
// swapped: columns that change places.
enum { LATE, DRAINED, SELECTED, SWAPPED, COUNTERS };
static const char *const counter_names[COUNTERS] = {"late", "drained", "selected", "swapped"};

typedef struct {
    char text[ROW_TEXT];
    Options o;
    const Shape *shape;
    int ranks;                         // 0: one, without zero.cuh
    int places, tight, ring, early, keeps;  // see config_place(), model_begin()
    int streamed;                      // layers whose weights are on the host
    int sums;                          // of ZenFlow, on the host
    int sizes, evaluates;              // every second step has a smaller batch; each is evaluated
    int timed, rests;                  // with a timeline; all comes to rest after each step
    int steps;                         // 0: as many as row_steps() says
    int adamw, plain;                  // ZenFlow that is plain AdamW; zenflow.h's reference
    int scaled;                        // gradients are, in every second step
    int waits;                         // without clipping, too, the update waits for the norm
    // on the virtual clock: percent of a step in memory that the host takes for all updates, and
    // for all additions to sums
    int updates, adds;
    int measured;                      // what is planned is by the GPU's speed with a few layers
} Config;

static const struct { const char *name; size_t at; } row_words[] = {
    {"ranks", offsetof(Config, ranks)}, {"places", offsetof(Config, places)},
    {"tight", offsetof(Config, tight)}, {"streamed", offsetof(Config, streamed)},
    {"ring", offsetof(Config, ring)}, {"early", offsetof(Config, early)},
    {"keeps", offsetof(Config, keeps)},
    {"sums", offsetof(Config, sums)}, {"sizes", offsetof(Config, sizes)},
    {"evaluates", offsetof(Config, evaluates)}, {"timed", offsetof(Config, timed)},
    {"rests", offsetof(Config, rests)}, {"steps", offsetof(Config, steps)},
    {"adamw", offsetof(Config, adamw)}, {"scaled", offsetof(Config, scaled)},
    {"updates", offsetof(Config, updates)}, {"adds", offsetof(Config, adds)},
    {"measured", offsetof(Config, measured)}};

static struct { const char *program; int count, some, drawn; Config row[MOST_ROWS]; } rows;

static bool is_zen(const Config *c) { return c->o.offload == OFFLOAD_ZENFLOW; }
static bool is_zo(const Config *c) { return c->o.optimizer == OPTIMIZER_MEZO; }

// Bytes of an element's state.
static size_t state_of(const Config *c) {
    const bool master = c->o.master == MASTER_BF16;
    return STATE_BYTES - (c->o.moments == MOMENTS_BF16 ? 4 : 0) - (master ? 2 : 0);
}

static const Shape *shape_named(const char *name) {
    for (const Shape &s : row_shapes)
        if (strcmp(name, s.name) == 0) return &s;
    return NULL;
}

// Reads a row: "NAME" or "NAME=N" is a word or a shape, all else is for the options' parser.
__attribute__((format(printf, 1, 2)))
static Config config_of(const char *format, ...) {
    Config c;
    char words[ROW_TEXT], data[] = "--data", none[] = "none", *argv[64] = {data, data, none};
    int argc = 3;
    va_list list;
    memset(&c, 0, sizeof c);
    va_start(list, format);
    vsnprintf(c.text, sizeof c.text, format, list);
    va_end(list);
    c.places = c.ring = c.sums = 2;
    memcpy(words, c.text, sizeof words);
    for (char *w = strtok(words, " "); w != NULL; w = strtok(NULL, " ")) {
        bool known = strncmp(w, "above=", 6) == 0;
        if (shape_named(w) != NULL) c.shape = shape_named(w), known = true;
        for (const auto &word : row_words) {
            const size_t n = strlen(word.name);
            if (strncmp(w, word.name, n) != 0 || (w[n] != '\0' && w[n] != '=')) continue;
            *(int *)((char *)&c + word.at) = w[n] == '=' ? atoi(w + n + 1) : 1;
            known = true;
        }
        if (!known) argv[argc++] = w;
    }
    Options *o = &c.o;
    options_parse(o, argc, argv, true);
    o->data = NULL;
    if (c.shape == NULL) die("a row without a shape: %s", c.text);
    if (o->offload == OFFLOAD_AUTO) o->offload = OFFLOAD_NONE;
    if (o->recompute == RECOMPUTE_AUTO)
        o->recompute = o->activations == ACTIVATIONS_HOST ? AGAIN : KEEP;
    if (o->resident < 0) o->resident = o->offload == OFFLOAD_NONE;
    if (o->share < 0) o->share = 0;
    if (o->slots == 0) o->slots = 2;
    if (o->resident_blocks == AUTO_COUNT) o->resident_blocks = c.shape->L;
    if (!option_given(o, "zen-warmup")) o->zen_warmup = 1;
    if (!option_given(o, "threads")) o->threads = is_zen(&c) ? 2 : 1;
    return c;
}

static void row_add(const char *text) {
    if (rows.count == MOST_ROWS) die("more than %d rows", MOST_ROWS);
    rows.row[rows.count++] = config_of("%s", text);
}

// Adds `count` rows, each with a value of each setting: "a|b|" are two values, and none. In as many
// rows as a setting has values, each value is there once.
static void rows_draw(const char *const *settings, int count) {
    for (int k = 0; k < count; k++) {
        char text[ROW_TEXT] = "";
        for (uint32_t i = 0; settings[i] != NULL; i++) {
            const char *value = settings[i];
            uint32_t n = 1;
            for (const char *c = value; *c != '\0'; c++) n += *c == '|';
            const Philox4 random = philox4x32(1, i, (uint32_t)k / n, 0, 0);
            for (uint32_t v = (random.x[0] + (uint32_t)k) % n; v > 0; v--)
                value = strchr(value, '|') + 1;
            const size_t end = strlen(text), length = strcspn(value, "|");
            snprintf(text + end, sizeof text - end, "%s%.*s", end > 0 && length > 0 ? " " : "",
                     (int)length, value);
        }
        row_add(text);
    }
}

// Makes the program's rows.
static void rows_make(const char *program) {
    for (const auto &t : table) {
        if (strcmp(t.program, program) != 0) continue;
        rows.program = program;
        rows.some = t.some;
        rows.drawn = t.drawn;
        rows_draw(t.settings, t.drawn);
        for (const char *const *text = t.special; *text != NULL; text++) row_add(*text);
    }
}

static Shape config_shape(const Config *c) {
    Shape s = *c->shape;
    s.accum = c->o.accum;
    s.recompute = c->o.recompute;
    return s;
}

// Chooses for a new model what the row says.
static void config_place(GPT2 *g, const Config *c) {
    const Options *o = &c->o;
    OffloadChoice *p = &g->choice;
    g->no_overlap = o->no_overlap;
    g->host_threads = (int)o->threads;
    p->mode = o->offload;
    p->grad_rooms = c->places;
    p->kept_grads = KEEP_ALL;
    p->inputs_leave = o->activations == ACTIVATIONS_HOST;
    p->kept_layers = (int)min_size((size_t)c->keeps, g->config.layers - 1);
    if (is_zen(c)) return;
    p->resident = o->resident;
    p->stride = o->stride;
    p->share = o->share;
    p->subgroup = o->subgroup;
    p->slots = (int)o->slots;
    p->wire_f32 = o->grad_wire == WIRE_FP32;
    p->streamed = c->streamed;
    p->weight_rooms = c->ring;
    p->early = c->early;
    g->update_in_backward = o->clip == 0 && !o->no_overlap && !IS_FP16 && !c->waits;
}

// Row k is for the program of its precision; fp16's takes two of three of bf16's with fp32 masters.
static bool row_is_here(int k) {
    const int precision = rows.row[k].o.precision;
    const bool both = precision == PRECISION_BF16 && rows.row[k].o.master == MASTER_FP32;
    return precision == PRECISION || (IS_FP16 && both && k % 3 != 2);
}

static bool row_is_one_of_some(int k) { return k < rows.some || k >= rows.drawn; }

static bool row_is_tested(int k) {
    return row_is_here(k) && (test_whole() || row_is_one_of_some(k));
}

// Steps of a row, and how many more it makes after a resume. ZenFlow's: columns are selected again,
// and an update shows after that; of windows that follow the gradients, about so many.
static size_t row_steps(const Config *c, bool resumes) {
    const size_t window = c->o.zen_window < 1 ? 3 : (size_t)c->o.zen_window;
    if (is_zen(c) && resumes) return 3 * window;
    if (c->steps > 0) return (size_t)c->steps;
    if (is_zen(c))
        return c->o.zen_warmup + (c->o.zen_reselect == 0 ? 3 : c->o.zen_reselect + 1) * window;
    return is_zo(c) ? 5 : c->ranks > 0 ? 3 : 2;
}

static size_t ranks_of(const Config *c) { return c->ranks > 1 ? (size_t)c->ranks : 1; }

// Copies what the bits depend on.
static void copy_training(Config *r, const Config *c) {
    r->shape = c->shape;
    r->ranks = c->ranks;
    r->sizes = c->sizes;
    r->evaluates = c->evaluates;
    r->rests = c->rests;
    r->adamw = c->adamw;
    r->o.accum = c->o.accum;
    r->o.clip = c->o.clip;
    r->o.moments = c->o.moments;
    r->o.master = c->o.master;
    r->o.zen_topk = c->o.zen_topk;
    r->o.zen_window = c->o.zen_window;
    r->o.zen_reselect = c->o.zen_reselect;
    r->o.zen_warmup = c->o.zen_warmup;
    r->o.zen_overlap = c->o.zen_overlap;
    r->o.zo_queries = c->o.zo_queries;
    r->o.zo_noise = c->o.zo_noise;
}

// The same with everything on the GPU and all activations kept: MeZO's in one process, AdamW's in
// ZeRO's stage 1 if there are several ranks. Of ZenFlow, zenflow.h's. An evaluation, of which no
// bit of AdamW's may depend, follows each step.
static Config reference(const Config *c) {
    Config r = config_of("%s %s", c->shape->name, is_zo(c) ? "--optimizer mezo" : "--zero 1");
    copy_training(&r, c);
    r.o.threads = c->o.threads;
    r.evaluates = r.waits = 1;
    if (is_zo(c)) {
        r.o.accum *= ranks_of(c);
        r.ranks = 0;
    } else if (c->ranks == 1) {
        r.ranks = 0;
    }
    if (is_zen(c) && !c->adamw) {
        r = *c;
        r.plain = 1;
        r.scaled = 0;
    }
    snprintf(r.text, sizeof r.text, "reference of %.380s", c->text);
    return r;
}

// The training of c, in the place of another row.
static Config elsewhere(const Config *c, const Config *other) {
    Config r = *other;
    copy_training(&r, c);
    if (is_zen(c)) r.o.resident = -1;  // a checkpoint's
    return r;
}

// ---------------------------------------------------------------------------------------------
// Ranks: processes that are forked here, and leave what they have to say in shared memory

enum { MOST_RANKS = 4 };

// On the virtual clock, in microseconds: of a step, from norm to norm, and as it is planned; how
// long the copies of the busier direction take; how long after the last norm its update goes on.
typedef struct { double step, planned, link, late; } Times;

typedef struct {
    uint64_t numbers, evaluations, weights;  // hashes: of losses and norms, .., of all weights
    uint64_t more;                           // ZenFlow: and of a checkpoint's columns and clock
    size_t done;                             // steps
    size_t elements[3];                      // of the state, by part
    size_t counted[COUNTERS];
    int failures;
    Times times;                             // what check_times() has measured
} Report;

// Arenas of fp32 masters, m, v, and the weights that forward uses: each rank brings what it owns.
typedef struct {
    Report rank[MOST_RANKS];
    size_t P;
    float arena[4];  // (4, P)
} Shared;

static float *arena(Shared *x, int k) { return x->arena + (size_t)k * x->P; }

static size_t shared_bytes(size_t P) { return sizeof(Shared) + 4 * P * sizeof(float); }

static Shared *shared_open(const Config *c) {
    const GPT2Config config = shape_config(c->shape);
    GPT2Table t = gpt2_table(&config);
    const size_t P = t.elements;
    free(t.tensors);
    void *p = mmap(NULL, shared_bytes(P), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                   0);
    if (p == MAP_FAILED) die("mmap: %s", strerror(errno));
    Shared *x = (Shared *)p;
    x->P = P;
    return x;
}

static void shared_close(Shared *x) { munmap(x, shared_bytes(x->P)); }

static bool rows_fork;  // for each run, as several ranks must: this process never uses the GPU

// Runs rank_train() as so many ranks, and counts what each of them checked in vain.
static void run_ranks(const Config *c, Shared *x, void (*rank_train)(const Config *, Shared *)) {
    pid_t child[MOST_RANKS];
    const int n = (int)ranks_of(c), port = rows_fork ? free_port() : 0;
    if (!rows_fork) rank_train(c, x);
    for (int r = 0; rows_fork && r < n; r++) {
        child[r] = fork_rank(r, n, port, 500);
        if (child[r] < 0) die("fork: %s", strerror(errno));
        if (child[r] > 0) continue;
        const int out = dup(STDOUT_FILENO);  // what a rank finds is said, whichever it is
        test_failures_here = 0;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
#ifdef _OPENMP
        omp_set_num_threads(1);
#endif
        ranks_open();
        dup2(out, STDOUT_FILENO);
        rank_train(c, x);
        x->rank[r].failures = test_failures_here;
        fflush(stdout);
        ranks_close();
        _exit(0);
    }
    for (int r = 0; rows_fork && r < n; r++) {
        const int code = code_of(child[r]);
        CHECK(code == 0 && x->rank[r].failures == 0, "rank %d: code %d, found %d: %s", r, code,
              x->rank[r].failures, c->text);
    }
}

// Returns how many ranks can be run: NCCL wants a GPU for each. A child counts the GPUs, because a
// process that has called CUDA must not fork.
static int ranks_at_most(void) {
    static int devices = EMULATED ? MOST_RANKS : !rows_fork ? 1 : -1;
    const pid_t child = devices < 0 ? fork() : 0;
    if (devices < 0 && child == 0) {
        cudaGetDeviceCount(&devices);
        _exit(devices < 0 ? 0 : devices);
    }
    if (devices < 0) devices = code_of(child);
    return devices;
}

// ---------------------------------------------------------------------------------------------
// What a rank does. Its optimizer is one of three.

static size_t first_step, last_step;  // that rank_train() makes
static bool goes_on;                  // another will, from what it leaves

typedef struct {
    GPT2 *(*open)(const Config *c, const Shared *from);  // from what was left after steps before
    // Makes a step, and evaluates; each returns `hash` and what it gave. numbers: loss and norm.
    uint64_t (*step)(GPT2 *g, const Config *c, size_t step, uint64_t hash, double numbers[2]);
    uint64_t (*evaluate)(GPT2 *g, const Config *c, size_t step, uint64_t hash);
    void (*bring)(GPT2 *g, const Config *c, Shared *to);  // all that it leaves
    bool (*is_open)(const GPT2 *g, const Config *c);      // the next step belongs to this one
    void (*save)(GPT2 *g, const Config *c, size_t done);  // what bring() cannot, for open()
    void (*opened)(GPT2 *g, const Config *c);             // the program's own checks,
    void (*trained)(GPT2 *g, const Config *c, size_t steps, Report *report);
    void (*close)(const Config *c);
    const Run *(*planned)(GPT2 *g, const Config *c);      // what a rehearsal is of
} Optimizer;

static Run adamw_run;  // of which only what is read here is set

// From the first weights, or from what other ranks have left.
static GPT2 *adamw_open(const Config *c, const Shared *from) {
    const Shape s = config_shape(c);
    float *params = shape_params(&s, false);
    GPT2 *g = model_new(&s);
    config_place(g, c);
    Run *r = &adamw_run;
    memset(r, 0, sizeof *r);
    r->training = true;
    r->state.config = g->config;
    r->table = g->table;
    r->B = s.B;
    r->T = s.T;
    r->world = ranks_of(c);
    r->rank = (size_t)ranks.rank;
    r->step_tokens = s.B * s.T * s.accum * r->world;
    r->o = c->o;
    r->o.given[option_find("zero", 4)] = true;
    r->o.precision = PRECISION;
    if (c->ranks > 0) {
        g->zero = zero_open(r);
        free(g->shards.shards);
        g->shards = zero_shards(&g->table, r->world, r->rank, g->zero->rows);
    }
    model_begin(g, &s, params, c->tight);
    const RunState state = gpt2_state(g);
    for (int i = 0; i < 3 * state.count && first_step > 1; i++) {
        const StateRange *x = &state.ranges[i / 3];
        gpt2_move(g, i % 3, x->at, x->length, arena((Shared *)from, i % 3) + x->at, false);
    }
    if (first_step > 1) weights_renew(g);
    free(params);
    return g;
}

// The learning rate changes, and is so high that an update changes bf16 weights.
static Recipe row_recipe(const Config *c, size_t step) {
    return {5e-3 * (double)(2 + step % 3), 1e-8, c->o.clip, 0.1, c->sizes != 0};
}

// As train() does it. In step 2 one rank gets a signal, and another's checkpoint is due: all must
// know.
static uint64_t adamw_step(GPT2 *g, const Config *c, size_t step, uint64_t hash, double *numbers) {
    const Shape s = config_shape(c);
    const Recipe recipe = row_recipe(c, step);
    if (step == 2 && ranks.rank == ranks.world - 1 && g->zero != NULL) stop_requested = 15;
    run_save_due = step == 2 && ranks.rank == 0 ? 0 : INFINITY;
    train_one(g, &s, &recipe, step, numbers);
    if (g->zero != NULL && first_step == 1)
        CHECK(run_news[NEWS_SIGNAL] == (step >= 2 ? 15 : 0)
              && stop_requested == (int)run_news[NEWS_SIGNAL]
              && run_news[NEWS_DUE] == (step == 2), "rank %d, step %zu: signal %d, due %g: %s",
              ranks.rank, step, stop_requested, run_news[NEWS_DUE], c->text);
    return hash_with(hash, numbers, 2 * sizeof *numbers);
}

// Evaluates after this step, with batches of another size.
static uint64_t row_evaluate(GPT2 *g, const Config *c, size_t step, uint64_t hash) {
    Shape part = *c->shape;
    part.B = (part.B + 1) / 2;
    const size_t n = part.B * part.T;
    int32_t *tokens = (int32_t *)alloc_or_fail(2 * n, sizeof(int32_t), "test");
    part.accum = 1;
    shape_batch(&part, step + 1000, tokens, tokens + n);
    g->timeline.between = true;
    gpt2_forward(g, tokens, NULL, tokens + n, part.B, part.T);
    gpt2_head(g, 0, 1, false, NULL);
    g->timeline.between = false;
    const double loss = gpt2_loss(g);
    CHECK(loss > 0 && loss < 20, "evaluation gives %g: %s", loss, c->text);
    free(tokens);
    return hash_with(hash, &loss, sizeof loss);
}

// Brings everything that training leaves to where the other ranks' is. The hash of all weights, as
// forward uses them, is the report's, where a rank has them all.
static void adamw_bring(GPT2 *g, const Config *c, Shared *to) {
    Report *report = &to->rank[ranks.rank];
    const RunState state = gpt2_state(g);
    gpt2_update_wait(g);
    CUDA(cudaDeviceSynchronize());
    for (int k = 0; k < 3; k++) {
        report->elements[k] = 0;
        for (int i = 0; i < state.count; i++) {
            const StateRange *s = &state.ranges[i];
            report->elements[k] += s->length;
            gpt2_move(g, k, s->at, s->length, arena(to, k) + s->at, true);
        }
    }
    for (int i = 0; i < g->pieces.count; i++) {  // as they are stored
        const Piece *p = &g->pieces.pieces[i];
        floats_move((floatX *)p->params, arena(to, 3) + arena_at(g, p), p->length, true);
    }
    if (g->zero != NULL && c->o.zero == 3) return;
    floatX *whole = ALLOC(floatX, to->P, "test");
    for (int i = 0; i < g->segments; i++) {
        const Segment *s = &g->segment[i];
        const void *params = s->on_host ? s->first->params : g->params + s->param_at;
        gpu_copy(whole + s->at, params, s->length * sizeof(floatX));
    }
    report->weights = hash_bytes(whole, to->P * sizeof(floatX));
    free(whole);
}

static const Run *adamw_planned(GPT2 *, const Config *) { return &adamw_run; }

static Optimizer adamw = {adamw_open, adamw_step, row_evaluate, adamw_bring, NULL, NULL, NULL,
                          NULL, NULL, adamw_planned};
static const Optimizer *zenflow, *mezo;  // of a program that has such rows

static const Optimizer *optimizer_of(const Config *c) {
    return is_zen(c) ? zenflow : is_zo(c) ? mezo : &adamw;
}

// Counts the streams of the highest priority: those of short kernels that others wait for.
static int urgent_streams(const GPT2 *g) {
    int lowest, highest, priority, count = 0;
    CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    for (int i = 0; i < g->owner.count; i++) {
        if (g->owner.list[i].free != stream_free) continue;
        CUDA(cudaStreamGetPriority((cudaStream_t)g->owner.list[i].p, &priority));
        count += priority == highest && highest < lowest;
    }
    return count;
}

// Trains as train() does, and brings what it leaves.
static void rank_train(const Config *c, Shared *to) {
    const Optimizer *x = optimizer_of(c);
    Report *report = &to->rank[ranks.rank];
    moments_bf16 = c->o.moments == MOMENTS_BF16;
    master_bf16 = c->o.master == MASTER_BF16;
    const size_t before = free_memory();
    GPT2 *g = x->open(c, to);
    const size_t allocated = before - free_memory();
    check_memory(g, c->text, allocated);
    CHECK(urgent_streams(g) == 2 + (g->zero != NULL) + (g->zen != NULL), "%d urgent streams: %s",
          urgent_streams(g), c->text);
    if (x->opened != NULL) x->opened(g, c);
    if (c->timed) timeline_open(&g->timeline, NULL);
    size_t step = first_step;
    double numbers[2];
    if (step == 1) report->numbers = report->evaluations = 0;
    for (; step <= last_step || (x->is_open != NULL && x->is_open(g, c)); step++) {
        timeline_step(&g->timeline, step);
        const size_t selections = g->zen != NULL ? g->zen->clock.selections : 0;
        counted = {};
        report->numbers = x->step(g, c, step, report->numbers, numbers);
        // the host waits for losses and norm, and until a batch's memory is free; for nothing else
        if (!c->plain && !(c->o.zo_no_slots && g->streamed > 0)
            && (g->zen == NULL || g->zen->clock.selections == selections))
            CHECK(counted.waits == 0 && counted.events <= 2 + (int)c->o.accum
                  && (c->timed || counted.allocations == 0), "step %zu waits %d and %d times, "
                  "allocates %d times: %s", step, counted.waits, counted.events,
                  counted.allocations, c->text);
        if (c->evaluates) report->evaluations = x->evaluate(g, c, step, report->evaluations);
        if (!c->rests) continue;
        x->bring(g, c, to);
        report->numbers = hash_with(report->numbers, to->arena, 4 * to->P * sizeof(float));
    }
    report->done = step - 1;
    if (first_step == 1 && x->trained != NULL) x->trained(g, c, report->done, report);
    x->bring(g, c, to);
    if (goes_on && x->save != NULL) x->save(g, c, report->done);
    timeline_close(&g->timeline);
    const size_t taken = before - free_memory();
    model_close(g);
    if (x->close != NULL) x->close(c);
    if (EMULATED)
        CHECK((taken == allocated || c->o.zo_no_slots) && before == free_memory(), "%zu bytes of GPU "
              "memory, then %zu; %zu are not freed: %s", allocated, taken, before - free_memory(),
              c->text);
    moments_bf16 = master_bf16 = false;
}

// ---------------------------------------------------------------------------------------------
// The loop

typedef struct { uint64_t training, evaluations; } Hashes;

// Trains from step `first` to `last`, and returns hashes of all that ranks have left in *x so far.
static Hashes train_ranks(const Config *c, size_t first, size_t last, Shared *x) {
    const bool adam = optimizer_of(c) == &adamw;
    first_step = first;
    last_step = last;
    if (first == 1)  // NaNs: nobody brings them
        memset(x->arena, adam ? 0xff : 0, 4 * x->P * sizeof(float));
    run_ranks(c, x, rank_train);
    Hashes h = {x->rank[0].numbers, x->rank[0].evaluations};
    for (int k = 0; k < 4; k++) {
        size_t elements = 0, nobodys = 0;
        for (size_t r = 0; r < ranks_of(c) && k < 3; r++) elements += x->rank[r].elements[k];
        for (size_t i = 0; i < x->P; i++) nobodys += isnan(arena(x, k)[i]);
        CHECK(!adam || ((elements == x->P || k == 3) && nobodys == 0), "part %d: %zu elements of "
              "%zu, %zu are nobody's: %s", k, elements, x->P, nobodys, c->text);
        h.training = hash_with(h.training, arena(x, k), x->P * sizeof(float));
    }
    h.training = hash_with(h.training, &x->rank[0].more, sizeof x->rank[0].more);
    for (size_t r = 0; r < ranks_of(c); r++) {
        const Report *report = &x->rank[r];
        CHECK(report->numbers == x->rank[0].numbers, "losses, norms: rank %zu: %s", r, c->text);
        CHECK(report->evaluations == h.evaluations, "evaluations: rank %zu: %s", r, c->text);
        CHECK(report->weights == x->rank[0].weights, "weights: rank %zu: %s", r, c->text);
    }
    return h;
}

static void check_row(const Config *c, size_t first, size_t last, const Config *now, Shared *x) {
    const Config plain = reference(c);
    Shared *y = shared_open(c);
    const Hashes wanted = train_ranks(&plain, 1, last, y), h = train_ranks(now, first, last, x);
    CHECK(h.training == wanted.training && x->rank[0].done == y->rank[0].done, "steps %zu to %zu: "
          "%s%s%s", first, last, now->text, first > 1 ? ", resumed of " : "",
          first > 1 ? c->text : "");
    CHECK(!c->evaluates || h.evaluations == wanted.evaluations, "evaluations: %s", now->text);
    const char *above = strstr(now->text, "above=");
    for (int i = 0; i < COUNTERS && above != NULL && first == 1; i++)
        CHECK(strstr(above, counter_names[i]) == NULL || x->rank[0].counted[i] > 0,
              "nothing is %s: %s", counter_names[i], now->text);
    shared_close(y);
}

// Every row is held against its reference; every sixth, or second, then goes on as another row.
static void test_same_bits(void) {
    size_t tested = 0;
    for (int k = 0; k < rows.count; k++) {
        const Config *c = &rows.row[k];
        if (!row_is_tested(k) || c->ranks > ranks_at_most()) continue;
        Shared *x = shared_open(c);
        goes_on = k % (test_whole() ? 2 : 6) == 0;
        check_row(c, 1, row_steps(c, false), c, x);
        const size_t done = x->rank[0].done;
        const Config other = elsewhere(c, &rows.row[(k + 11) % rows.count]);
        if (goes_on) {
            goes_on = false;
            check_row(c, done + 1, done + row_steps(c, true), &other, x);
        }
        shared_close(x);
        tested++;
    }
    if (tested == 0) SKIP("no GPU");
}

// Begins anew without protection of the GPU's memory, which takes time: that the host keeps off is
// seen by test_schedules.sh. Programs with several ranks leave the cores to them.
static void without_protection(char **argv) {
#ifdef __CUDA_EMU__
    if (getenv("EMU_PROTECT") != NULL) return;
    setenv("EMU_PROTECT", "0", 1);
    if (rows_fork) setenv("EMU_THREADS", "1", 0);
    execv("/proc/self/exe", argv);
    die("/proc/self/exe: %s", strerror(errno));
#endif
    (void)argv;
}

// For test_schedules.sh: "--config all|some|TEXT [STEPS]" prints the hash of each row that is for
// this program, and that begins with the text.
static int rows_print(int argc, char **argv) {
    const bool all = strcmp(argv[2], "all") == 0, some = strcmp(argv[2], "some") == 0;
    int printed = 0;
    for (int k = 0; k < rows.count; k++) {
        const Config *c = &rows.row[k];
        const bool begins = strncmp(c->text, argv[2], strlen(argv[2])) == 0;
        if (!row_is_here(k) || !(all || (some ? row_is_one_of_some(k) : begins))) continue;
        Shared *x = shared_open(c);
        const Hashes h = train_ranks(c, 1, argc > 3 ? (size_t)atoi(argv[3]) : 4, x);
        printf("%016llx config %d: %s\n", (unsigned long long)hash_bytes(&h, sizeof h), k, c->text);
        fflush(stdout);
        shared_close(x);
        printed++;
    }
    if (printed == 0) die("no row of this precision begins with \"%s\"", argv[2]);
    return test_failures_here > 0;
}

// ---------------------------------------------------------------------------------------------
// Overlap: how long steps take on the emulated GPU's virtual clock

// A step of the row `text` takes between `least` and `most` of a step of the row `of` (NULL: of one
// with everything on the GPU, "link": of its copies in the busier direction).
typedef struct { const char *text, *of; double least, most; } Timed;

// planned: how far a step may be from what is planned.
typedef struct {
    const char *settings;
    double planned;
    Timed rows[24];
    void (*more)(void);  // another check on this clock
} Clock;

#ifdef __CUDA_EMU__
static double memory_step;    // of the row that runs, in memory; 0: this is one
static double end_of_step[128];

// Runs some steps, or windows, until copies keep their rhythm; then measures more of them.
static void rank_measure(const Config *c, Shared *to) {
    const Optimizer *x = optimizer_of(c);
    const size_t window = is_zen(c) && c->o.zen_window > 1 ? (size_t)c->o.zen_window : 1;
    const size_t first = is_zen(c) ? 2 + 2 * window : is_zo(c) ? 6 : 2;
    const size_t usual = is_zen(c) ? 2 * window : is_zo(c) ? 4 : 2;
    const size_t several = c->steps > 0 ? (size_t)c->steps : usual;
    const double link = atof(getenv("EMU_LINK"));  // bytes per second
    size_t in = 0, out = 0;
    double numbers[2], *const at = end_of_step;
    Times t;
    memset(&t, 0, sizeof t);
    first_step = 1;
    last_step = first + several;
    GPT2 *g = x->open(c, to);
    const double P = (double)(g->zen != NULL ? g->zen->map.rest : g->table.elements);
    if (is_zen(c)) update_seconds = 1e-8 * c->updates * memory_step / P;
    else if (c->updates > 0) host_bytes_per_s = 1e8 * ADAM_BYTES * P / (c->updates * memory_step);
    add_seconds = 1e-8 * c->adds * memory_step / P;
    for (size_t step = 1; step <= last_step; step++) {
        x->step(g, c, step, 0, numbers);
        at[step] = 1e6 * emu_virtual_now();
        if (c->o.no_overlap && !is_zo(c)) gpt2_update_wait(g);  // as train() does
        if (step == first) in = g->moved_in, out = g->moved_out;
    }
    t.step = (at[last_step] - at[first]) / (double)several;
    t.link = 1e6 * (double)max_size(g->moved_in - in, g->moved_out - out) / link / (double)several;
    gpt2_update_wait(g);
    CUDA(cudaDeviceSynchronize());
    t.late = 1e6 * emu_virtual_now() - at[last_step];
    model_close(g);
    if (x->close != NULL) x->close(c);
    if (memory_step > 0 && x->planned != NULL && c->ranks == 0) {
        Rates r;
        memset(&r, 0, sizeof r);
        g = x->open(c, to);
        const Run *run = x->planned(g, c);
        if (c->measured) model_flops(g->steps, run, &r);
        r.h2d = r.d2h = link;
        r.host_adam = host_bytes_per_s / ADAM_BYTES;
        if (!c->measured) {
            r.gpu_flops = 1;
            r.gpu_flops = gpt2_rehearse(g, run, &r, NULL).compute / (1e-6 * memory_step);
        }
        t.planned = 1e6 * gpt2_rehearse(g, run, &r, NULL).step;
        model_close(g);
    }
    to->rank[ranks.rank].times = t;
    add_seconds = update_seconds = host_bytes_per_s = 0;
}

// memory: what a step takes with everything on the GPU; 0: this is one.
static Times measure(const Config *c, double memory) {
    static struct { char text[ROW_TEXT]; Times times; } known[64];
    static int count;
    for (int i = 0; i < count; i++)
        if (strcmp(known[i].text, c->text) == 0) return known[i].times;
    memory_step = memory;
    Shared *x = shared_open(c);
    run_ranks(c, x, rank_measure);
    const Times t = x->rank[0].times;
    shared_close(x);
    memcpy(known[count].text, c->text, sizeof c->text);
    known[count++].times = t;
    return t;
}

static double in_memory(const Config *c) {
    Config r = config_of("%s%s", c->shape->name, is_zo(c) ? " --optimizer mezo" : "");
    r.o.accum = c->o.accum;
    r.o.recompute = c->o.recompute;
    r.o.zo_queries = c->o.zo_queries;
    r.o.zo_noise = c->o.zo_noise;
    snprintf(r.text, sizeof r.text, "%s in memory, accum %zu, recompute %d, queries %zu",
             c->shape->name, r.o.accum, (int)r.o.recompute, (size_t)r.o.zo_queries);
    return measure(&r, 0).step;
}

static void check_times(const Clock *clock) {
    for (const Timed *row = clock->rows; row->text != NULL; row++) {
        const Config c = config_of("%s", row->text);
        const double memory = in_memory(&c);
        const Times t = measure(&c, memory);
        double unit = memory;
        if (row->of != NULL && strcmp(row->of, "link") == 0) {
            unit = t.link;
        } else if (row->of != NULL) {
            const Config other = config_of("%s", row->of);
            unit = measure(&other, in_memory(&other)).step;
        }
        const double part = t.step / unit, off = t.planned > 0 ? t.planned / t.step - 1 : 0;
        printf("  %s: %.1f us, %.4f of %s; planned %.1f\n", row->text, t.step, part,
               row->of != NULL ? row->of : "in memory", t.planned);
        CHECK(part >= row->least && part <= row->most, "%s: %.1f us, %.4f of %.1f", row->text,
              t.step, part, unit);
        CHECK(test_within(fabs(off), clock->planned), "%s: %.1f us, planned %.1f", row->text,
              t.step, t.planned);
    }
}
#endif

static const Clock *clocks;  // of the program
static int clock_count, clock_here;

// Runs this program again on each clock, whose settings the emulated GPU reads when it starts.
static void test_overlap(void) {
#ifdef __CUDA_EMU__
    for (int i = 0; i < clock_count; i++) {
        char settings[200], number[12];
        snprintf(settings, sizeof settings, "EMU_CLOCK=virtual EMU_SCHED= %s", clocks[i].settings);
        snprintf(number, sizeof number, "%d", i);
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            for (char *s = strtok(settings, " "); s != NULL; s = strtok(NULL, " ")) putenv(s);
            execl("/proc/self/exe", rows.program, "--clock", number, (char *)NULL);
            _exit(127);
        }
        CHECK(code_of(child) == 0, "clock %d", i);
    }
#else
    SKIP("only on the virtual clock of the emulated GPU");
#endif
}

static void test_times(void) {
#ifdef __CUDA_EMU__
    check_times(&clocks[clock_here]);
    if (clocks[clock_here].more != NULL) clocks[clock_here].more();
#endif
}

// Runs a program: its tests; or what test_schedules.sh asks for, or test_overlap(): "--clock K".
static int rows_main(int argc, char **argv, const char *program, const Clock *on, int count,
                     void (*tests)(void)) {
    clocks = on;
    clock_count = count;
    rows_make(program);
    if (argc >= 3 && strcmp(argv[1], "--config") == 0) return rows_print(argc, argv);
    if (argc == 3 && strcmp(argv[1], "--clock") == 0) {
        clock_here = atoi(argv[2]);
        RUN(test_times);
        return test_summary();
    }
    without_protection(argv);
    tests();
    return test_summary();
}

// ---------------------------------------------------------------------------------------------

// Returns the bytes of inputs that leave in `steps` steps, and come back: those of all layers but
// the last one.
static size_t inputs_moved(const Config *c, size_t steps) {
    const Shape *s = c->shape;
    size_t tokens = 0;
    for (size_t step = 1; step <= steps; step++) {
        const bool small = c->sizes && step % 2 == 0;
        tokens += c->o.accum * (small && s->B > 1 ? s->B - 1 : s->B)
                * (small ? s->T > 4 ? s->T - 4 : 1 : s->T);
    }
    return c->o.activations == ACTIVATIONS_HOST ? (s->L - 1) * tokens * s->C * sizeof(floatX) : 0;
}

// The layers whose weights came in `steps` steps, of n that stream: into place q % ring go those of
// the q-th one, unless they are there since the last update.
static size_t layers_fetched(int n, int ring, size_t accum, int evaluates, size_t steps) {
    size_t came = 0;
    int there[16] = {0};
    for (size_t step = 0; step < steps; step++) {
        for (size_t pass = 0; pass < 2 * accum + (evaluates != 0); pass++) {
            if (pass == 2 * accum) memset(there, 0, sizeof there);  // behind the update
            for (int i = 0; i < n; i++) {
                const int q = pass % 2 == 0 ? i : n - 1 - i;
                const int place = q % ring;
                came += there[place] != q + 1;
                there[place] = q + 1;
            }
        }
        if (!evaluates) memset(there, 0, sizeof there);
    }
    return came;
}
#endif
