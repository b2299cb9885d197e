// log.h: what a run tells: a line per step for people, DIR/log.jsonl for programs, and a plot of
// the losses, DIR/loss.svg.
//
//   log_open, log_close             of a new run, or of one that is resumed
//   log_step, log_skip, log_eval    both lines of a step, and of an evaluation
//   log_best                        which checkpoint is the best so far
//   log_clear                       before anything else is printed
//   log_plot                        draws the losses
//
// log.jsonl has one JSON object per line, of a training step, {"step":1,"loss":..,"grad_norm":..,
// "lr":..,"ms":..,"tokens_per_s":..,"tflops":..}, or of an evaluation, {"step":..,"val_loss":..};
// doc/logs.md tells of each field. Every line is in the file before the next step begins; a line
// that a crash cut short is dropped by the run that resumes.
#ifndef TIDE_LOG_H
#define TIDE_LOG_H
#include "../base/util.h"
#include <math.h>
#include "../files/json.h"

typedef struct { size_t step; double loss; } LogPoint;
typedef struct { size_t count; LogPoint *points; } LogSeries;

typedef struct {
    char dir[PATH_MAX];
    FILE *file;              // DIR/log.jsonl
    FILE *screen;            // stdout
    bool terminal;           // screen is one: show progress in place
    bool drawn;              // a progress line stands there
    double last_drawn;       // when, in seconds
    double start;            // when the step before this session's first one ended
    size_t first;            // this session's first step
    size_t resumed;          // steps before this session
    size_t every;            // steps per line on the screen; 0: auto
    double peak;             // FLOP/s of all that computes, 0: unknown; a faster step raises it
    off_t whole;             // bytes of the file that are complete lines
    bool failing;            // the last line could not be written
    LogSeries train, val;
} Log;

static void log_add(LogSeries *s, size_t step, double loss) {
    if (fabs(loss) > 1e30) return;  // could not be drawn
    const LogPoint point = {step, loss};
    s->points = (LogPoint *)array_grow(s->points, s->count, sizeof point, "the log");
    s->points[s->count++] = point;
}

// Reads the n bytes of a log: complete, valid lines of steps up to `last` go into the series and,
// as they are, into `kept`. Everything else is dropped.
static void log_load(Log *l, const char *text, size_t n, size_t last, FILE *kept) {
    Error ignored;
    const char *end;
    for (; (end = (const char *)memchr(text, '\n', n)) != NULL; n -= (size_t)(end + 1 - text),
           text = end + 1) {
        size_t step = 0;
        Json *object = json_parse(text, (size_t)(end - text), &ignored);
        if (json_get_size(object, "step", &step) && step <= last) {
            static const char *const names[2] = {"loss", "val_loss"};
            LogSeries *const series[2] = {&l->train, &l->val};
            for (int k = 0; k < 2; k++) {
                const Json *loss = json_get(object, names[k]);
                if (loss != NULL && loss->type == JSON_NUMBER)
                    log_add(series[k], step, loss->number);
            }
            fwrite(text, 1, (size_t)(end + 1 - text), kept);
        }
        json_free(object);
    }
}

// Removes the progress line. To be called before anything else is printed.
static void log_clear(Log *l) {
    if (l->drawn) fputs("\r\033[K", l->screen);
    l->drawn = false;
}

static void log_close(Log *l) {
    log_clear(l);
    fflush(l->screen);
    if (l->file != NULL) fclose(l->file);
    free(l->train.points);
    free(l->val.points);
    memset(l, 0, sizeof *l);
}

// Opens the log of a run in `dir`, which must exist. resume_step 0: a new run; an older log is kept
// as log.jsonl.old. Otherwise the log is cut back to the lines of steps up to resume_step, whose
// losses the plot will show. dir NULL: nothing is kept, as on all GPUs but the first. On failure
// false and the reason in err; nothing needs to be closed.
static bool log_open(Log *l, const char *dir, size_t resume_step, Error *err) {
    char path[PATH_MAX] = "/dev/null", old[PATH_MAX];
    const char *term = getenv("TERM");
    struct stat s;
    memset(l, 0, sizeof *l);
    l->screen = stdout;
    l->resumed = resume_step;
    if (dir != NULL) {
        snprintf(l->dir, sizeof l->dir, "%s", dir);
        l->terminal = isatty(STDOUT_FILENO) && (term == NULL || strcmp(term, "dumb") != 0);
        path_join(path, dir, "log.jsonl");
        path_join(old, dir, "log.jsonl.old");
    }
    const bool exists = dir != NULL && stat(path, &s) == 0 && s.st_size > 0;
    if (exists && resume_step == 0) {
        rename(path, old);
    } else if (exists) {
        size_t n = 0;
        char *text = file_read(path, &n, err);
        FILE *kept = text != NULL ? replace_open(path, err) : NULL;
        if (kept != NULL) log_load(l, text, n, resume_step, kept);
        free(text);
        if (kept == NULL || !replace_close(kept, path, err)) return false;
    }
    l->file = fopen(path, "ab");
    if (l->file == NULL) return error_set(err, "%.400s: %s", path, strerror(errno));
    fseeko(l->file, 0, SEEK_END);
    l->whole = ftello(l->file);
    return true;
}

// After the lines of a step were printed. A full disk costs lines of the log, not the
// run: what is there of such a line is removed, and the first one is named.
static void log_flush(Log *l, size_t step) {
    fflush(l->screen);
    const bool ok = fflush(l->file) == 0 && !ferror(l->file);
    if (ok) l->whole = ftello(l->file);
    else if (!l->failing)
        fprintf(stderr, "tide: warning: %s/log.jsonl cannot be written (%s): it lacks step %zu, "
                "and what comes until it can\n", l->dir, strerror(errno), step);
    l->failing = !ok;
    if (!ok && ftruncate(fileno(l->file), l->whole) == 0) clearerr(l->file);
}

// "41 s", "3 m 12 s", "2 h 05 m", "4 d 03 h"
static void log_duration(char *out, size_t n, double seconds) {
    unsigned long s = seconds < 1e9 ? (unsigned long)(seconds + 0.5) : 1000000000UL;
    if (s < 60) snprintf(out, n, "%lu s", s);
    else if (s < 3600) snprintf(out, n, "%lu m %02lu s", s / 60, s % 60);
    else if (s < 86400) snprintf(out, n, "%lu h %02lu m", s / 3600, s % 3600 / 60);
    else snprintf(out, n, "%lu d %02lu h", s / 86400, s % 86400 / 3600);
}

// After a step (the first is 1) of `steps`: writes both lines. ms: milliseconds that it took; more:
// further members of the JSON object, each after a comma, or "". flops: of the step, per second,
// and next to l->peak its "mfu", model FLOPs utilization (Chowdhery et al. 2022, section 4.1). In a
// terminal the human line is redrawn in place with a bar, and stays for about 20 steps of the run.
static void log_step(Log *l, size_t step, size_t steps, double loss, double grad_norm, double lr,
                     double ms, double tokens_per_s, double flops, const char *more) {
    log_add(&l->train, step, loss);
    const double now = seconds_now();
    if (l->first == 0) { l->first = step; l->start = now - ms / 1000; }
    const double per_step = (now - l->start) / (double)(step - l->first + 1);
    const size_t ahead = steps > step ? steps - step : 0;
    char peak[32] = "", mfu[32] = "", left[32], line[256], bar[21] = "....................";
    if (l->peak > 0) {
        l->peak = fmax(l->peak, flops);
        snprintf(peak, sizeof peak, " | %.0f %% of peak", 100 * flops / l->peak);
        snprintf(mfu, sizeof mfu, ",\"mfu\":%.4g", flops / l->peak);
    }
    fprintf(l->file, "{\"step\":%zu,\"loss\":%.9g,\"grad_norm\":%.9g,\"lr\":%.9g,\"ms\":%.6g,"
            "\"tokens_per_s\":%.6g,\"tflops\":%.6g%s%s}\n", step, loss, grad_norm, lr, ms,
            tokens_per_s, 1e-12 * flops, mfu, more);
    log_duration(left, sizeof left, per_step * (double)ahead);
    const size_t usual = l->terminal ? steps / 20 + 1 : 1;
    if (step % (l->every > 0 ? l->every : usual) == 0 || ahead == 0) {
        log_clear(l);
        fprintf(l->screen, "step %zu/%zu | loss %.4f | norm %.2f | lr %.1e | %.0f tok/s%s | %s left"
                "\n", step, steps, loss, grad_norm, lr, tokens_per_s, peak, left);
    } else if (l->terminal && now - l->last_drawn > 0.05) {
        memset(bar, '#', (size_t)(20 * (double)step / (double)steps));
        snprintf(line, sizeof line, "step %zu/%zu [%s] loss %.4f | %.0f tok/s | %s left", step,
                 steps, bar, loss, tokens_per_s, left);
        fprintf(l->screen, "\r%.79s\033[K", line);  // the last column would wrap
        l->drawn = true;
        l->last_drawn = now;
    }
    log_flush(l, step);
}

// After a step without an update, because its loss or norm is no number or too large: both lines.
static void log_skip(Log *l, size_t step, size_t steps, double loss, double norm) {
    fprintf(l->file, "{\"step\":%zu,\"skipped\":true}\n", step);
    log_clear(l);
    fprintf(l->screen, "step %zu/%zu | skipped: loss %g, norm %g\n", step, steps, fabs(loss),
            fabs(norm));
    log_flush(l, step);
}

// After an evaluation at `step`: both lines. accuracy, choices: the share of the held-out examples,
// and of --choices, that is right; -1, as val_loss: there is none.
static void log_eval(Log *l, size_t step, double val_loss, double accuracy, double choices) {
    if (val_loss >= 0) log_add(&l->val, step, val_loss);
    log_clear(l);
    fprintf(l->file, "{\"step\":%zu", step);
    fprintf(l->screen, "step %zu", step);
    if (val_loss >= 0) fprintf(l->file, ",\"val_loss\":%.9g", val_loss);
    if (val_loss >= 0) fprintf(l->screen, " | val loss %.4f", val_loss);
    if (accuracy >= 0) fprintf(l->file, ",\"val_accuracy\":%.6g", accuracy);
    if (accuracy >= 0) fprintf(l->screen, " | accuracy %.1f %%", 100 * accuracy);
    if (choices >= 0) fprintf(l->file, ",\"choices_accuracy\":%.6g", choices);
    if (choices >= 0) fprintf(l->screen, " | choices %.1f %%", 100 * choices);
    fprintf(l->file, "}\n");
    fprintf(l->screen, "\n");
    log_flush(l, step);
}

// Before the checkpoint of `step` is written, whose evaluation gave the lowest loss so far.
static void log_best(Log *l, size_t step, double val_loss) {
    fprintf(l->file, "{\"step\":%zu,\"best_val_loss\":%.9g}\n", step, val_loss);
    log_flush(l, step);
    fsync(fileno(l->file));
}

// ---------------------------------------------------------------------------------------------
// The plot

enum { PLOT_WIDTH = 800, PLOT_HEIGHT = 450, PLOT_LEFT = 60, PLOT_RIGHT = 30, PLOT_TOP = 30,
       PLOT_BOTTOM = 50, PLOT_BUCKETS = 400 };

typedef struct {
    FILE *f;
    double x1, y0, y1;  // steps 0 .. x1, losses y0 .. y1
} Plot;

static double plot_x(const Plot *p, double step) {
    return PLOT_LEFT + (PLOT_WIDTH - PLOT_LEFT - PLOT_RIGHT) * step / p->x1;
}

static double plot_y(const Plot *p, double loss) {
    return PLOT_TOP + (PLOT_HEIGHT - PLOT_TOP - PLOT_BOTTOM) * (p->y1 - loss) / (p->y1 - p->y0);
}

// The distance between ticks, 1, 2 or 5 times a power of ten, for at most n of them.
static double plot_tick(double span, int n) {
    double tick = pow(10, floor(log10(span / n)));
    for (int i = 0; i < 3 && span / tick > n; i++) tick *= i == 1 ? 2.5 : 2;
    return tick;
}

static void plot_axes(const Plot *p) {
    const int right = PLOT_WIDTH - PLOT_RIGHT, bottom = PLOT_HEIGHT - PLOT_BOTTOM;
    const double dx = fmax(plot_tick(p->x1, 8), 1), dy = plot_tick(p->y1 - p->y0, 8);
    for (double i = ceil(p->y0 / dy); i * dy <= p->y1; i++)
        fprintf(p->f, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n"
                "<text x=\"52\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n", PLOT_LEFT,
                plot_y(p, i * dy), right, plot_y(p, i * dy) + 4, i * dy);
    for (double i = 0; i * dx <= p->x1; i++)
        fprintf(p->f, "<path class=\"axis\" d=\"M%.1f %dv5\"/>\n"
                "<text x=\"%.1f\" y=\"420\" text-anchor=\"middle\">%.10g</text>\n",
                plot_x(p, i * dx), bottom, plot_x(p, i * dx), i * dx);
    fprintf(p->f, "<path class=\"axis\" d=\"M%d %dH%d\"/>\n"
            "<text x=\"415\" y=\"440\" text-anchor=\"middle\">step</text>\n"
            "<text transform=\"translate(16 215) rotate(-90)\" text-anchor=\"middle\">loss"
            "</text>\n", PLOT_LEFT, bottom, right);
}

// The mean of a 25th of the run around loss i; less at its begin, and those before at its end.
static LogPoint plot_mean(const LogSeries *s, size_t i) {
    const size_t n = s->count, back = min_size(i, n / 50), ahead = min_size(back, n - 1 - i);
    LogPoint mean = {s->points[i].step, 0};
    for (size_t k = i - back; k <= i + ahead; k++) mean.loss += s->points[k].loss;
    mean.loss /= (double)(back + ahead + 1);
    return mean;
}

static void plot_point(const Plot *p, LogPoint at) {
    fprintf(p->f, " %.1f,%.1f", plot_x(p, (double)at.step), plot_y(p, at.loss));
}

// A series and its legend: of every bucket of steps the last loss, with a ring at the end, which
// alone shows a series of one point. The training loss is noisy: the mean around every bucket's
// end, and under it, thin, lowest and highest of every bucket (no spike is lost).
static void plot_series(const Plot *p, const char *name, const LogSeries *s, bool noisy, int y) {
    const LogPoint *x = s->points;
    const size_t n = s->count, buckets = min_size(n, PLOT_BUCKETS);
    LogPoint last = {0, 0};
    if (n == 0) return;
    if (noisy) fprintf(p->f, "<polyline class=\"raw\" points=\"");
    for (size_t b = 0, i = 0; noisy && b < buckets; b++) {
        size_t low = i, high = i;
        for (; i < (b + 1) * n / buckets; i++) {
            if (x[i].loss < x[low].loss) low = i;
            if (x[i].loss > x[high].loss) high = i;
        }
        plot_point(p, x[min_size(low, high)]);
        plot_point(p, x[low < high ? high : low]);
    }
    fprintf(p->f, "%s<polyline class=\"%s\" points=\"", noisy ? "\"/>\n" : "", name);
    for (size_t b = 0; b < buckets; b++) {
        const size_t i = (b + 1) * n / buckets - 1;
        last = noisy ? plot_mean(s, b == 0 ? 0 : i) : x[i];
        plot_point(p, last);
    }
    fprintf(p->f, "\"/>\n"
            "<path class=\"%s\" d=\"M %.1f,%.1fm-3,0a3,3 0 1 0 6,0a3,3 0 1 0 -6,0\"/>\n"
            "<path class=\"%s\" d=\"M620 %dh24\"/><text x=\"652\" y=\"%d\">%s %.4g%s</text>\n",
            name, plot_x(p, (double)last.step), plot_y(p, last.loss), name, y, y + 4, name,
            last.loss, noisy ? " (mean)" : "");
}

// Draws both losses over the steps to DIR/loss.svg, replacing it whole. What is higher than all
// after the first twentieth of the steps is cut off: it would take most of the height.
static bool log_plot(const Log *l, Error *err) {
    char path[PATH_MAX];
    const LogSeries *both[2] = {&l->train, &l->val};
    Plot p = {NULL, 1, INFINITY, -INFINITY};
    for (int k = 0; k < 2; k++)
        if (both[k]->count > 0)
            p.x1 = fmax(p.x1, (double)both[k]->points[both[k]->count - 1].step);
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < both[k]->count; i++) {
            const LogPoint at = both[k]->points[i];
            p.y0 = fmin(p.y0, at.loss);
            if ((double)at.step > p.x1 / 20 || i + 1 == both[k]->count) p.y1 = fmax(p.y1, at.loss);
        }
    if (p.y0 > p.y1 || l->dir[0] == '\0') return true;  // nothing to show yet, or nowhere
    const double margin = fmax(0.04 * (p.y1 - p.y0), 1e-3 * fmax(1, fabs(p.y1)));
    p.y0 -= margin;
    p.y1 += margin;
    path_join(path, l->dir, "loss.svg");
    p.f = replace_open(path, err);
    if (p.f == NULL) return false;
    fprintf(p.f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 450\" width=\"800\" "
            "height=\"450\">\n<style>\n"
            "text{font:12px sans-serif;fill:#444} .page{fill:#fff} polyline,path{fill:none}\n"
            ".axis{stroke:#888} .grid{stroke:#ddd} .raw{stroke:#9ec5f0;stroke-width:1}\n"
            ".train{stroke:#1f6fc4;stroke-width:2} .val{stroke:#d9601a;stroke-width:2}\n"
            "@media(prefers-color-scheme:dark){text{fill:#bbb} .page{fill:#161b22}\n"
            ".grid{stroke:#30363d} .raw{stroke:#2b4f78} .train{stroke:#58a6ff} "
            ".val{stroke:#f0883e}}\n</style>\n<rect class=\"page\" width=\"100%%\" "
            "height=\"100%%\"/>\n");
    if (l->train.count > 0)
        fprintf(p.f, "<text x=\"60\" y=\"18\">loss over %.0f steps, from %.4g at step %zu</text>\n",
                p.x1, l->train.points[0].loss, l->train.points[0].step);
    plot_axes(&p);
    fprintf(p.f, "<clipPath id=\"in\"><path d=\"M56 30H774V400H56z\"/></clipPath>\n"
            "<g clip-path=\"url(#in)\">\n");
    plot_series(&p, "train", &l->train, true, PLOT_TOP + 10);
    plot_series(&p, "val", &l->val, false, PLOT_TOP + (l->train.count > 0 ? 30 : 10));
    fprintf(p.f, "</g>\n</svg>\n");
    return replace_close(p.f, path, err);
}

#endif
