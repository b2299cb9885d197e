// timeline.c: a picture of a trace that --trace wrote: which stream did what when, and what lay in
// memory; --help says the rest. Its input is Chrome's trace format as tide/plan/trace.h writes it.
#include "tool.h"
#include "picture.h"
#include "../tide/files/json.h"

static const char help[] =
    "usage: timeline TRACE.json [-o OUT.svg] [--step N | --from S --to S] [--title T] [--memory]\n"
    "\n"
    "Draws the spans of a trace as an SVG: one row for each stream, one colour for each kind of\n"
    "work, the number of the layer or piece where it fits. Without -o to the standard output.\n"
    "\n"
    "  --step N    from the begin of step N to its end; what belongs to other steps is paler\n"
    "  --from S    from second S of the trace (its begin)\n"
    "  --to S      to second S of the trace (its end)\n"
    "  --title T   a line of text above\n"
    "  --memory    also the counters, as stacked areas below; with them, what spans hold\n";

enum { WIDTH = 1000, LEFT = 196, RIGHT = 24, PIXELS = WIDTH - LEFT - RIGHT, ROW = 26, BAR = 20,
       PANEL = 140, MAX_ROWS = 64, MAX_CLASSES = 16 };

// What a span is, by its name (tide/plan/trace.h): its colour, and that of its number. They are for light and
// dark pages alike.
static const struct { const char *name, *legend, *fill, *text; } kinds[] = {
    {"forward", "forward", "#84b6ea", "#10263d"},
    {"backward", "backward", "#2670bf", "#fff"},
    {"leave", "gradients out", "#d9601a", "#fff"},
    {"norm", "gradient norm", "#e89a82", "#3d160a"},
    {"accumulate", "gradients added up", "#b08549", "#fff"},
    {"fetch", "state in", "#2a998b", "#fff"},
    {"update", "update on the GPU", "#599a3e", "#fff"},
    {"host update", "update on the CPU", "#a8446f", "#fff"},  // "update" in a row "host..."
    {"flush", "state out", "#8a5ec0", "#fff"},
    {"back", "weights back", "#dcac3d", "#3d2c00"},
    {"save", "saving", "#738090", "#fff"},
    {"weights", "weights in", "#b9d04a", "#3d2c00"},
    {"wait", "waiting", "#9aa4ae55", "#848e98"},
    {"reduce", "gradients summed over GPUs", "#c0563f", "#fff"},
    {"gather", "weights gathered", "#4f9fb8", "#10263d"},
    {"input", "inputs of layers out and in", "#7a8f2c", "#fff"},
    {"", "other", "#a9b4c0", "#111"}};
enum { KIND_FORWARD, KIND_BACKWARD, KIND_LEAVE, KIND_FETCH = 5, KIND_UPDATE, KIND_HOST, KIND_FLUSH,
       KINDS = sizeof kinds / sizeof *kinds };

// The classes of a trainer's memory, from the bottom of its picture to the top, with colours: a class
// has the same one in every picture. Other classes take turns at the colours that are left.
static const char *const class_names[] = {"weights", "resident state", "activations", "gradients",
                                          "visiting state"};
static const char *const class_fill[] = {"#2670bf", "#84b6ea", "#d9601a", "#2a998b", "#8a5ec0",
                                         "#dcac3d", "#599a3e", "#a9b4c0"};
enum { CLASSES = sizeof class_names / sizeof *class_names,
       FILLS = sizeof class_fill / sizeof *class_fill };

typedef struct {
    int row, kind;
    bool paler, has_number;
    size_t number, step;
    double begin, end, bytes;
} Span;
typedef struct { const char *name; int tid; } Row;
typedef struct { size_t class, order; double at, value; } Sample;
typedef struct { const char *counter, *name; size_t fill; } Class;

typedef struct {
    Row rows[MAX_ROWS];
    Class classes[MAX_CLASSES];
    Span *spans;        // of each row in the order of time
    Sample *samples;    // in the order of time
    size_t row_count, class_count, span_count, sample_count;
    double begin, end;  // of the picture; all times are in microseconds
} Picture;

// ---------------------------------------------------------------------------------------------
// Reading

static const char *get_string(const Json *object, const char *key) {
    const Json *x = json_get(object, key);
    return x != NULL && x->type == JSON_STRING ? x->string : "";
}

static bool get_number(const Json *object, const char *key, double *out) {
    const Json *x = json_get(object, key);
    if (x == NULL || x->type != JSON_NUMBER || fabs(x->number) > 1e18) return false;
    *out = x->number;
    return true;
}

static int row_of(Picture *p, const Json *event, const char *path) {
    double tid = -1;
    if (!get_number(event, "tid", &tid) || fabs(tid) > INT_MAX)
        die("%s: a span or a row has no \"tid\"", path);
    for (size_t r = 0; r < p->row_count; r++) if (p->rows[r].tid == (int)tid) return (int)r;
    if (p->row_count == MAX_ROWS) die("%s: more than %d rows", path, MAX_ROWS);
    p->rows[p->row_count].tid = (int)tid;
    p->rows[p->row_count].name = "";
    return (int)p->row_count++;
}

static int kind_of(const char *name, const char *row) {
    int k = 0;
    while (k < KINDS - 1 && strcmp(kinds[k].name, name) != 0) k++;
    return k == KIND_UPDATE && strncmp(row, "host", 4) == 0 ? KIND_HOST : k;
}

static int compare_rows(const void *a, const void *b) {
    return ((const Row *)a)->tid > ((const Row *)b)->tid ? 1 : -1;
}

static int compare_spans(const void *a, const void *b) {
    const Span *x = (const Span *)a, *y = (const Span *)b;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static int compare_samples(const void *a, const void *b) {
    const Sample *x = (const Sample *)a, *y = (const Sample *)b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static size_t fill_of(const Picture *p, const char *name) {
    size_t others = 0;
    for (size_t k = 0; k < CLASSES; k++) if (strcmp(class_names[k], name) == 0) return k;
    for (size_t c = 0; c < p->class_count; c++) others += p->classes[c].fill >= CLASSES;
    return CLASSES + others % (FILLS - CLASSES);
}

// Puts the classes in the order of their colours.
static void sort_classes(Picture *p) {
    Class sorted[MAX_CLASSES];
    size_t place[MAX_CLASSES], n = 0;
    for (size_t fill = 0; fill < FILLS; fill++)
        for (size_t c = 0; c < p->class_count; c++)
            if (p->classes[c].fill == fill) {
                place[c] = n;
                sorted[n++] = p->classes[c];
            }
    for (size_t i = 0; i < p->sample_count; i++)
        p->samples[i].class = place[p->samples[i].class];
    memcpy(p->classes, sorted, n * sizeof *sorted);
}

static void add_sample(Picture *p, const char *counter, const char *name, double at, double value,
                       const char *path) {
    size_t c = 0;
    while (c < p->class_count && (strcmp(p->classes[c].counter, counter) != 0
                                  || strcmp(p->classes[c].name, name) != 0)) c++;
    if (c == MAX_CLASSES) die("%s: more than %d classes of memory", path, MAX_CLASSES);
    if (c == p->class_count)
        p->classes[p->class_count++] = (Class){counter, name, fill_of(p, name)};
    p->samples[p->sample_count] = (Sample){c, p->sample_count, at, fmax(0, value)};
    p->sample_count++;
}

static void add_samples(Picture *p, const Json *event, const char *path) {
    const char *counter = get_string(event, "name");
    const Json *args = json_get(event, "args");
    double at = 0;
    if (!get_number(event, "ts", &at)) die("%s: a counter without \"ts\"", path);
    if (args == NULL || args->type != JSON_OBJECT) return;
    for (const Json *x = args->child; x != NULL; x = x->next) {
        if (x->type != JSON_NUMBER || !(fabs(x->number) < 1e18))
            die("%s: counter \"%.100s\" is no number", path, counter);
        add_sample(p, counter, x->key, at, x->number, path);
    }
}

// A span's begin or end. At one moment, ends are first.
typedef struct { double at; const Span *span; bool begins; } Edge;

static int compare_edges(const void *a, const void *b) {
    const Edge *x = (const Edge *)a, *y = (const Edge *)b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    if (x->begins != y->begins) return x->begins ? 1 : -1;
    return (x->span > y->span) - (x->span < y->span);
}

// The bytes of one class of memory: those of each layer, or of each visitor, by its number; their sum.
typedef struct { const char *name; double *held, all; } Held;

static void hold(Picture *p, Held *h, const Edge *e, double bytes, const char *path) {
    const double before = h->held[e->span->number];
    if (bytes == before) return;
    h->held[e->span->number] = bytes;
    h->all += bytes - before;
    add_sample(p, "memory", h->name, e->at, h->all, path);
}

// Adds what the spans hold. Activations: from a layer's forward pass to the end of its backward
// pass. A gradient: from the backward pass until it has left, or, as far as it does not, until the
// GPU's update has read it; if there is no update, until the next step's forward pass. State: from
// the way in to the end of the way out. (Without a backward pass, weights are fetched, and not
// counted.)
static void add_held(Picture *p, const char *path) {
    const size_t n = p->span_count;
    double *held = (double *)alloc_or_fail(3 * n, sizeof *held, "memory");
    size_t *step = (size_t *)alloc_or_fail(n, sizeof *step, "memory");
    Edge *edge = (Edge *)alloc_or_fail(2 * n, sizeof *edge, "memory");
    Held acts = {"activations", held, 0}, grads = {"gradients", held + n, 0};
    Held state = {"visiting state", held + 2 * n, 0};
    bool trains = false;
    for (size_t i = 0; i < 2 * n; i++) {
        const Span *s = &p->spans[i / 2];
        trains |= s->kind == KIND_BACKWARD && s->bytes > 0;
        edge[i] = (Edge){i % 2 == 0 ? s->begin : s->end, s, i % 2 == 0};
    }
    qsort(edge, 2 * n, sizeof *edge, compare_edges);
    for (const Edge *e = edge; trains && e < edge + 2 * n; e++) {
        const Span *s = e->span;
        if (!s->has_number || s->number >= n) continue;
        const double grad = grads.held[s->number], visitor = state.held[s->number];
        if (s->kind == KIND_FORWARD && e->begins) {
            if (s->step != step[s->number]) hold(p, &grads, e, 0, path);
            hold(p, &acts, e, s->bytes, path);
        }
        if (s->kind == KIND_BACKWARD && s->bytes > 0) {
            step[s->number] = s->step;
            if (e->begins) hold(p, &grads, e, s->bytes, path);
            else hold(p, &acts, e, 0, path);
        }
        if ((s->kind == KIND_LEAVE || s->kind == KIND_UPDATE) && !e->begins)
            hold(p, &grads, e, fmax(0, grad - s->bytes), path);
        if (s->kind == KIND_FETCH && e->begins) hold(p, &state, e, fmax(visitor, s->bytes), path);
        if (s->kind == KIND_FLUSH && !e->begins) hold(p, &state, e, 0, path);
    }
    free(held);
    free(step);
    free(edge);
}

// Reads a trace; step SIZE_MAX: no step was asked for.
static void read_trace(Picture *p, const Json *root, const char *path, size_t step, double from,
                       double to) {
    const Json *events = root->type == JSON_ARRAY ? root : json_get(root, "traceEvents");
    if (events == NULL || events->type != JSON_ARRAY)
        die("%s: no \"traceEvents\" in it: it is no trace of --trace", path);
    size_t samples = 0;
    for (const Json *e = events->child; e != NULL; e = e->next) {
        const char *phase = get_string(e, "ph");
        const Json *args = json_get(e, "args");
        if (strcmp(phase, "C") == 0 && args != NULL) samples += args->count;
        if (strcmp(phase, "X") == 0) samples += 3;  // of what it holds: at its begin two, and one
        if (strcmp(phase, "M") == 0 && strcmp(get_string(e, "name"), "thread_name") == 0)
            p->rows[row_of(p, e, path)].name = get_string(args, "name");
        if (strcmp(phase, "X") == 0) row_of(p, e, path);
    }
    qsort(p->rows, p->row_count, sizeof *p->rows, compare_rows);
    p->spans = (Span *)alloc_or_fail(events->count, sizeof *p->spans, "spans");
    p->samples = (Sample *)alloc_or_fail(samples, sizeof *p->samples, "samples");
    double first = INFINITY, last = -INFINITY, begin = INFINITY, end = -INFINITY;
    for (const Json *e = events->child; e != NULL; e = e->next) {
        const char *phase = get_string(e, "ph");
        if (strcmp(phase, "C") == 0) add_samples(p, e, path);
        if (strcmp(phase, "X") != 0) continue;
        Span *s = &p->spans[p->span_count++];
        const Json *args = json_get(e, "args");
        size_t of = SIZE_MAX;
        double duration = 0;
        if (!get_number(e, "ts", &s->begin) || !get_number(e, "dur", &duration) || duration < 0)
            die("%s: a span has no \"ts\" or no \"dur\"", path);
        s->end = s->begin + duration;
        s->row = row_of(p, e, path);
        s->kind = kind_of(get_string(e, "name"), p->rows[s->row].name);
        s->has_number = json_size(json_get(args, "number"), &s->number);
        get_number(args, "bytes", &s->bytes);
        const bool mine = json_size(json_get(args, "step"), &of) && of == step;
        s->step = of;
        s->paler = step != SIZE_MAX && !mine;
        first = fmin(first, s->begin);
        last = fmax(last, s->end);
        if (!mine) continue;
        begin = fmin(begin, s->begin);
        end = fmax(end, s->end);
    }
    if (p->span_count == 0) die("%s: no spans in it", path);
    if (p->sample_count > 0) add_held(p, path);
    if (step != SIZE_MAX && begin > end) die("%s: no spans of step %zu in it", path, step);
    p->begin = step != SIZE_MAX ? begin : isfinite(from) ? 1e6 * from : first;
    p->end = step != SIZE_MAX ? end : isfinite(to) ? 1e6 * to : last;
    size_t kept = 0;
    for (size_t i = 0; i < p->span_count; i++)
        if (p->spans[i].end >= p->begin && p->spans[i].begin <= p->end)
            p->spans[kept++] = p->spans[i];
    p->span_count = kept;
    if (kept == 0 || !(p->end - p->begin >= 1e-3))
        die("%s: nothing between %g s and %g s; it goes from %g s to %g s", path, p->begin * 1e-6,
            p->end * 1e-6, first * 1e-6, last * 1e-6);
    qsort(p->spans, p->span_count, sizeof *p->spans, compare_spans);
    sort_classes(p);
    if (p->sample_count > 0)
        qsort(p->samples, p->sample_count, sizeof *p->samples, compare_samples);
}

// ---------------------------------------------------------------------------------------------
// Drawing

static double x_of(const Picture *p, double at) {
    return LEFT + PIXELS * fmin(1, fmax(0, (at - p->begin) / (p->end - p->begin)));
}

// Draws lines from y to `bottom` at round times since the begin, and these times below.
static void draw_axis(FILE *f, const Picture *p, double y, double bottom) {
    const double span = p->end - p->begin;
    const double unit = span >= 2e6 ? 1e6 : span >= 2e3 ? 1e3 : 1;
    const SvgFrame s = {.f = f, .left = LEFT, .right = LEFT + PIXELS, .top = y, .bottom = bottom,
                        .x1 = span / unit};
    svg_ticks(&s, svg_tick(s.x1, 10), true, unit == 1 ? "&#181;s" : unit == 1e3 ? "ms" : "s");
}

// Half a pixel less where that can be seen, so that neighbours are apart.
static void draw_bar(FILE *f, double x, double end, double y) {
    const double width = end - x >= 3 ? end - x - 0.6 : end - x;
    if (width > 0) fprintf(f, "M%.1f %.0fh%.1fv%dh-%.1fz", x, y, width, BAR, width);
}

// The bars of a kind in a row. Spans of less than a pixel are drawn as half a pixel at least, and
// those closer than that as one.
static void draw_bars(FILE *f, const Picture *p, int row, int kind, bool paler, double y) {
    double x = 0, end = 0;
    bool any = false, narrow = false;  // narrow: a bar made of such
    for (size_t i = 0; i < p->span_count; i++) {
        const Span *s = &p->spans[i];
        if (s->row != row || s->kind != kind || s->paler != paler) continue;
        const double from = x_of(p, s->begin), to = x_of(p, s->end);
        if (!any) fprintf(f, "<path class=\"k%d%s\" d=\"", kind, paler ? " pale" : "");
        any = true;
        if (!narrow || to - from >= 1 || from > end + 0.5) {
            draw_bar(f, x, end, y);
            x = end = from;
        }
        narrow = to - from < 1;
        end = fmax(end, fmax(to, from + 0.5));
    }
    draw_bar(f, x, end, y);
    if (any) fputs("\"/>\n", f);
}

static void draw_numbers(FILE *f, const Picture *p, int row, double y) {
    for (size_t i = 0; i < p->span_count; i++) {
        const Span *s = &p->spans[i];
        const double from = x_of(p, s->begin), to = x_of(p, s->end);
        char text[32];
        if (s->row != row || !s->has_number || s->paler) continue;
        if (to - from < 3 + 5.6 * snprintf(text, sizeof text, "%zu", s->number)) continue;
        fprintf(f, "<text class=\"n t%d\" x=\"%.1f\" y=\"%.0f\">%s</text>\n", s->kind,
                (from + to - 0.6) / 2, y + 13, text);
    }
}

static double draw_rows(FILE *f, const Picture *p, double y) {
    bool used[KINDS] = {false}, row_used[MAX_ROWS] = {false};
    double x = LEFT;
    for (size_t i = 0; i < p->span_count; i++)
        used[p->spans[i].kind] = row_used[p->spans[i].row] = true;
    for (int k = 0; k < KINDS; k++) {
        char class[16];
        snprintf(class, sizeof class, "k%d", k);
        if (used[k]) svg_legend(f, &x, &y, LEFT, WIDTH, class, kinds[k].legend);
    }
    y += 14;
    double bottom = y;
    for (size_t r = 0; r < p->row_count; r++) bottom += row_used[r] ? ROW : 0;
    draw_axis(f, p, y, bottom);
    for (int r = 0; r < (int)p->row_count; r++) {
        if (!row_used[r]) continue;
        fprintf(f, "<text x=\"14\" y=\"%.0f\">", y + 17);
        svg_text(f, p->rows[r].name, 28);
        fputs("</text>\n", f);
        for (int k = 0; k < 2 * KINDS; k++) draw_bars(f, p, r, k / 2, k % 2 == 0, y + 3);
        draw_numbers(f, p, r, y + 3);
        y += ROW;
    }
    return bottom + 24;
}

// One counter: its classes on top of each other. A column of pixels shows the moment at which the
// sum was largest, so that no peak is lost.
static double draw_counter(FILE *f, const Picture *p, const char *counter, double y) {
    static double level[PIXELS + 1][MAX_CLASSES];  // of this class and those below it
    double value[MAX_CLASSES] = {0}, total = 0, peak = 0, x = LEFT;
    bool used[MAX_CLASSES] = {false};  // of this counter, and ever more than nothing
    size_t i = 0;
    for (int column = 0; column <= PIXELS; column++) {
        const double until = p->begin + (p->end - p->begin) * (column + 1) / PIXELS;
        double most = -1;
        for (bool more = true; more;) {
            if (total > most) {
                double sum = 0;
                most = total;
                for (size_t c = 0; c < p->class_count; c++) {
                    level[column][c] = sum += value[c];
                    used[c] |= value[c] > 0;
                }
            }
            more = i < p->sample_count && p->samples[i].at < until;
            if (!more) break;
            const Sample *s = &p->samples[i++];
            if (strcmp(p->classes[s->class].counter, counter) != 0) continue;
            value[s->class] = s->value;
            total = 0;
            for (size_t c = 0; c < p->class_count; c++) total += value[c];
            if (s->at < p->begin) most = -1;
        }
        peak = fmax(peak, most);
    }
    const double unit = peak >= 0x1p30 ? 0x1p30 : peak >= 0x1p20 ? 0x1p20 : 1024;
    const char *name = unit == 0x1p30 ? "GiB" : unit == 0x1p20 ? "MiB" : "KiB";
    const double top = fmax(peak, 1);
    y += 16;
    for (size_t c = 0; c < p->class_count; c++) {
        char class[16];
        snprintf(class, sizeof class, "c%zu", p->classes[c].fill);
        if (used[c]) svg_legend(f, &x, &y, LEFT, WIDTH, class, p->classes[c].name);
    }
    y += 14;
    const double bottom = y + PANEL;
    for (size_t c = p->class_count; c-- > 0;) {
        if (!used[c]) continue;
        double at = bottom;
        fprintf(f, "<path class=\"c%zu\" d=\"M%d %.0f", p->classes[c].fill, LEFT, bottom);
        for (int column = 0; column < PIXELS; column++) {
            const double next = round(10 * (bottom - PANEL * level[column][c] / top)) / 10;
            if (next != at) fprintf(f, "H%dV%.1f", LEFT + column, next);
            at = next;
        }
        fprintf(f, "H%dV%.0fz\"/>\n", LEFT + PIXELS, bottom);
    }
    draw_axis(f, p, y, bottom);
    const SvgFrame s = {.f = f, .left = LEFT, .right = LEFT + PIXELS, .top = y, .bottom = bottom,
                        .y1 = top / unit};
    svg_levels(&s, 4, name);
    fprintf(f, "<text x=\"14\" y=\"%.0f\">", y + 12);
    svg_text(f, counter, 28);
    fprintf(f, "</text><text x=\"14\" y=\"%.0f\">peak %.3g %s</text>\n", y + 28, peak / unit, name);
    return bottom + 24;
}

static void draw(FILE *f, const Picture *p, const char *title, bool memory) {
    char *body = NULL;
    size_t n = 0;
    FILE *b = open_memstream(&body, &n);  // the height comes first, but is known last
    if (b == NULL) fail("out of memory");
    double y = 24;
    if (title != NULL) {
        fprintf(b, "<text class=\"title\" x=\"14\" y=\"26\">");
        svg_text(b, title, 120);
        fputs("</text>\n", b);
        y += 26;
    }
    y = draw_rows(b, p, y);
    for (size_t c = 0; c < p->class_count && memory; c++) {
        size_t before = 0;
        while (strcmp(p->classes[before].counter, p->classes[c].counter) != 0) before++;
        if (before == c) y = draw_counter(b, p, p->classes[c].counter, y);
    }
    if (fclose(b) != 0) fail("out of memory");
    svg_begin(f, WIDTH, y + 6);
    fputs(".pale{opacity:.35}\n", f);
    for (int k = 0; k < KINDS; k++)
        fprintf(f, ".k%d{fill:%s} .t%d{fill:%s}\n", k, kinds[k].fill, k, kinds[k].text);
    for (int c = 0; c < FILLS; c++) fprintf(f, ".c%d{fill:%s}\n", c, class_fill[c]);
    svg_page(f, "");
    fprintf(f, "%s</svg>\n", body);
    free(body);
}

// ---------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    static Picture p;
    const char *in = NULL, *out = NULL, *title = NULL;
    double from = NAN, to = NAN;
    size_t step = SIZE_MAX;
    bool memory = false;
    Error err;
    program_begin();
    for (int i = 1; i < argc; i++) {
        const char *s = argv[i];
        if (strcmp(s, "--help") == 0) return tool_help(help);
        if (strcmp(s, "--memory") == 0) { memory = true; continue; }
        if (*s != '-') {
            if (in != NULL) die("one file too many: %s", s);
            in = s;
            continue;
        }
        const bool known = strcmp(s, "-o") == 0 || strcmp(s, "--step") == 0
                           || strcmp(s, "--from") == 0 || strcmp(s, "--to") == 0
                           || strcmp(s, "--title") == 0;
        if (!known) die("no such option: %s (see --help)", s);
        if (++i == argc) die("%s wants a value", s);
        if (strcmp(s, "-o") == 0) out = argv[i];
        else if (strcmp(s, "--step") == 0) step = (size_t)tool_number(s, argv[i], 0, 0x1p53, true);
        else if (strcmp(s, "--from") == 0) from = tool_number(s, argv[i], -1e12, 1e12, false);
        else if (strcmp(s, "--to") == 0) to = tool_number(s, argv[i], -1e12, 1e12, false);
        else title = argv[i];
    }
    if (in == NULL) die("usage: timeline TRACE.json [-o OUT.svg] (see --help)");
    if (step != SIZE_MAX && (isfinite(from) || isfinite(to)))
        die("either --step, or --from and --to");
    tool_check_kind(in);
    Json *root = json_read(in, &err);
    if (root == NULL) die("%s", err.text);
    read_trace(&p, root, in, step, from, to);
    if (memory && p.class_count == 0) die("%s: no counters in it", in);
    FILE *f = tool_open(out);
    draw(f, &p, title, memory);
    tool_close(f, out);
    free(p.spans);
    free(p.samples);
    free(root);
    return 0;
}
