// columns.c: how unequal are the columns of a gradient? For reference dumps; --help says the rest.
// ZenFlow (Lan et al. 2025) updates the columns with the largest gradients at once and the others
// later: it counts on a few of them having most of it.
#include "tool.h"
#include "../tide/files/hf.h"
#include "../zenflow.h"

static const char help[] =
    "usage: columns DUMP.safetensors ...\n"
    "\n"
    "Reads the gradients that train_gpt2 --dump wrote, and prints for every matrix, in percent:\n"
    "  of all    its share of the squared norm of the whole gradient\n"
    "  columns   the share of its own squared norm in its largest 1 % and 10 % of columns. One is\n"
    "            an input channel of a linear layer, W[:, j] of W (OC, C); in wte, wpe and\n"
    "            lm_head it is a channel, over all tokens or positions\n"
    "  rows      the same for rows: output channels, tokens, positions\n"
    "1 % and 10 % are rounded to whole columns, and are at least one; of several matrices each\n"
    "gives its own. \"evenly spread\" is what there would be if all columns (rows) of a matrix\n"
    "were equal. Of several dumps the squared norms are added up, and there are two columns more\n"
    "about the largest 10 % of the columns in the first dump:\n"
    "  held      their share of the last dump's squared norm\n"
    "  kept      how many of them are among the largest 10 % there; evenly spread: by lot\n"
    "\n"
    "exit code: 0; 1 if something cannot be written; 2 for a file that cannot be read or used\n";

enum { ONE, TEN, PERCENTS };
static const size_t percents[PERCENTS] = {1, 10};

typedef struct {
    const GPT2Tensor *tensor;     // NULL: it is no matrix
    size_t counts[2];             // of columns [0] and rows [1], here and below
    double *now[2], *squares[2];  // squared norm of each: in this dump, in all of them together
    double sum;                   // squared norm of the matrix
    double top[2][PERCENTS];      // of it, what is in the largest 1 % and 10 %
    bool *first;                  // columns that were among the largest 10 % in the first dump
    size_t kept;                  // how many of them still are in the last one
    double held, last;            // their squared norm in that one, and everything's
} Matrix;

typedef struct {
    GPT2Config config;
    GPT2Table table;
    Matrix *matrices;  // by index into the table
    double vectors;    // squared norm of everything else
    double sum;        // squared norm of everything
    int dumps;
} Columns;

// As many as are chosen with --zen-topk 0.01 or 0.1.
static size_t top_count(size_t n, int percent) {
    return zen_quota((double)percents[percent] / 100, n);
}

// ---------------------------------------------------------------------------------------------
// Reading

static SafeTensor *find(const SafeTensors *st, const char *path, const char *name) {
    char full[128];
    snprintf(full, sizeof full, "grad.%s", name);
    SafeTensor *x = safetensors_find(st, full);
    if (x == NULL) die("%s: there is no %s in it", path, full);
    return x;
}

static bool has(const SafeTensors *st, const char *name) {
    char full[128];
    snprintf(full, sizeof full, "grad.%s", name);
    return safetensors_find(st, full) != NULL;
}

static const SafeTensor *find_matrix(const SafeTensors *st, const char *path, const char *name) {
    const SafeTensor *x = find(st, path, name);
    if (x->rank != 2) die("%s: %s is no matrix", path, x->name);
    return x;
}

// Returns the configuration of a dump's model. A dump does not have the number of heads, on which no
// matrix depends but by its rows: GPT-2 and OPT get one head, the others one head of keys.
static GPT2Config config_of(const SafeTensors *st, const char *path) {
    static const char *const names[3][3] = {  // the embeddings' tensors, and the MLP's first matrix
        {"transformer.wte.weight", "transformer.wpe.weight", "transformer.h.%zu.mlp.c_fc.weight"},
        {"model.decoder.embed_tokens.weight", "model.decoder.embed_positions.weight",
         "model.decoder.layers.%zu.fc1.weight"},
        {"model.embed_tokens.weight", NULL, "model.layers.%zu.mlp.up_proj.weight"}};
    GPT2Config c;
    Error err;
    char name[100];
    int of = 0;
    while (of < 3 && !has(st, names[of][0])) of++;
    if (of == 3) die("%s: it has no gradients; train_gpt2 --dump FILE writes them", path);
    const bool opt = of == 1, llama = of == 2;
    memset(&c, 0, sizeof c);
    c.family = opt ? FAMILY_OPT : !llama ? FAMILY_GPT2
             : has(st, "model.layers.0.self_attn.q_norm.weight") ? FAMILY_QWEN3 : FAMILY_LLAMA;
    config_family(&c);
    c.rope.theta = llama ? 1e4 : 0;  // whichever: then there is no table of positions
    const SafeTensor *wte = find_matrix(st, path, names[of][0]);
    snprintf(name, sizeof name, names[of][2], (size_t)0);
    const SafeTensor *fc = find_matrix(st, path, name);
    c.tied = !has(st, "lm_head.weight");
    c.heads = c.context = 1;
    c.vocab = wte->shape[0];
    c.channels = fc->shape[of == 0 ? 0 : 1];
    c.ffn = fc->shape[of == 0 ? 1 : 0];
    if (wte->shape[1] < c.channels) c.embed = wte->shape[1];
    if (!llama) c.context = find_matrix(st, path, names[of][1])->shape[0] - (opt ? 2 : 0);
    else {
        const size_t q = find_matrix(st, path, "model.layers.0.self_attn.q_proj.weight")->shape[0];
        const size_t k = find_matrix(st, path, "model.layers.0.self_attn.k_proj.weight")->shape[0];
        c.head_size = c.qk_norm ? find(st, path, "model.layers.0.self_attn.q_norm.weight")->shape[0]
                                : k;
        if (c.head_size == 0 || k % c.head_size != 0 || q % k != 0)
            die("%s: the widths of q and k (%zu, %zu) are of no model", path, q, k);
        c.heads = q / c.head_size;
        c.kv_heads = k / c.head_size;
        c.unbiased = (has(st, "model.layers.0.self_attn.q_proj.bias") ? 0 : BIAS_QKV)
                   | (has(st, "model.layers.0.self_attn.o_proj.bias") ? 0 : BIAS_ATTPROJ)
                   | (has(st, "model.layers.0.mlp.up_proj.bias") ? 0 : BIAS_MLP);
    }
    do snprintf(name, sizeof name, names[of][2], ++c.layers);
    while (has(st, name));
    if (!gpt2_finish(&c, &err)) die("%s: %s", path, err.text);
    return c;
}

static void allocate(Columns *s, const GPT2Config *c) {
    s->config = *c;
    s->table = gpt2_table(c);
    s->matrices = (Matrix *)alloc_or_fail((size_t)s->table.count, sizeof(Matrix), "matrices");
    for (int i = 0; i < s->table.count; i++) {
        const GPT2Tensor *t = &s->table.tensors[i];
        Matrix *m = &s->matrices[i];
        if (t->rank != 2) continue;
        m->tensor = t;
        m->counts[0] = t->cols;
        m->counts[1] = t->rows;
        m->first = (bool *)alloc_or_fail(t->cols, sizeof(bool), "columns");
        for (int side = 0; side < 2; side++) {
            m->now[side] = (double *)alloc_or_fail(m->counts[side], sizeof(double), "norms");
            m->squares[side] = (double *)alloc_or_fail(m->counts[side], sizeof(double), "norms");
        }
    }
}

// The squared norm of x, which hf describes; of a matrix also of its columns and rows.
static double add_squares(const SafeTensor *x, const HfTensor *hf, Matrix *m) {
    const size_t C = hf->rank == 2 ? hf->shape[1] : hf->n, skip = hf->skip / C;
    const size_t first = hf->first / C;  // our row that the file's first one is, for OPT
    float *row = (float *)alloc_or_fail(C, sizeof(float), "a row");
    double sum = 0;
    for (size_t r = skip; r < skip + hf->n / C; r++) {
        safetensor_floats(x, r * C, C, row);
        for (size_t c = 0; c < C; c++) {
            const double square = (double)row[c] * (double)row[c];
            sum += square;
            if (m->tensor == NULL) continue;
            m->now[0][hf->transpose ? r : c] += square;
            m->now[1][hf->transpose ? c : first + r - skip] += square;
        }
    }
    free(row);
    return sum;
}

static int compare_squares(const void *a, const void *b, void *squares) {
    const size_t i = *(const size_t *)a, j = *(const size_t *)b;
    const double x = ((const double *)squares)[i], y = ((const double *)squares)[j];
    if (x != y) return x > y ? -1 : 1;
    return (i > j) - (i < j);
}

// The indices of n squares, the largest first; of equal ones the one in front. free() them.
static size_t *ranking(double *squares, size_t n) {
    size_t *order = (size_t *)alloc_or_fail(n, sizeof *order, "a ranking");
    for (size_t i = 0; i < n; i++) order[i] = i;
    qsort_r(order, n, sizeof *order, compare_squares, squares);
    return order;
}

// Adds a dump to what was read before. `last`: no other one follows.
static void read_dump(Columns *s, const char *path, bool last) {
    SafeTensors st;
    HfTensor hf = {.tensor = -1};
    Error err;
    char here[200], there[200];
    if (!safetensors_open(&st, path, &err)) die("%s", err.text);
    const GPT2Config c = config_of(&st, path);
    if (s->dumps == 0) allocate(s, &c);
    else if (memcmp(&c, &s->config, sizeof c) != 0)
        die("%s: not of the same model as the first dump", path);
    while (hf_next(&c, &s->table, &hf)) {
        SafeTensor *x = find(&st, path, hf.name);
        x->seen = true;
        shape_text(here, hf.rank, hf.shape);
        shape_text(there, x->rank, x->shape);
        if (strcmp(here, there) != 0) die("%s: %s is %s, not %s", path, x->name, there, here);
        if (x->dtype > ST_F64) die("%s: %s has no floats", path, x->name);
        const double sum = add_squares(x, &hf, &s->matrices[hf.tensor]);
        if (!isfinite(sum)) die("%s: %s is not finite", path, x->name);
        s->sum += sum;
        if (hf.rank != 2) s->vectors += sum;
    }
    for (int i = 0; i < st.count; i++)
        if (strncmp(st.tensors[i].name, "grad.", 5) == 0 && !st.tensors[i].seen)
            die("%s: the model has no parameter for %.100s", path, st.tensors[i].name);
    for (Matrix *m = s->matrices; m < s->matrices + s->table.count; m++) {
        if (m->tensor == NULL) continue;
        size_t *order = ranking(m->now[0], m->counts[0]);
        for (size_t k = 0; k < top_count(m->counts[0], TEN) && m->now[0][order[k]] > 0; k++) {
            if (s->dumps == 0) m->first[order[k]] = true;
            if (last) m->kept += m->first[order[k]];
        }
        for (size_t j = 0; j < m->counts[0] && last; j++) {
            m->last += m->now[0][j];
            if (m->first[j]) m->held += m->now[0][j];
        }
        free(order);
        for (int side = 0; side < 2; side++)
            for (size_t j = 0; j < m->counts[side]; j++) {
                m->squares[side][j] += m->now[side][j];
                m->now[side][j] = 0;
            }
    }
    safetensors_close(&st);
    s->dumps++;
}

static void add_up(Matrix *m, int side) {
    size_t *order = ranking(m->squares[side], m->counts[side]);
    m->sum = 0;
    for (size_t k = 0; k < m->counts[side]; k++) {
        m->sum += m->squares[side][order[k]];
        for (int p = 0; p < PERCENTS; p++)
            if (k < top_count(m->counts[side], p)) m->top[side][p] = m->sum;
    }
    free(order);
}

// ---------------------------------------------------------------------------------------------
// Printing

static void print_share(double part, double whole) {
    if (whole > 0) printf("  %8.1f", 100 * part / whole);
    else printf("  %8s", "-");
}

static void print_matrix(const Columns *s, const Matrix *m, int width) {
    char shape[200];
    const size_t sizes[2] = {m->counts[1], m->counts[0]};
    printf("%-*s  %-14s", width, m->tensor->name, shape_text(shape, 2, sizes));
    print_share(m->sum, s->sum);
    for (int i = 0; i < 4; i++) print_share(m->top[i / 2][i % 2], m->sum);
    if (s->dumps > 1) {
        print_share(m->held, m->last);
        printf("  %5zu of %zu", m->kept, top_count(m->counts[0], TEN));
    }
    printf("\n");
}

// The same for the matrices of one kind in all layers, or for all there are (kind -1).
static void print_total(const Columns *s, int kind, const char *name, int width) {
    double sum = 0, top[4] = {0}, even[4] = {0}, last = 0, held = 0, even_held = 0, lot = 0;
    size_t kept = 0, of = 0;
    for (const Matrix *m = s->matrices; m < s->matrices + s->table.count; m++) {
        if (m->tensor == NULL || (kind >= 0 && m->tensor->kind != kind)) continue;
        sum += m->sum;
        for (int i = 0; i < 4; i++) {
            const size_t n = m->counts[i / 2];
            top[i] += m->top[i / 2][i % 2];
            even[i] += m->sum * (double)top_count(n, i % 2) / (double)n;
        }
        const size_t count = top_count(m->counts[0], TEN);
        const double share = (double)count / (double)m->counts[0];
        last += m->last;
        held += m->held;
        even_held += m->last * share;
        kept += m->kept;
        of += count;
        lot += (double)count * share;
    }
    printf("%-*s  %-14s", width, name, "");
    print_share(sum, s->sum);
    for (int i = 0; i < 4; i++) print_share(top[i], sum);
    if (s->dumps > 1) print_share(held, last);
    if (s->dumps > 1) printf("  %5zu of %zu", kept, of);
    printf("\n");
    if (kind >= 0) return;
    printf("%-*s  %-14s  %8s", width, "  evenly spread", "", "");
    for (int i = 0; i < 4; i++) print_share(even[i], sum);
    if (s->dumps > 1) print_share(even_held, last);
    if (s->dumps > 1) printf("  %5.1f of %zu", lot, of);
    printf("\n%-*s  %-14s", width, "biases and norms", "");
    print_share(s->vectors, s->sum);
    printf("\n");
}

static void print_all(const Columns *s) {
    static const int kinds[] = {QKV_W, ATTPROJ_W, FC_W, FCPROJ_W};
    const int width = 17;
    printf("%-*s  %-14s  %8s  %18s  %18s\n", width, "", "", "", "columns: top", "rows: top");
    printf("%-*s  %-14s  %8s  %8s  %8s  %8s  %8s%s\n", width, "matrix", "(OC, C)", "of all", "1 %",
           "10 %", "1 %", "10 %", s->dumps > 1 ? "      held   kept" : "");
    for (const Matrix *m = s->matrices; m < s->matrices + s->table.count; m++)
        if (m->tensor != NULL) print_matrix(s, m, width);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds && s->config.layers > 1; k++) {
        char name[64];
        const GPT2Tensor *t = &s->table.tensors[layer_tensor(&s->table, 0, kinds[k])];
        snprintf(name, sizeof name, "all %s", strchr(strchr(t->name, '.') + 1, '.') + 1);
        print_total(s, kinds[k], name, width);
    }
    print_total(s, -1, "all matrices", width);
}

// ---------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    static Columns s;
    int count = 0;  // of the files, whose names move to the front of argv
    program_begin();
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (strcmp(arg, "--help") == 0) return tool_help(help);
        if (strncmp(arg, "--", 2) == 0) die("no such option: %s (see --help)", arg);
        argv[count++] = argv[i];
    }
    if (count == 0) die("usage: columns DUMP.safetensors ...");
    for (int i = 0; i < count; i++) read_dump(&s, argv[i], i + 1 == count);
    if (!(s.sum > 0)) die("%s: all gradients are zero", argv[0]);
    for (Matrix *m = s.matrices; m < s.matrices + s.table.count; m++)
        for (int side = 0; side < 2 && m->tensor != NULL; side++) add_up(m, side);
    print_all(&s);
    tool_close(stdout, NULL);

    for (Matrix *m = s.matrices; m < s.matrices + s.table.count; m++) {
        free(m->first);
        for (int side = 0; side < 2; side++) { free(m->now[side]); free(m->squares[side]); }
    }
    free(s.matrices);
    free(s.table.tensors);
    return 0;
}
