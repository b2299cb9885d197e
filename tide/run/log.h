// log.h: the output of a run: a line per step for people, DIR/log.jsonl for programs, and a plot of
// the losses, DIR/loss.svg.
//
//   log_open                        opens the log of a new run, or of a resumed one
//   log_step, log_skip, log_eval    write both lines of a step; of a skipped one; of an evaluation
//   log_best                        writes which checkpoint is the best so far
//   log_clear                       removes the progress line, before anything else is printed
//   log_plot                        draws the losses
//
// A line of log.jsonl is a JSON object: {"step":1,"loss":..,"grad_norm":..,"lr":..,"ms":..,
// "tokens_per_s":..,"tflops":..} for a step, {"step":..,"val_loss":..} for an evaluation.
// doc/logs.md explains each field. Every line is in the file before the next step begins. A resumed
// run removes a line that a crash cut short.
#ifndef TIDE_LOG_H
#define TIDE_LOG_H
#include "../files/json.h"
#include "svg.h"

enum { LOG_TRAIN, LOG_VAL, LOG_SERIES };
typedef struct { size_t count; SvgPoint *points; } LogSeries;  // steps and losses

typedef struct {
    const char *dir;         // the caller stores it; NULL: no log is written
    char path[PATH_MAX];     // DIR/log.jsonl
    FILE *file;
    FILE *screen;            // stdout
    bool terminal;           // the screen is a terminal: the progress line is redrawn in place
    bool drawn;              // a progress line is on the screen
    double last_drawn;       // when the last progress line was drawn
    double start;            // when the log was opened, just before this session's first step
    size_t resumed;          // steps before this session
    size_t every;            // a line is printed every so many steps; 0: auto
    double peak;  // FLOP/s of all devices together; raised if a step is faster; 0: unknown
    off_t whole;             // bytes of the complete lines in the file
    bool failing;            // the last line could not be written
    LogSeries losses[LOG_SERIES];
} Log;

static void log_add(LogSeries *s, size_t step, double loss) {
    if (fabs(loss) > 1e30) return;  // it cannot be drawn
    s->points = (SvgPoint *)array_grow(s->points, s->count, sizeof *s->points, "the log");
    s->points[s->count++] = (SvgPoint){(double)step, loss};
}

// Reads the n bytes of a log. Adds each complete, valid line of a step up to `last` to the series,
// and copies it to `kept`. Drops all other lines.
static void log_load(Log *l, const char *text, size_t n, size_t last, FILE *kept) {
    Error ignored;
    const char *end;
    for (; (end = (const char *)memchr(text, '\n', n)) != NULL; n -= (size_t)(end + 1 - text),
           text = end + 1) {
        size_t step = 0;
        Json *object = json_parse(text, (size_t)(end - text), &ignored);
        if (json_size(json_get(object, "step"), &step) && step <= last) {
            static const char *const names[LOG_SERIES] = {"loss", "val_loss"};
            for (int k = 0; k < LOG_SERIES; k++) {
                const Json *loss = json_get(object, names[k]);
                if (loss != NULL && loss->type == JSON_NUMBER)
                    log_add(&l->losses[k], step, loss->number);
            }
            fwrite(text, 1, (size_t)(end + 1 - text), kept);
        }
        free(object);
    }
}

// Removes the progress line. Call it before anything else is printed.
static void log_clear(Log *l) {
    if (l->drawn) fputs("\r\033[K", l->screen);
    l->drawn = false;
}

// Opens the log of a run in `dir`, which must exist. Keeps an old log's lines of steps up to
// resume_step (0: a new run), whose losses the plot will show. dir NULL: writes no log, as all
// ranks but 0 do. On failure returns false, with the reason in err; nothing is open then.
static bool log_open(Log *l, const char *dir, size_t resume_step, Error *err) {
    const char *term = getenv("TERM"), *path = l->path;
    *l = (Log){.dir = dir, .path = "/dev/null", .screen = stdout, .start = seconds_now(),
               .resumed = resume_step};
    l->terminal = isatty(STDOUT_FILENO) && (term == NULL || strcmp(term, "dumb") != 0);
    if (dir != NULL) path_join(l->path, dir, "log.jsonl");
    if (dir != NULL && path_exists(path)) {
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

// Flushes the lines of a step. If the disk is full or the file is gone, the run goes on, and the
// log lacks lines: a part of a line is removed, and a warning names the first missing step.
static void log_flush(Log *l, size_t step) {
    struct stat written, named;
    fflush(l->screen);
    errno = ENOENT;  // stays so if the name is another file's now
    const bool ok = fflush(l->file) == 0 && !ferror(l->file) && stat(l->path, &named) == 0
                 && fstat(fileno(l->file), &written) == 0 && written.st_ino == named.st_ino;
    if (ok) l->whole = ftello(l->file);
    else if (!l->failing)
        fprintf(stderr, "tide: warning: %s cannot be written (%s): it lacks step %zu, "
                "and what comes until it can\n", l->path, strerror(errno), step);
    l->failing = !ok;
    if (!ok && ftruncate(fileno(l->file), l->whole) == 0) clearerr(l->file);
}

// Writes both lines (for people, for programs) of a step (1 .. steps). ms: its milliseconds. more:
// other members of the JSON object, each after a comma, or "". flops: its FLOP/s; divided by
// l->peak they are "mfu", model FLOPs utilization (Chowdhery et al. 2022, section 4.1). On a
// terminal the line for people is redrawn in place, with a bar; about 20 lines of a run are left.
static void log_step(Log *l, size_t step, size_t steps, double loss, double grad_norm, double lr,
                     double ms, double tokens_per_s, double flops, const char *more) {
    log_add(&l->losses[LOG_TRAIN], step, loss);
    const double now = seconds_now(), per_step = (now - l->start) / (double)(step - l->resumed);
    const size_t ahead = steps > step ? steps - step : 0;
    char peak[32] = "", mfu[32] = "", line[256], bar[21] = "....................";
    if (l->peak > 0) {
        l->peak = fmax(l->peak, flops);
        snprintf(peak, sizeof peak, " | %.0f %% of peak", 100 * flops / l->peak);
        snprintf(mfu, sizeof mfu, ",\"mfu\":%.4g", flops / l->peak);
    }
    fprintf(l->file, "{\"step\":%zu,\"loss\":%.9g,\"grad_norm\":%.9g,\"lr\":%.9g,\"ms\":%.6g,"
            "\"tokens_per_s\":%.6g,\"tflops\":%.6g%s%s}\n", step, loss, grad_norm, lr, ms,
            tokens_per_s, 1e-12 * flops, mfu, more);
    const NumberText left = duration_text(per_step * (double)ahead);
    const size_t usual = l->terminal ? steps / 20 + 1 : 1;
    if (step % (l->every > 0 ? l->every : usual) == 0 || ahead == 0) {
        log_clear(l);
        fprintf(l->screen, "step %zu/%zu | loss %.4f | norm %.2f | lr %.1e | %.0f tok/s%s | %s left"
                "\n", step, steps, loss, grad_norm, lr, tokens_per_s, peak,
                left.text);
    } else if (l->terminal && now - l->last_drawn > 0.05) {
        memset(bar, '#', (size_t)(20 * (double)step / (double)steps));
        snprintf(line, sizeof line, "step %zu/%zu [%s] loss %.4f | %.0f tok/s | %s left", step,
                 steps, bar, loss, tokens_per_s, left.text);
        fprintf(l->screen, "\r%.79s\033[K", line);  // 79 columns: the 80th could begin a new line
        l->drawn = true;
        l->last_drawn = now;
    }
    log_flush(l, step);
}

// Writes both lines of a step without an update: its loss or norm is not finite, or too large.
static void log_skip(Log *l, size_t step, size_t steps, double loss, double norm,
                     const char *more) {
    fprintf(l->file, "{\"step\":%zu,\"skipped\":true%s}\n", step, more);
    log_clear(l);
    fprintf(l->screen, "step %zu/%zu | skipped: loss %g, norm %g\n", step, steps, fabs(loss),
            fabs(norm));
    log_flush(l, step);
}

// Writes the lines of an evaluation at `step`, to the log and the screen. accuracy: the share of
// held-out questions with a right answer; -1: there are no questions.
static void log_eval(Log *l, size_t step, double val_loss, double accuracy) {
    log_add(&l->losses[LOG_VAL], step, val_loss);
    log_clear(l);
    fprintf(l->file, "{\"step\":%zu,\"val_loss\":%.9g", step, val_loss);
    fprintf(l->screen, "step %zu | val loss %.4f", step, val_loss);
    fprintf(l->file, accuracy >= 0 ? ",\"val_accuracy\":%.6g}\n" : "}\n", accuracy);
    fprintf(l->screen, accuracy >= 0 ? " | accuracy %.2f %%\n" : "\n", 100 * accuracy);
    log_flush(l, step);
}

// Writes that the checkpoint of `step`, which is saved next, has the lowest validation loss so far.
static void log_best(Log *l, size_t step, double val_loss) {
    fprintf(l->file, "{\"step\":%zu,\"best_val_loss\":%.9g}\n", step, val_loss);
    log_flush(l, step);
    fsync(fileno(l->file));
}

// ---------------------------------------------------------------------------------------------
// The plot

enum { PLOT_WIDTH = 800, PLOT_HEIGHT = 450, PLOT_LEFT = 60, PLOT_RIGHT = 30, PLOT_TOP = 30,
       PLOT_BOTTOM = 50 };

// Draws both losses over the steps, and replaces DIR/loss.svg. Losses in the first twentieth of the
// steps that are higher than all later ones are cut off: they would take most of the height.
static bool log_plot(const Log *l, Error *err) {
    static const char *const names[LOG_SERIES] = {"train", "val"};
    const LogSeries *both = l->losses, *train = &both[LOG_TRAIN];
    char path[PATH_MAX];
    int y = PLOT_TOP + 10;
    SvgFrame s = {.f = NULL, .left = PLOT_LEFT, .right = PLOT_WIDTH - PLOT_RIGHT, .top = PLOT_TOP,
                  .bottom = PLOT_HEIGHT - PLOT_BOTTOM, .x0 = 0, .x1 = 1, .y0 = INFINITY,
                  .y1 = -INFINITY};
    for (int k = 0; k < LOG_SERIES; k++)
        if (both[k].count > 0) s.x1 = fmax(s.x1, both[k].points[both[k].count - 1].x);
    for (int k = 0; k < LOG_SERIES; k++)
        for (size_t i = 0; i < both[k].count; i++) {
            const SvgPoint at = both[k].points[i];
            s.y0 = fmin(s.y0, at.y);
            if (at.x > s.x1 / 20 || i + 1 == both[k].count) s.y1 = fmax(s.y1, at.y);
        }
    if (s.y0 > s.y1 || l->dir == NULL) return true;  // no losses yet, or no folder
    const double margin = fmax(0.04 * (s.y1 - s.y0), 1e-3 * fmax(1, fabs(s.y1)));
    s.y0 -= margin;
    s.y1 += margin;
    path_join(path, l->dir, "loss.svg");
    s.f = replace_open(path, err);
    if (s.f == NULL) return false;
    svg_begin(s.f, PLOT_WIDTH, PLOT_HEIGHT);
    fprintf(s.f, ".axis{stroke:#888} .grid{stroke:#ddd} polyline,circle{fill:none}\n"
            ".raw{stroke:#9ec5f0} .train,.val{stroke-width:2} .train{stroke:#1f6fc4} "
            ".val{stroke:#d9601a}\n");
    svg_page(s.f, " .grid{stroke:#30363d} .raw{stroke:#2b4f78} .train{stroke:#58a6ff} "
                  ".val{stroke:#f0883e}");
    if (train->count > 0)
        fprintf(s.f, "<text x=\"%d\" y=\"18\">loss over %.0f steps, from %.4g at step %.0f"
                "</text>\n", s.left, s.x1, train->points[0].y, train->points[0].x);
    svg_levels(&s, 8, "");
    svg_ticks(&s, fmax(svg_tick(s.x1, 8), 1), false, "");
    svg_axes(&s, "step", 40, "loss");
    fprintf(s.f, "<clipPath id=\"in\"><path d=\"M56 %.0fH%dV%.0fH56z\"/></clipPath>\n"
            "<g clip-path=\"url(#in)\">\n", s.top, s.right + 4, s.bottom);
    for (int k = 0; k < LOG_SERIES; k++) {
        if (both[k].count == 0) continue;
        const bool noisy = k == LOG_TRAIN;
        const SvgPoint last = svg_series(&s, names[k], noisy, both[k].points, both[k].count);
        fprintf(s.f, "<path class=\"%s\" d=\"M580 %dh24\"/><text x=\"612\" y=\"%d\">%s %.4g%s"
                "</text>\n", names[k], y, y + 4, names[k], last.y, noisy ? " (mean)" : "");
        y += 20;
    }
    fprintf(s.f, "</g>\n</svg>\n");
    return replace_close(s.f, path, err);
}

#endif
