// test_trace.c: the trace file is valid JSON at every flush and says what happened; what is busy
// and the counters of a step against a list made by hand; and the picture that dev/timeline.c draws
// of it. (What the trainer writes, and a full disk: test_timeline.cu, test_cli_offload.sh; the
// tool's files: test_tools.sh.)
#include "../../../tide/base/util.h"
#include "../files.h"
// Cuts a full disk's trace. Then the disk has room again.
static int cut_trace(int fd, off_t bytes) {
    limit_file_size(0);
    return ftruncate(fd, bytes);
}
#define ftruncate cut_trace
#include "../../../tide/plan/trace.h"
#undef ftruncate
#include <sys/wait.h>
#define main timeline_main
#include "../../timeline.c"
#undef main
#include "../refused.h"
#include "../test.h"
#include "../xml.h"

static char *path;  // of a trace

static void span(TraceFile *t, int row, const char *name, size_t number, double begin, double end,
                 size_t bytes) {
    const TraceSpan s = {begin, end, row, name, number, bytes};
    trace_span(t, &s);
}

static void counter_at(TraceFile *t, const char *name, const char *what, double seconds,
                       double value) {
    fprintf(t->file, ",\n{\"ph\":\"C\",\"pid\":0,\"name\":\"%s\",\"ts\":%.3f,\"args\":{"
            "\"%s\":%.17g}}", name, trace_microseconds(seconds), what, value);
}

// Spans are in any order. A wait is backward's if backward follows, and no work.
static void counters_of_a_step(void) {
    const TraceSpan s[] = {
        {15, 16, ROW_COMPUTE, "forward", 0, 0},    {2, 2.5, ROW_COMPUTE, "wait", 1, 0},
        {2.5, 4, ROW_COMPUTE, "forward", 1, 0},    {8, 9, ROW_COMPUTE, "wait", 1, 0},
        {3.75, 4.25, ROW_COMPUTE, "wait", 1, 0},   {4.25, 4.5, ROW_COMPUTE, "wait", 0, 0},
        {0, 2, ROW_COMPUTE, "forward", 0, 0},      {7, 9, ROW_LEAVE, "leave", 1, 64},
        {9, 12, ROW_LEAVE, "norm", 0, 0},          {8.5, 10, ROW_FETCH, "fetch", 0, 64},
        {10, 10.25, ROW_UPDATE, "update", 0, 0},   {10.25, 12.5, ROW_FLUSH, "flush", 0, 64},
        {6, 7, ROW_HOST, "accumulate", 2, 0},      {9, 13, ROW_HOST, "update", 2, 0},
        {12, 14, ROW_BACK, "back", 2, 32},         {13, 20, ROW_HOST, "save", 2, 0},
        {0, 99, ROW_UPDATE, "wait", 0, 0},         {5, 8, ROW_COMPUTE, "backward", 1, 0},
        {9.5, 11, ROW_FETCH, "fetch", 1, 64}};
    TimelineStep c = {.step = 7};
    const double *busy = c.busy;
    trace_counters(&c, s, sizeof s / sizeof *s);
    // in: 8.5-11, 12-14; out: 7-9, 10.25-12.5; "norm" copies nothing
    CHECK(busy[USES_DUPLEX] == 0.5 + 0.75 + 0.5, "%g", busy[USES_DUPLEX]);
    CHECK(busy[USES_H2D] == 4.5 && busy[USES_D2H] == 4.25, "%g %g", busy[USES_H2D], busy[USES_D2H]);
    // 0-2, 2.5-4, 5-8, 10-10.25, 15-16; 6-7, 9-20
    CHECK(busy[USES_GPU] == 7.75 && busy[USES_CPU] == 12, "%g %g", busy[USES_GPU], busy[USES_CPU]);
    CHECK(c.stalled == 2.25 && c.stalled_backward == 0.75, "%g %g", c.stalled, c.stalled_backward);
    CHECK(c.update_seconds == 5, "%g", c.update_seconds);  // 9-14
    CHECK(c.forward == 4.5 && c.backward == 3 && c.step == 7, "%g %g", c.forward, c.backward);
    trace_counters(&c, s, 6);  // no update
    CHECK(c.update_seconds == 0 && busy[USES_DUPLEX] == 0, "%g", c.update_seconds);
}

// The trace is JSON at every flush, and ends with these lines, in which ' stands for ".
static void file_says_what_happened(void) {
    TraceFile t;
    size_t n;
    CHECK(trace_open(&t, path, &err), "%s", err.text);
    t.step = 12;
    span(&t, 2, "fetch", 5, 1.25, 1.5, 1000000000);
    CHECK(trace_flush(&t, &err), "%s", err.text);
    Json *json = json_read(path, &err);
    CHECK(json != NULL, "%s", err.text);
    free(json);
    span(&t, 0, "backwards", TRACE_NONE, 2, 1, 7);  // never negative
    // An hour in, what touches after nanoseconds still touches, and the digits are there.
    span(&t, 0, "a", TRACE_NONE, 3600.0000001234, 3600.0000005678, 0);
    span(&t, 0, "b", TRACE_NONE, 3600.0000005678, 3600.0000009, 0);
    span(&t, 3, "update", 4, 1, 2, 1000);
    trace_memory(&t, "weights", 8589934593);
    CHECK(trace_close(&t, &err), "%s", err.text);
    char *text = file_read(path, &n, &err), *want = quoted(
        "{'ph':'X','pid':0,'name':'fetch','tid':2,'ts':1250000.000,'dur':250000.000,'args':{"
        "'step':12,'number':5,'bytes':1000000000,'GB/s':4}},\n"
        "{'ph':'X','pid':0,'name':'backwards','tid':0,'ts':2000000.000,'dur':0.000,'args':{"
        "'step':12,'bytes':7}},\n"
        "{'ph':'X','pid':0,'name':'a','tid':0,'ts':3600000000.123,'dur':0.445,'args':{"
        "'step':12}},\n"
        "{'ph':'X','pid':0,'name':'b','tid':0,'ts':3600000000.568,'dur':0.332,'args':{"
        "'step':12}},\n"
        "{'ph':'X','pid':0,'name':'update','tid':3,'ts':1000000.000,'dur':1000000.000,'args':{"
        "'step':12,'number':4,'bytes':1000}},\n"
        "{'ph':'C','pid':0,'name':'memory','ts':0,'args':{'weights':8589934593}}\n]}\n");
    CHECK(n > strlen(want) && strcmp(text + n - strlen(want), want) == 0, "%s", text);
    free(text);
    free(want);
    if (access("/dev/full", W_OK) != 0) return;
    CHECK(!trace_open(&t, "/dev/full", &err) && t.file == NULL
          && strstr(err.text, "cannot write /dev/full: No space") != NULL, "%s", err.text);
}

// If the disk is full, the trace ends with the events of the last flush.
static void a_full_disk_leaves_whole_steps(void) {
    TraceFile t;
    size_t n, all = 0;
    for (size_t more = 0; more < 900; more += more < 9 ? 1 : 100)
        for (int step = 0; step < 2; step++) {
            CHECK(trace_open(&t, path, &err), "%s", err.text);
            if (step == 1) span(&t, 0, "first", 1, 1, 2, 3);
            if (step == 1) CHECK(trace_flush(&t, &err), "%s", err.text);
            char *before = file_read(path, &n, &err);
            limit_file_size(n + more);
            for (int i = 0; i < 99; i++) span(&t, 0, "more", 1, 1, 2, 3);
            const bool flushed = step == 1 ? trace_flush(&t, &err) : trace_close(&t, &err);
            CHECK(!flushed && t.file == NULL && strstr(err.text, "File too large"), "%s", err.text);
            limit_file_size(0);
            char *after = file_read(path, &all, &err);
            CHECK(all == n && memcmp(before, after, n) == 0, "%zu of %zu bytes", all, n);
            free(before);
            free(after);
        }
}

// ---------------------------------------------------------------------------------------------
// The picture

static char *picture, *said;

// Runs build/timeline with the words of a line, then the trace; its outputs are then picture and
// said. Returns its exit code.
static int timeline(const char *line) {
    char *argv[16] = {(char *)"timeline"}, *words = strdup(line);
    int argc = 1, status = 0;
    size_t n;
    for (char *s = strtok(words, " "); s != NULL; s = strtok(NULL, " ")) argv[argc++] = s;
    argv[argc++] = path;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        if (freopen(in_base("picture"), "w", stdout) == NULL
            || freopen(in_base("said"), "w", stderr) == NULL) abort();
        exit(timeline_main(argc, argv));
    }
    waitpid(child, &status, 0);
    free(words);
    free(picture);
    free(said);
    picture = file_read(in_base("picture"), &n, &err);
    said = file_read(in_base("said"), &n, &err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool draws(const char *line) { return timeline(line) == 0 && xml_tags(picture) > 0; }

static bool has(const char *part) { return strstr(picture, part) != NULL; }

static TraceFile trace_begin(void) {
    TraceFile t;
    if (!trace_open(&t, path, &err)) die("%s", err.text);
    t.step = 1;
    return t;
}

static void trace_end(TraceFile *t) {
    if (!trace_close(t, &err)) die("%s", err.text);
}

// Spans may be in any order; narrow neighbours are one.
static void picture_is_to_scale(void) {
    TraceFile t = trace_begin();
    fprintf(t.file, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"tid\":%d,\"args\":{\"name\":"
            "\"<&\\\"a row with a name that is much too long to be shown\"}}", ROW_COMPUTE);
    span(&t, ROW_COMPUTE, "forward", 1, 11, 12, 0);
    span(&t, ROW_COMPUTE, "forward", 0, 10, 11, 0);
    span(&t, ROW_COMPUTE, "backward", 31, 12, 14, 0);
    t.step = 2;
    span(&t, ROW_HOST, "update", 77, 12, 13, 0);
    span(&t, ROW_UPDATE, "update", 2, 13, 13.0005, 0);
    span(&t, ROW_UPDATE, "update", 3, 13.0007, 13.001, 0);
    span(&t, ROW_HOST, "else", TRACE_NONE, 15, 18, 0);
    trace_end(&t);
    CHECK(draws(""), "%s", said);  // 10 s .. 18 s
    CHECK(has("d=\"M196.0 41h96.9v20h-96.9zM293.5 41h96.9v20h-96.9z\""), "%s", picture);
    CHECK(has("class=\"k1\" d=\"M391.0 41h194.4v20h-194.4z\""), "backward");
    CHECK(has("class=\"k7\" d=\"M391.0 93h96.9v20h-96.9z\""), "update on the CPU: third row");
    CHECK(has("class=\"k6\" d=\"M488.5 67h0.6v20h-0.6z\""), "narrow ones can be seen");
    CHECK(has(">31</text>\n") && !has("class=\"n t6"), "numbers, where they fit");
    CHECK(has(">0 s</text>") && has(">8</text>") && !has(">9</text>"), "axis");
    CHECK(has(">&lt;&amp;\"a row with a name that is...</text>"), "row");
    CHECK(!has(">fetch") && has(">other</text>") && !has(">waiting</text>"), "what is not there");
    // step 1 is 10 s .. 14 s; of the others only what falls into it, paler
    CHECK(draws("--step 1"), "%s", said);
    CHECK(has("class=\"k0\" d=\"M196.0 41h194.4v20h-194.4zM391.0 41h"), "%s", picture);
    CHECK(has("class=\"k7 pale\" d=\"M586.0 93h194.4") && !has(">77</text>"), "paler");
    CHECK(draws("--from 10.5 --to 11.3 --title \x01\xff\xc3\xa9"), "%s", said);
    CHECK(has("h486.9v20h-486.9zM683.5 67h291.9"), "cut at both ends: %s", picture);
    CHECK(has(">0 ms</text>") && has(">??\xc3\xa9</text>"), "in ms");
}

// What counters say and spans hold. 64 bytes are 1.4 of the panel's 140 pixels, a second is 78: 196
// is 0, 274 is 1.
static void memory_is_stacked(void) {
    TraceFile t = trace_begin();
    counter_at(&t, "memory", "state", -2, 9e9);  // before the picture, and over
    counter_at(&t, "memory", "state", -1, 0);
    counter_at(&t, "memory", "weights", 0, 64 * 20);
    counter_at(&t, "memory", "state", 7.5, 64 * 60);  // a peak of less than a pixel
    counter_at(&t, "memory", "state", 7.500001, 64 * 10);
    counter_at(&t, "memory", "state", 8, 64 * 20);
    counter_at(&t, "host & disk", "weights", 1, 3 << 20);
    span(&t, ROW_COMPUTE, "forward", 0, 0, 0.5, 0);      // embeddings
    span(&t, ROW_COMPUTE, "forward", 1, 1, 1.5, 64 * 30);
    span(&t, ROW_COMPUTE, "forward", 2, 1.5, 2, 64 * 30);
    span(&t, ROW_COMPUTE, "backward", 2, 2, 2.2, 0);     // computes again
    span(&t, ROW_COMPUTE, "backward", 1, 3, 4, 64 * 20);  // when the other has ended, in any order
    span(&t, ROW_COMPUTE, "backward", 2, 2.5, 3, 64 * 20);
    span(&t, ROW_LEAVE, "leave", 2, 3, 4.5, 64 * 15);    // a quarter of it waits
    span(&t, ROW_LEAVE, "leave", 1, 4.5, 5, 64 * 40);    // in a wider type: no less than nothing
    span(&t, ROW_HOST, "update", 2, 3, 3.5, 64 * 9);     // ends no gradient on the GPU
    span(&t, ROW_COMPUTE, "forward", 2, 5, 5, 64 * 30);  // the next micro-batch's: the sum stays
    span(&t, ROW_COMPUTE, "backward", 2, 5.2, 5.5, 64 * 20);
    span(&t, ROW_UPDATE, "update", 2, 7.8, 8.5, 64 * 15);  // the rest waits: a step was skipped
    span(&t, ROW_FETCH, "fetch", 7, 6, 6.2, 64 * 25);
    span(&t, ROW_FETCH, "fetch", 7, 6.2, 6.5, 64 * 5);   // its gradient, into the same slot
    span(&t, ROW_FLUSH, "flush", 7, 6.5, 7, 64 * 25);
    t.step = 2;
    span(&t, ROW_COMPUTE, "forward", 2, 9, 10, 64 * 30);
    trace_end(&t);
    CHECK(draws("--memory"), "%s", said);
    CHECK(has(">peak 6.25 KiB</text>") && has(">host &amp; disk</text>"), "%s", picture);
    CHECK(has("class=\"c2\" d=\"M196 388H196V360.0H274V318.0H313V276.0H431V318.0H509V360.0"
              "H586V318.0H626V360.0H898V318.0H976V388z\""), "activations: %s", picture);
    CHECK(has("class=\"c3\" d=\"M196 388H196V360.0H274V318.0H313V276.0H391V248.0H431V262.0"
              "H509V304.0H548V325.0H586V311.0H601V290.0H626V332.0H860V353.0H898V318.0H976V388z\""),
          "gradients on them: %s", picture);
    CHECK(has("V332.0H664V297.0H743V332.0H860V353.0H898V318.0H976V388z\""), "a visitor: %s", picture);
    CHECK(has("V332.0H781V248.0H782V318.0H820V304.0H860V325.0H898V290.0H976V388z\""), "state: %s", picture);
    CHECK(strstr(picture, "\"c3\" d=\"M196 388") < strstr(picture, "\"c2\" d=\"M196 388"),
          "the higher one is behind");
}

static void bad_input_is_one_line(void) {
    #define SPAN "{'ph':'X','tid':1,'ts':1,'dur':1}"
    static const struct { const char *line, *text, *why; } bad[] = {
        {"", "[]", "no spans in it"}, {"", "[{'ph':'M'},7,null,{'ph':1}]", "no spans in it"},
        {"", "[{'ph':'X','ts':1,'dur':1}]", "a span or a row has no \"tid\""},
        {"", "[{'ph':'X','tid':1,'ts':1,'dur':-1}]", "a span has no \"ts\" or no \"dur\""},
        {"", "[{'ph':'X','tid':1,'ts':1,'dur':5e-324}]", "nothing between"},
        {"", "[{'ph':'X','tid':1,'ts':1e300,'dur':1}]", "a span has no \"ts\" or no \"dur\""},
        {"", "[{'ph':'C','name':'m','ts':1,'args':{'a':1e300}}]", "\"m\" is no number"},
        {"--step 1", "[" SPAN "]", "no spans of step 1"},
        {"--from 1", "[" SPAN "]", "nothing between"},
        {"--memory", "[" SPAN "]", "no counters"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *json = quoted(bad[i].text);  // ' stands for "
        put_text(path, json);
        free(json);
        CHECK(timeline(bad[i].line) == 2 && strstr(said, bad[i].why) != NULL
              && strchr(said, '\n') == said + strlen(said) - 1, "%zu: %s", i, said);
    }
    TraceFile t = trace_begin();
    span(&t, 0, "forward", 0, 0, 1, 0);
    for (char name[2] = "a"; *name <= 'a' + MAX_CLASSES; name[0]++)
        counter_at(&t, "memory", name, 0, 1);
    trace_end(&t);
    CHECK(timeline("") == 2 && strstr(said, "more than 16 classes") != NULL, "%s", said);
    t = trace_begin();
    for (int row = 0; row <= MAX_ROWS; row++) span(&t, row, "forward", 0, 0, 1, 0);
    trace_end(&t);
    CHECK(timeline("") == 2 && strstr(said, "more than 64 rows") != NULL, "%s", said);
}

int main(void) {
    base_new("trace");
    path = in_base("trace.json");
    RUN(counters_of_a_step);
    RUN(file_says_what_happened);
    RUN(a_full_disk_leaves_whole_steps);
    RUN(picture_is_to_scale);
    RUN(memory_is_stacked);
    RUN(bad_input_is_one_line);
    remove_tree(base);
    return test_summary();
}
