// test_log.c: the run's log: what is written, what a resumed run keeps of it, what happens when it
// cannot be written, the lines for people, and the plot.
#include "../../../tide/run/log.h"
#include "../dies.h"
#include "../files.h"
#include "../test.h"
#include "../xml.h"

static Log l;  // the running test's
static LogSeries *const train_losses = &l.losses[LOG_TRAIN], *const val_losses = &l.losses[LOG_VAL];

// The text of a file, "" if there is none.
static const char *text_of(const char *name) {
    size_t n;
    const char *text = file_read(in_base(name), &n, &err);
    return text != NULL ? text : "";
}

// Opens the log, whose human lines go to a file.
static void begin_log(size_t resume_step, bool terminal) {
    CHECK(log_open(&l, base, resume_step, &err), "%s", err.text);
    l.screen = fopen(in_base("screen"), "w+");
    l.terminal = terminal;
}

static void begin_anew(void) {
    remove_tree(base);
    make_directories(base);
    begin_log(0, false);
}

static void end(void) {
    fclose(l.file);
    fclose(l.screen);
    for (int k = 0; k < LOG_SERIES; k++) free(l.losses[k].points);
    memset(&l, 0, sizeof l);
}

static void step(size_t i, size_t steps, double loss) {
    log_step(&l, i, steps, loss, 1.5, 6e-4, 250, 1000, 0, "");
}

static bool file_has(const char *name, const char *part) {
    const bool there = strstr(text_of(name), part) != NULL;
    if (!there) printf("  %s lacks %s\n", text_of(name), part);
    return there;
}

// A log, its lines of steps up to the one at which the run resumes (0: a run that begins), and how
// many losses these have.
static void resuming_cuts_the_log_back(void) {
    #define STEP_1 "{\"step\":1,\"loss\":4,\"grad_norm\":1}\n"
    #define STEP_2 "{\"step\":2,\"loss\":3.5}\n"
    #define VAL "{\"step\":2,\"val_loss\":3.75}\n"
    #define BEST "{\"step\":2,\"best_val_loss\":3.75}\n"
    #define THREE "{\"step\":3,\"loss\":3}\n"
    #define DAMAGED "nonsense\n\n{\"loss\":1}\n{\"step\":-1,\"loss\":1}\n[2]\n"
    static const struct { size_t step; const char *log, *kept; size_t losses, vals; } rows[] = {
        {0, STEP_1, "", 0, 0}, {2, NULL, "", 0, 0},
        // the end of a line is its newline, even where the rest could be read
        {2, STEP_1 "{\"step\":2,\"loss\":9}", STEP_1, 1, 0},
        {2, STEP_1 THREE DAMAGED STEP_2 VAL BEST "{\"step\":3,\"val_loss\":3}\n{\"step\":2,\"loss\":9",
         STEP_1 STEP_2 VAL BEST, 2, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unlink(in_base("log.jsonl"));
        if (rows[i].log != NULL) put_text(in_base("log.jsonl"), rows[i].log);
        if (i > 0) end();
        begin_log(rows[i].step, false);
        CHECK(strcmp(text_of("log.jsonl"), rows[i].kept) == 0, "%zu: %s", i, text_of("log.jsonl"));
        CHECK(train_losses->count == rows[i].losses && val_losses->count == rows[i].vals, "%zu", i);
    }
    log_eval(&l, 3, 2.5, 0.5);
    CHECK(file_has("log.jsonl", "}\n{\"step\":3,\"val_loss\":2.5,\"val_accuracy\":0.5}\n"), "-");
    CHECK(train_losses->count == 2 && val_losses->count == 2, "%zu", train_losses->count);
    end();
}

// A full disk costs lines, of which the first is said, and leaves none that is torn. A plot, or a
// log that is cut back, which cannot be written leaves the old file. An error names a path that is
// not a file.
static void a_full_disk_costs_lines(void) {
    begin_anew();
    for (size_t i = 1; i <= 100; i++) step(i, 100, 1);
    CHECK(log_plot(&l, &err), "%s", err.text);
    const char *log = text_of("log.jsonl"), *svg = text_of("loss.svg");
    Log again;
    limit_file_size(1000);
    const bool plotted = log_plot(&l, &err), opened = log_open(&again, base, 100, &err);
    limit_file_size(strlen(log) + 20);
    const char *said = SAYS(step(101, 199, 1));  // what is said is cut, too
    CHECK(strstr(said, "lacks step 101") != NULL, "%s", said);
    said = SAYS(log_eval(&l, 102, 1, -1));
    CHECK(*said == '\0' && l.failing, "it is said again: %s", said);
    limit_file_size(0);
    CHECK(!plotted && !opened && strstr(err.text, "log.jsonl") != NULL, "it fits: %s", err.text);
    CHECK(strcmp(log, text_of("log.jsonl")) == 0 && strcmp(svg, text_of("loss.svg")) == 0
          && entries_in(base) == 3, "the old files are gone, or a temporary one is left");
    step(103, 199, 1);
    CHECK(!l.failing && file_has("log.jsonl", "}\n{\"step\":103,"), "there is room again");
    unlink(in_base("log.jsonl"));
    said = SAYS(step(104, 199, 1));
    CHECK(strstr(said, "log.jsonl cannot be written (No such file or directory): it lacks step 104")
          != NULL, "%s", said);
    make_directories(in_base("loss.svg.tmp"));
    CHECK(!log_plot(&l, &err) && strstr(err.text, "loss.svg: Is a directory") != NULL, "%s",
          err.text);
    end();
    make_directories(in_base("log.jsonl"));
    CHECK(!log_open(&l, base, 5, &err) && strstr(err.text, "regular"), "%s", err.text);
}

// A file system may count no names (st_nlink 0), as that of a memfd does. A file that has taken the
// log's name is noticed.
static void the_name_must_lead_to_the_file(void) {
    char link[64];
    begin_anew();
    snprintf(link, sizeof link, "/proc/self/fd/%d", memfd_create("log", 0));
    const char *log = in_base("log.jsonl");
    CHECK(unlink(log) == 0 && symlink(link, log) == 0, "no link");
    l.file = freopen(log, "ab", l.file);
    const char *said = SAYS(step(1, 2, 1));
    CHECK(*said == '\0' && file_has("log.jsonl", "{\"step\":1,"), "%s", said);
    unlink(log);
    put_text(log, "");
    said = SAYS(step(2, 2, 1));
    CHECK(strstr(said, "(No such file or directory): it lacks step 2") != NULL, "%s", said);
    end();
}

// All digits of a loss are in the log, which has each line while the run goes on.
static void plain_lines_say_everything(void) {
    static const char *const on_screen[] = {
        "step 1/193 | loss 3.1416 | norm 1.23 | lr 6.0e-04 | 12345 tok/s | 56 % of peak | 3 m 12 s "
        "left\nstep 2 | val loss 0.3333\n", "| 100 % of peak | ", "| 50 % of peak | "};
    static const char *const in_log[] = {
        "{\"step\":1,\"loss\":3.14159274,\"grad_norm\":1.234,\"lr\":0.0006,\"ms\":1000,"
        "\"tokens_per_s\":12345.4,\"tflops\":0.000562,\"mfu\":0.562}\n"
        "{\"step\":2,\"val_loss\":0.333333343}\n", "\"tflops\":0.00166,\"mfu\":1}\n"};
    begin_anew();
    l.start -= 1;  // the first step took a second
    l.peak = 1e9;
    log_step(&l, 1, 193, 3.14159274f, 1.234, 6e-4, 1000, 12345.4, 56.2e7, "");
    log_eval(&l, 2, 1.0f / 3, -1);
    // measured while others were at work: the step that shows it is the peak
    log_step(&l, 3, 193, 2, 1, 6e-4, 1000, 1, 1.66e9, "");
    log_step(&l, 4, 193, 2, 1, 6e-4, 1000, 1, 0.83e9, "");
    for (int i = 0; i < 3; i++) CHECK(file_has("screen", on_screen[i]), "line %d", i);
    for (int i = 0; i < 2; i++) CHECK(file_has("log.jsonl", in_log[i]), "line %d", i);
    CHECK(strpbrk(text_of("screen"), "\r\033") == NULL, "plain");
    end();
    CHECK(strcmp(duration_text(1e300).text, "11574 d 01 h") == 0, "a long run");
}

static void a_terminal_shows_progress_in_place(void) {
    begin_log(0, true);
    for (size_t i = 1; i <= 200; i++) {
        l.last_drawn = i == 9 ? seconds_now() + 100 : 0;  // but for this one, as if time had passed
        log_step(&l, i, 200, 1, 1, 1e-3, 1, i == 78 ? 1e50 : 1, 0, "");
        if (i == 5) log_eval(&l, i, 1, -1);
    }
    const char *text = text_of("screen");
    size_t kept = 0, shown = 0, cleared = 0, widest = 0;
    for (const char *c = text; *c; c++) {
        kept += *c == '\n';
        shown += *c == '\r' && c[1] != '\033';
        cleared += *c == '\r' && c[1] == '\033';
        widest = max_size(widest, strcspn(c, "\r\n\033"));
    }
    // 18 lines, the last step's and the evaluation's; no more than 20 times a second
    CHECK(kept == 20 && shown == 180 && cleared == 20, "%zu %zu %zu", kept, shown, cleared);
    CHECK(!l.drawn && text[strlen(text) - 1] == '\n', "the last step's line stays");
    CHECK(widest == 79, "%zu columns", widest);  // in the 80th, a terminal would wrap the line
    end();
}

// ---------------------------------------------------------------------------------------------
// The plot

enum { PLOT_SPAN = PLOT_WIDTH - PLOT_LEFT - PLOT_RIGHT };

// Reads the points of the polylines of this style, or of all (""). Returns how many there are.
static SvgPoint drawn[4 * SVG_BUCKETS];
static size_t points_of(const char *svg, const char *style) {
    size_t count = 0;
    char begin[64];
    snprintf(begin, sizeof begin, "%s\" points=\"", style);
    for (const char *s = svg; (s = strstr(s, begin)) != NULL;) {
        double x, y, before = 0;
        int used = 0;
        for (s += strlen(begin); sscanf(s, " %lf,%lf%n", &x, &y, &used) == 2; s += used) {
            CHECK(x >= PLOT_LEFT && x <= PLOT_WIDTH - PLOT_RIGHT && x >= before, "x %g", x);
            CHECK(y <= PLOT_HEIGHT - PLOT_BOTTOM, "y %g", y);
            before = x;
            drawn[count++] = (SvgPoint){x, y};
        }
    }
    return count;
}

static const char *plot(void) {
    CHECK(log_plot(&l, &err), "%s", err.text);
    const char *svg = text_of("loss.svg");
    CHECK(xml_tags(svg) > 10 && strstr(svg, "nan") == NULL && strstr(svg, "inf") == NULL, "%s",
          svg);
    return svg;
}

static void plots_are_well_formed(void) {
    static const struct { size_t n, every; double base, scale; } cases[] = {
        {1, 0, 5, 0}, {1, 1, 5, 0}, {3, 1, 0, 0}, {401, 1, 1, 1}, {5000, 3, 1, 1e29},
        {20000, 100, -4, 1e-9}, {5, 1, 1e30, 0}, {99, 9, -4.069e-300, 0}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        begin_anew();
        CHECK(log_plot(&l, &err) && !path_exists(in_base("loss.svg")), "nothing to draw yet");
        for (size_t i = 1; i <= cases[k].n; i++) {
            const double loss = cases[k].base + cases[k].scale * (double)(i * 7919 % 101) / 101;
            log_add(train_losses, i, loss);
            if (cases[k].every && i % cases[k].every == 0) log_add(val_losses, i, loss);
        }
        const char *svg = plot();
        const size_t points = points_of(svg, "");
        CHECK(points >= 2, "case %zu: %zu points", k, points);
        for (size_t i = 0; i < points; i++)  // inside the axes, or of the first twentieth
            CHECK(drawn[i].y >= PLOT_TOP || drawn[i].x <= PLOT_LEFT + 0.05 * PLOT_SPAN + 0.05,
                  "case %zu: y %g at %g", k, drawn[i].y, drawn[i].x);
        CHECK(strstr(svg, ">train ") != NULL, "-");
        CHECK((strstr(svg, ">val ") != NULL) == (val_losses->count > 0), "-");
        end();
    }
}

// Its losses are high in the first twentieth of the steps, which is cut off.
static void the_plot_keeps_spikes_and_averages(void) {
    begin_anew();
    for (size_t i = 1; i <= 10000; i++) {
        const bool up = i == 5003 || i == 7004, down = i == 5004 || i == 7003;  // two in one bucket
        log_add(train_losses, i, up ? 9 : down ? 0 : i % 2 ? (i < 99 ? 99 : 1) : 3);
    }
    for (size_t i = 1; i <= 1001; i++) log_add(val_losses, i, i == 1001 ? 9 : 1);
    const double h = PLOT_HEIGHT - PLOT_TOP - PLOT_BOTTOM;  // losses 0 .. 9 and 4 % on both sides
    const double top = PLOT_TOP + h * 0.04 / 1.08, bottom = PLOT_TOP + h * 1.04 / 1.08;
    const double two = PLOT_TOP + h * (0.04 + 7.0 / 9) / 1.08;
    const char *svg = plot();
    int spikes = 0, dips = 0;
    size_t n = points_of(svg, "raw");
    for (size_t i = 0; i < n; i++) {
        spikes += fabs(drawn[i].y - top) < 0.1;
        dips += fabs(drawn[i].y - bottom) < 0.1;
    }
    CHECK(spikes == 2 && dips == 2, "%d spikes and %d dips are drawn", spikes, dips);
    n = points_of(svg, "val");
    CHECK(n > 0 && fabs(drawn[n - 1].y - top) < 0.1, "the last validation loss is drawn");
    n = points_of(svg, "train");
    CHECK(n == 400, "%zu points", n);
    for (size_t i = 20; i < n; i++)
        CHECK(fabs(drawn[i].y - two) < 8, "mean %g, not %g", drawn[i].y, two);
    CHECK(strstr(svg, ">loss over 10000 steps, from 99 at step 1<") != NULL
          && strstr(svg, ">train 2.005 (mean)<") != NULL && strstr(svg, ">20<") == NULL, "-");
    end();
}

int main(void) {
    base_new("log");
    RUN(resuming_cuts_the_log_back);
    RUN(a_full_disk_costs_lines);
    RUN(the_name_must_lead_to_the_file);
    RUN(plain_lines_say_everything);
    RUN(a_terminal_shows_progress_in_place);
    RUN(plots_are_well_formed);
    RUN(the_plot_keeps_spikes_and_averages);
    remove_tree(base);
    return test_summary();
}
