// test_log.c: the run's log: what is written, what a resumed run keeps of it, what happens when it
// cannot be written, the lines for people, and the plot.
#include "../../../tide/run/log.h"
#include <signal.h>
#include <sys/resource.h>
#include "../test.h"

static char dir[] = "/tmp/test_log_XXXXXX";

static char *path(const char *name) {
    static char p[2][PATH_MAX];
    static int which;
    which = 1 - which;
    path_join(p[which], dir, name);
    return p[which];
}

static void write_text(const char *name, const char *text, size_t n) {
    FILE *f = fopen(path(name), "wb");
    if (f == NULL || fwrite(text, 1, n, f) != n || fclose(f) != 0) abort();
}

// The file's text, "" if there is none; a static buffer.
static const char *read_text(const char *name) {
    static char text[1 << 20];
    FILE *f = fopen(path(name), "rb");
    size_t n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f != NULL) fclose(f);
    text[n] = '\0';
    return text;
}

static void start_over(void) {
    static const char *const names[] = {"log.jsonl", "log.jsonl.tmp", "loss.svg",
                                        "loss.svg.tmp"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unlink(path(names[i]));
}

// Opens a log whose human lines go to a file.
static bool open_quietly(Log *l, size_t resume_step, bool terminal, Error *err) {
    if (!log_open(l, dir, resume_step, err)) return false;
    l->screen = fopen(path("screen"), "w+");
    l->terminal = terminal;
    return l->screen != NULL;
}

static void close_quietly(Log *l) {
    FILE *screen = l->screen;
    log_close(l);
    fclose(screen);
}

static void lines_are_exact_json(void) {
    static const float losses[] = {1.0f / 3, 3.14159274f, 1e-30f, 12345.6787f, 0.1f, 1.1754e-38f};
    Log l;
    Error err;
    start_over();
    CHECK(open_quietly(&l, 0, false, &err), "%s", err.text);
    for (size_t i = 0; i < 6; i++)
        log_step(&l, i + 1, 6, losses[i], 1.5, 6e-4, 250, 1000, 0, "");
    log_eval(&l, 6, losses[1], -1);
    // Everything is in the file while the run goes on.
    const char *text = read_text("log.jsonl"), *first = "{\"step\":1,\"loss\":0.333333343,"
        "\"grad_norm\":1.5,\"lr\":0.0006,\"ms\":250,\"tokens_per_s\":1000,\"tflops\":0}\n";
    CHECK(strncmp(text, first, strlen(first)) == 0, "%s", text);
    for (size_t i = 0; i < 7; i++) {
        size_t length = strcspn(text, "\n"), step = 0;
        Json *object = json_parse(text, length, &err);
        CHECK(object != NULL && json_size(json_get(object, "step"), &step), "%s", err.text);
        const Json *loss = json_get(object, i < 6 ? "loss" : "val_loss");
        CHECK(step == (i < 6 ? i + 1 : 6), "step %zu", step);
        CHECK(loss != NULL && (float)loss->number == losses[i < 6 ? i : 1], "line %zu", i);
        json_free(object);
        text += length + 1;
    }
    CHECK(*text == '\0', "seven lines: %s", text);
    CHECK(l.train.count == 6 && l.val.count == 1, "%zu %zu", l.train.count, l.val.count);
    close_quietly(&l);
}

static void a_run_that_begins_again_has_no_lines(void) {
    Log l;
    Error err;
    start_over();
    write_text("log.jsonl", "{\"step\":1,\"loss\":4}\n", 21);
    CHECK(open_quietly(&l, 0, false, &err), "%s", err.text);
    CHECK(l.train.count == 0 && strcmp(read_text("log.jsonl"), "") == 0, "%s", read_text("log.jsonl"));
    close_quietly(&l);
}

static void resuming_cuts_the_log_back(void) {
    static const char one[] = "{\"step\":1,\"loss\":4,\"grad_norm\":1}\n",
        two[] = "{\"step\":2,\"loss\":3.5}\n", val[] = "{\"step\":2,\"val_loss\":3.75}\n",
        three[] = "{\"step\":3,\"loss\":3}\n", val3[] = "{\"step\":3,\"val_loss\":3}\n",
        best[] = "{\"step\":2,\"best_val_loss\":3.75}\n";
    Log l;
    Error err;
    char text[1000];
    start_over();
    CHECK(open_quietly(&l, 2, false, &err), "no log yet: %s", err.text);
    close_quietly(&l);
    // Lines of other steps, damaged lines, and one torn by a kill are dropped; order is kept.
    int n = snprintf(text, sizeof text, "%s%snonsense\n\n{\"loss\":1}\n{\"step\":-1,\"loss\":1}\n"
                     "[2]\n%s%s%s%s{\"step\":2,\"loss\":9", one, three, two, val, best, val3);
    write_text("log.jsonl", text, (size_t)n);
    CHECK(open_quietly(&l, 2, false, &err), "%s", err.text);
    snprintf(text, sizeof text, "%s%s%s%s", one, two, val, best);
    CHECK(strcmp(read_text("log.jsonl"), text) == 0, "%s", read_text("log.jsonl"));
    CHECK(l.train.count == 2 && l.train.points[0].y == 4 && l.train.points[1].x == 2, "-");
    CHECK(l.val.count == 1 && l.val.points[0].x == 2 && l.val.points[0].y == 3.75, "-");
    CHECK(!path_exists(path("log.jsonl.tmp")), "no temporary file is left");
    log_step(&l, 3, 4, 2.5, 1, 1, 1, 1, 0, "");
    CHECK(strstr(read_text("log.jsonl"), "3.75}\n{\"step\":3,\"loss\":2.5,") != NULL, "appended");
    CHECK(l.train.count == 3, "%zu", l.train.count);
    // What there is of an evaluation, and which one is the best.
    log_eval(&l, 3, 2.5, 0.5);
    CHECK(l.val.count == 2, "%s", err.text);
    log_best(&l, 3, 2.5);
    CHECK(strstr(read_text("log.jsonl"), "{\"step\":3,\"val_loss\":2.5,\"val_accuracy\":0.5}\n"
                 "{\"step\":3,\"best_val_loss\":2.5}\n") != NULL, "%s", read_text("log.jsonl"));
    close_quietly(&l);
    // The end of a line is its newline, even where the rest could be read.
    n = snprintf(text, sizeof text, "%s{\"step\":2,\"loss\":9}", one);
    write_text("log.jsonl", text, (size_t)n);
    CHECK(open_quietly(&l, 2, false, &err) && l.train.count == 1, "%zu", l.train.count);
    CHECK(strcmp(read_text("log.jsonl"), one) == 0, "%s", read_text("log.jsonl"));
    close_quietly(&l);
    // A log that ends in a complete line loses nothing, and a NUL in it does not end it.
    n = snprintf(text, sizeof text, "%s_%s%s", one, "\n", two);
    text[strlen(one)] = '\0';
    write_text("log.jsonl", text, (size_t)n);
    CHECK(open_quietly(&l, 2, false, &err) && l.train.count == 2, "%zu", l.train.count);
    close_quietly(&l);
}

static void a_resumed_log_equals_an_uninterrupted_one(void) {
    static char whole[1 << 16];
    Log l;
    Error err;
    for (int run = 0; run < 2; run++) {
        start_over();
        size_t from = 0;
        for (int part = run == 0 ? 1 : 0; part < 2; part++) {
            CHECK(open_quietly(&l, from, false, &err), "%s", err.text);
            for (size_t i = from + 1; i <= (part == 0 ? 70u : 100u); i++) {
                log_step(&l, i, 100, 5 - (double)i / 64, 1, 1, 1, 1, 0, "");
                if (i % 10 == 0) log_eval(&l, i, 6 - (double)i / 64, -1);
            }
            CHECK(log_plot(&l, &err), "%s", err.text);
            close_quietly(&l);
            from = 50;  // the checkpoint lies before the kill
        }
        CHECK(l.train.count == 0, "closed");
        if (run > 0) continue;
        size_t n = (size_t)snprintf(whole, sizeof whole, "%s", read_text("log.jsonl"));
        snprintf(whole + n, sizeof whole - n, "%s", read_text("loss.svg"));
    }
    const char *log = read_text("log.jsonl");
    size_t n = strlen(log);
    CHECK(strncmp(whole, log, n) == 0, "%s", log);
    CHECK(strcmp(whole + n, read_text("loss.svg")) == 0, "the plots differ");
}

// A full disk costs lines, which the first of them is said, and leaves none that is torn.
static void a_full_disk_costs_lines(void) {
    struct rlimit old, small;
    Log l;
    Error err;
    char said[2048] = "";
    int ends[2];
    start_over();
    CHECK(open_quietly(&l, 0, false, &err), "%s", err.text);
    log_step(&l, 1, 9, 1, 1, 1, 1, 1, 0, "");
    const size_t one = strlen(read_text("log.jsonl"));
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = one + 20;
    signal(SIGXFSZ, SIG_IGN);
    const int screen = dup(2);
    CHECK(pipe(ends) == 0 && dup2(ends[1], 2) == 2, "a pipe");
    setrlimit(RLIMIT_FSIZE, &small);
    log_step(&l, 2, 9, 1, 1, 1, 1, 1, 0, "");
    CHECK(l.failing, "step 2");
    log_eval(&l, 2, 1, -1);
    CHECK(l.failing, "its evaluation");
    CHECK(strlen(read_text("log.jsonl")) == one, "a torn line: %s", read_text("log.jsonl"));
    setrlimit(RLIMIT_FSIZE, &old);
    dup2(screen, 2);
    log_step(&l, 3, 9, 1, 1, 1, 1, 1, 0, "");
    CHECK(!l.failing, "there is room again");
    CHECK(strstr(read_text("log.jsonl"), "}\n{\"step\":3,") != NULL, "%s", read_text("log.jsonl"));
    CHECK(read(ends[0], said, sizeof said - 1) > 0, "nothing was said");
    const char *warning = strstr(said, "lacks step 2");
    CHECK(warning != NULL && strstr(warning + 1, "lacks") == NULL, "%s", said);
    for (int i = 0; i < 2; i++) close(ends[i]);
    close(screen);
    close_quietly(&l);
}

static void a_full_disk_keeps_the_old_files(void) {
    struct rlimit old, small;
    Log l;
    Error err;
    static char log[1 << 16], svg[1 << 16];
    start_over();
    CHECK(open_quietly(&l, 0, false, &err), "%s", err.text);
    for (size_t i = 1; i <= 100; i++) log_step(&l, i, 100, 1 + i % 7, 1, 1, 1, 1, 0, "");
    CHECK(log_plot(&l, &err), "%s", err.text);
    snprintf(log, sizeof log, "%s", read_text("log.jsonl"));
    snprintf(svg, sizeof svg, "%s", read_text("loss.svg"));
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 1000;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);  // files cannot grow beyond 1000 bytes
    bool plotted = log_plot(&l, &err);
    Log again;
    bool opened = log_open(&again, dir, 100, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    if (opened) close_quietly(&again);
    else free(again.train.points);
    CHECK(!plotted, "the plot does not fit");
    CHECK(!opened && strstr(err.text, "log.jsonl"), "the log does not fit: %s", err.text);
    CHECK(strcmp(log, read_text("log.jsonl")) == 0, "the old log stays");
    CHECK(strcmp(svg, read_text("loss.svg")) == 0, "the old plot stays");
    CHECK(!path_exists(path("loss.svg.tmp")) && !path_exists(path("log.jsonl.tmp")), "-");
    close_quietly(&l);
}

static void a_directory_that_cannot_be_used_is_reported(void) {
    Log l;
    Error err;
    CHECK(!log_open(&l, "/nonexistent", 0, &err) && strstr(err.text, "/nonexistent"), "no dir");
    start_over();
    CHECK(mkdir(path("log.jsonl"), 0777) == 0, "mkdir");
    CHECK(!log_open(&l, dir, 5, &err) && strstr(err.text, "regular"), "%s", err.text);
    rmdir(path("log.jsonl"));
    CHECK(open_quietly(&l, 0, false, &err), "%s", err.text);
    log_step(&l, 1, 9, 1, 1, 1, 1, 1, 0, "");
    CHECK(mkdir(path("loss.svg"), 0777) == 0, "mkdir");
    CHECK(!log_plot(&l, &err) && strstr(err.text, "loss.svg"), "%s", err.text);
    CHECK(!path_exists(path("loss.svg.tmp")), "no temporary file is left");
    rmdir(path("loss.svg"));
    close_quietly(&l);
}

static void plain_lines_say_everything(void) {
    Log l;
    Error err;
    start_over();
    CHECK(open_quietly(&l, 0, false, &err), "%s", err.text);
    l.peak = 1e9;
    log_step(&l, 1, 193, 3.42109, 1.234, 6e-4, 1000, 12345.4, 56.2e7, "");
    l.peak = 0;
    log_step(&l, 2, 193, 2, 1, 6e-4, 1000, 1, 0, "");
    log_eval(&l, 2, 1.98767, -1);
    fflush(l.screen);
    const char *text = read_text("screen"), *first = "step 1/193 | loss 3.4211 | norm 1.23 | "
        "lr 6.0e-04 | 12345 tok/s | 56 % of peak | 3 m 12 s left\n";
    CHECK(strncmp(text, first, strlen(first)) == 0, "%s", text);
    CHECK(strstr(text, "\nstep 2/193 | loss 2.0000 | norm 1.00 | lr 6.0e-04 | 1 tok/s | 1 m"), "-");
    CHECK(strstr(text, " left\nstep 2 | val loss 1.9877\n") != NULL, "%s", text);
    l.peak = 1e9;  // measured while others were at work: the step that shows it is the peak
    log_step(&l, 3, 193, 2, 1, 6e-4, 1000, 1, 1.66e9, "");
    log_step(&l, 4, 193, 2, 1, 6e-4, 1000, 1, 0.83e9, "");
    fflush(l.screen);
    const char *more = strstr(read_text("screen"), "step 3/");
    CHECK(strstr(more, "| 100 % of peak") != NULL && strstr(more, "| 50 % of peak") != NULL
          && l.peak == 1.66e9, "%s", more);
    static const char *const ends[] = {"\"tflops\":0.000562,\"mfu\":0.562}\n", "\"tflops\":0}\n",
                                       "\"tflops\":0.00166,\"mfu\":1}\n"};
    for (int i = 0; i < 3; i++)
        CHECK(strstr(read_text("log.jsonl"), ends[i]) != NULL, "%s", read_text("log.jsonl"));
    CHECK(strchr(text, '\r') == NULL && strchr(text, '\033') == NULL, "plain");
    close_quietly(&l);
    static const struct { double seconds; const char *text; } durations[] = {
        {0, "0 s"}, {59.4, "59 s"}, {59.6, "1 m 00 s"}, {192, "3 m 12 s"}, {3599, "59 m 59 s"},
        {7500, "2 h 05 m"}, {356400, "4 d 03 h"}, {1e300, "11574 d 01 h"}};
    for (size_t i = 0; i < sizeof durations / sizeof durations[0]; i++) {
        char out[32];
        log_duration(out, sizeof out, durations[i].seconds);
        CHECK(strcmp(out, durations[i].text) == 0, "%s, not %s", out, durations[i].text);
    }
}

static void a_terminal_shows_progress_in_place(void) {
    Log l;
    Error err;
    start_over();
    CHECK(open_quietly(&l, 0, true, &err), "%s", err.text);
    for (size_t i = 1; i <= 200; i++) {
        l.last_drawn = 0;  // as if time had passed
        log_step(&l, i, 200, 1, 1, 1e-3, 1, i == 78 ? 1e50 : 1, 0, "");
        if (i == 5) log_eval(&l, i, 1, -1);
    }
    fflush(l.screen);
    const char *text = read_text("screen");
    size_t kept = 0, drawn = 0, cleared = 0;
    for (const char *c = text; *c; c++) {
        kept += *c == '\n';
        drawn += *c == '\r' && c[1] != '\033';
        cleared += *c == '\r' && c[1] == '\033';
    }
    CHECK(kept == 20 && drawn == 181, "kept %zu, drawn %zu", kept, drawn);  // 18 + last + eval
    CHECK(cleared == 20, "cleared %zu times", cleared);
    CHECK(strstr(text, "\r\033[Kstep 5 | val loss"), "the evaluation has a line of its own");
    CHECK(!l.drawn && text[strlen(text) - 1] == '\n', "the last step's line stays");
    // The line never reaches the last of the 80 columns, where a terminal would wrap it.
    size_t widest = 0;
    for (const char *c = text; *c;) {
        size_t n = strcspn(c, "\r\n\033");
        if (n > widest) widest = n;
        c += n + (c[n] != '\0');
    }
    CHECK(widest == 79, "%zu columns", widest);
    CHECK(strstr(text, "\rstep 1/200 [....................] loss 1.0000 | 1 tok/s | "), "a bar");
    CHECK(strstr(text, "\rstep 199/200 [###################.] loss"), "a fuller bar");
    // No more than 20 times a second.
    l.last_drawn = seconds_now() + 100;
    log_step(&l, 1, 200, 1, 1, 1e-3, 1, 1, 0, "");
    CHECK(!l.drawn, "too soon");
    close_quietly(&l);
}

// Counts tags and checks that they are balanced; 0 if not.
static size_t xml_tags(const char *s) {
    const char *stack[32];
    size_t depth = 0, tags = 0;
    for (; (s = strchr(s, '<')) != NULL; tags++) {
        const char *end = strchr(s, '>');
        if (end == NULL) return 0;
        size_t name = strcspn(s + 1, " />\n");
        if (s[1] == '/') {
            size_t n = (size_t)(end - s) - 2;
            if (depth == 0 || strncmp(stack[--depth], s + 2, n) != 0) return 0;
        } else if (end[-1] != '/') {
            if (depth == 32 || name == 0) return 0;
            stack[depth++] = s + 1;
        }
        size_t quotes = 0;
        for (const char *c = s; c < end; c++) quotes += *c == '"';
        if (quotes % 2 != 0) return 0;
        s = end;
    }
    return depth == 0 ? tags : 0;
}

// Every point of every polyline lies inside the axes, or above them in the first twentieth of the
// steps. Returns how many there are.
enum { PLOT_SPAN = PLOT_WIDTH - PLOT_LEFT - PLOT_RIGHT };

static size_t plot_points(const char *svg) {
    size_t count = 0;
    for (const char *s = svg; (s = strstr(s, "points=\"")) != NULL;) {
        double x, y, before = 0;
        int used = 0;
        for (s += 8; sscanf(s, " %lf,%lf%n", &x, &y, &used) == 2; s += used, count++) {
            CHECK(x >= PLOT_LEFT && x <= PLOT_WIDTH - PLOT_RIGHT && x >= before, "x %g", x);
            CHECK(y >= PLOT_TOP || x <= PLOT_LEFT + 0.05 * PLOT_SPAN + 0.05, "y %g at %g", y, x);
            CHECK(y <= PLOT_HEIGHT - PLOT_BOTTOM, "y %g", y);
            before = x;
        }
    }
    return count;
}

static void plots_are_well_formed_and_small(void) {
    static const struct { size_t n, every; double base, scale; } cases[] = {
        {1, 0, 5, 0}, {1, 1, 5, 0}, {2, 0, 5, 1}, {3, 1, 0, 0}, {100, 10, 2, 9}, {399, 1, 1, 1},
        {400, 1, 1, 1}, {401, 1, 1, 1}, {5000, 3, 1, 1e29}, {20000, 1, 1e15, 1e-3},
        {20000, 100, -4, 1e-9}, {5, 1, 1e30, 0}, {9, 0, 0, 1e-300}, {99, 9, 4e-5, 3e-9},
        {99, 9, -4.069e-300, 0}};
    Log l;
    Error err;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        start_over();
        CHECK(open_quietly(&l, 0, false, &err), "%s", err.text);
        CHECK(log_plot(&l, &err) && !path_exists(path("loss.svg")), "nothing to draw yet");
        for (size_t i = 1; i <= cases[k].n; i++) {
            double loss = cases[k].base + cases[k].scale * (double)(i * 7919 % 101) / 101;
            log_add(&l.train, i, loss);
            if (cases[k].every && i % cases[k].every == 0) log_add(&l.val, i, loss);
        }
        CHECK(log_plot(&l, &err), "%s", err.text);
        const char *svg = read_text("loss.svg");
        CHECK(xml_tags(svg) > 10, "case %zu: %s", k, svg);
        CHECK(strstr(svg, "nan") == NULL && strstr(svg, "inf") == NULL, "case %zu: %s", k, svg);
        CHECK(strlen(svg) < 40000, "%zu bytes", strlen(svg));
        size_t points = plot_points(svg), ticks = 0;
        CHECK(points >= 2 && points <= 1700, "case %zu: %zu points", k, points);
        for (const char *s = svg; (s = strstr(s, "class=\"grid\"")) != NULL; s++) ticks++;
        CHECK(ticks >= 2 && ticks <= 9, "case %zu: %zu ticks", k, ticks);
        for (const char *s = svg; (s = strstr(s, "class=\"axis\" d=\"M")) != NULL; s++)
            CHECK(atof(s + 17) <= PLOT_WIDTH - PLOT_RIGHT, "case %zu: %g", k, atof(s + 17));
        CHECK(strstr(svg, ">train ") && (strstr(svg, ">val ") != NULL) == (l.val.count > 0), "-");
        for (const char *name = ">train "; name != NULL; name = name[1] == 't' ? ">val " : NULL) {
            const char *legend = strstr(svg, name), *at = legend;
            while (at != NULL && strncmp(at, "x=", 2) != 0) at--;
            CHECK(at == NULL || atof(at + 3) + 7.5 * (double)strcspn(legend + 1, "<") < PLOT_WIDTH,
                  "case %zu: %.40s leaves the picture", k, legend);
        }
        CHECK(!path_exists(path("loss.svg.tmp")), "no temporary file is left");
        close_quietly(&l);
    }
}

static void the_plot_keeps_spikes_and_averages(void) {
    Log l;
    Error err;
    start_over();
    CHECK(open_quietly(&l, 0, false, &err), "%s", err.text);
    for (size_t i = 1; i <= 10000; i++) {
        bool up = i == 5003 || i == 7004, down = i == 5004 || i == 7003;  // two in one bucket
        log_add(&l.train, i, up ? 9 : down ? 0 : i % 2 ? 1 : 3);
    }
    for (size_t i = 1; i <= 1001; i++) log_add(&l.val, i, i == 1001 ? 9 : 1);
    CHECK(log_plot(&l, &err), "%s", err.text);
    const double h = PLOT_HEIGHT - PLOT_TOP - PLOT_BOTTOM;  // losses 0 .. 9 and 4 % on both sides
    const double top = PLOT_TOP + h * 0.04 / 1.08, bottom = PLOT_TOP + h * 1.04 / 1.08;
    const double two = PLOT_TOP + h * (0.04 + 7.0 / 9) / 1.08;
    const char *svg = read_text("loss.svg"), *raw = strstr(svg, "class=\"raw\" points=\"");
    const char *mean = strstr(svg, "class=\"train\" points=\"");
    const char *val = strstr(svg, "class=\"val\" points=\"");
    double x, y = 0, low = 1e9, high = 0;
    int used = 0, n = 0, spikes = 0, dips = 0;
    CHECK(raw != NULL && mean != NULL && val != NULL, "%s", svg);
    for (raw += 20; sscanf(raw, " %lf,%lf%n", &x, &y, &used) == 2; raw += used) {
        spikes += fabs(y - top) < 0.1;
        dips += fabs(y - bottom) < 0.1;
    }
    CHECK(spikes == 2 && dips == 2, "%d spikes and %d dips are drawn", spikes, dips);
    for (val += 20; sscanf(val, " %lf,%lf%n", &x, &y, &used) == 2; val += used) continue;
    CHECK(fabs(y - top) < 0.1, "the last validation loss is drawn");
    for (mean += 22; sscanf(mean, " %lf,%lf%n", &x, &y, &used) == 2; mean += used, n++) {
        if (n < 2) continue;  // fewer values
        low = fmin(low, y);
        high = fmax(high, y);
    }
    CHECK(n == 400 && low > two - 8 && high < two + 8, "mean %g .. %g, not %g", low, high, two);
    close_quietly(&l);
    CHECK(svg_tick(10, 8) == 2 && svg_tick(8, 8) == 1 && svg_tick(0.9, 8) == 0.2, "ticks");
    CHECK(svg_tick(35, 8) == 5 && svg_tick(100, 8) == 20 && svg_tick(1000, 8) == 200, "ticks");
}

// A run whose loss falls from 5.5 to 1.5, most of it in the first 60 steps, with a last loss that
// lies apart.
static void the_plot_is_of_what_is_learned(void) {
    Log l;
    Error err;
    start_over();
    CHECK(open_quietly(&l, 0, false, &err), "%s", err.text);
    for (size_t i = 1; i <= 1200; i++)
        log_add(&l.train, i,
                i == 1200 ? 1.1 : i <= 60 ? 5.5 - (double)i / 24 : 3 - (double)i / 800);
    CHECK(log_plot(&l, &err), "%s", err.text);
    const char *svg = read_text("loss.svg"), *mean = strstr(svg, "class=\"train\" points=\"");
    double x, y = 0, late = 0, mean_value = 0;
    int used = 0;
    CHECK(strstr(svg, ">loss over 1200 steps, from 5.458 at step 1<") != NULL, "title");
    for (size_t i = 1200 - 24; i <= 1200; i++) mean_value += l.train.points[i - 1].y / 25;
    char legend[64];
    snprintf(legend, sizeof legend, ">train %.4g (mean)<", mean_value);
    CHECK(strstr(svg, legend) != NULL && fabs(mean_value - 1.1) > 0.3, "%s", legend);
    for (mean += 22; sscanf(mean, " %lf,%lf%n", &x, &y, &used) == 2; mean += used)
        if (late == 0 && x > PLOT_LEFT + 0.08 * PLOT_SPAN) late = y;
    CHECK(late < PLOT_TOP + 40, "after a twelfth of the steps, at %g of %d", late, PLOT_HEIGHT);
    CHECK(strstr(svg, ">2.5<") != NULL && strstr(svg, ">4<") == NULL, "ticks");
    CHECK(y < PLOT_HEIGHT - PLOT_BOTTOM - 60, "the curve ends in the mean, not at %g", y);
    close_quietly(&l);
}

int main(void) {
    if (mkdtemp(dir) == NULL) return 1;
    RUN(lines_are_exact_json);
    RUN(a_run_that_begins_again_has_no_lines);
    RUN(resuming_cuts_the_log_back);
    RUN(a_resumed_log_equals_an_uninterrupted_one);
    RUN(a_full_disk_costs_lines);
    RUN(a_full_disk_keeps_the_old_files);
    RUN(a_directory_that_cannot_be_used_is_reported);
    RUN(plain_lines_say_everything);
    RUN(a_terminal_shows_progress_in_place);
    RUN(plots_are_well_formed_and_small);
    RUN(the_plot_keeps_spikes_and_averages);
    RUN(the_plot_is_of_what_is_learned);
    start_over();
    unlink(path("screen"));
    rmdir(dir);
    return test_summary();
}
