// test_trace.c: the trace file is valid JSON at every flush and says what happened; a disk that is
// full is one clear error; what is busy and the counters of a step against lists made by hand; and
// the picture that dev/timeline.c draws of it.
#include "../../../tide/plan/trace.h"
#include <sys/wait.h>
#define main timeline_main
#include "../../timeline.c"
#undef main
#include "../files.h"
#include "../refused.h"
#include "../test.h"
#include "../xml.h"

static char *path;  // of a trace

static void span(TraceFile *t, int row, const char *name, size_t number, double begin, double end,
                 size_t bytes) {
    const TraceSpan s = {begin, end, row, name, number, bytes};
    trace_span(t, &s);
}

static void counters_of_a_step(void) {
    const TraceSpan s[] = {
        {0, 2, ROW_COMPUTE, "forward", 0, 0},      {2, 2.5, ROW_COMPUTE, "wait", 1, 0},
        {2.5, 4, ROW_COMPUTE, "forward", 1, 0},    {3.75, 4.25, ROW_COMPUTE, "wait", 1, 0},
        {5, 8, ROW_COMPUTE, "backward", 1, 0},     {7, 9, ROW_LEAVE, "leave", 1, 64},
        {9, 12, ROW_LEAVE, "norm", 0, 0},          {8.5, 10, ROW_FETCH, "fetch", 0, 64},
        {9.5, 11, ROW_FETCH, "fetch", 1, 64},      {0, 99, ROW_UPDATE, "wait", 0, 0},
        {10, 10.25, ROW_UPDATE, "update", 0, 0},   {10.25, 12.5, ROW_FLUSH, "flush", 0, 64},
        {6, 7, ROW_HOST, "accumulate", 2, 0},      {9, 13, ROW_HOST, "update", 2, 0},
        {12, 14, ROW_BACK, "back", 2, 32},         {13, 20, ROW_HOST, "save", 2, 0}};
    TimelineStep c = {.step = 7};
    const double *busy = c.busy;
    trace_counters(&c, s, sizeof s / sizeof *s);
    // in: 8.5-11, 12-14; out: 7-9, 10.25-12.5; "norm" copies nothing
    CHECK(busy[USES_DUPLEX] == 0.5 + 0.75 + 0.5, "%g", busy[USES_DUPLEX]);
    CHECK(busy[USES_H2D] == 4.5 && busy[USES_D2H] == 4.25, "%g %g", busy[USES_H2D], busy[USES_D2H]);
    // 0-2, 2.5-4, 5-8, 10-10.25: waits are none; 6-7, 9-20
    CHECK(busy[USES_GPU] == 6.75 && busy[USES_CPU] == 12, "%g %g", busy[USES_GPU], busy[USES_CPU]);
    CHECK(c.stalled == 1, "%g", c.stalled);  // not those of other rows
    CHECK(c.stalled_backward == 0.5, "%g", c.stalled_backward);  // 3.75-4.25, and backward follows
    CHECK(c.update_seconds == 5, "%g", c.update_seconds);  // 9-14
    CHECK(c.forward == 3.5 && c.backward == 3, "%g %g", c.forward, c.backward);
    CHECK(c.step == 7, "not its business");
    trace_counters(&c, s, 6);  // no update
    CHECK(c.update_seconds == 0 && busy[USES_DUPLEX] == 0, "%g", c.update_seconds);
    // in any order of the list; a wait that nothing follows is not backward's
    const TraceSpan waits[] = {
        {3, 4, ROW_COMPUTE, "backward", 0, 0}, {6, 7, ROW_COMPUTE, "wait", 0, 0},
        {1, 2, ROW_COMPUTE, "forward", 0, 0},  {2, 3, ROW_COMPUTE, "wait", 0, 0},
        {7, 8, ROW_LEAVE, "backward", 0, 0},   {0, 1, ROW_COMPUTE, "wait", 0, 0}};
    trace_counters(&c, waits, sizeof waits / sizeof *waits);
    CHECK(c.stalled == 3 && c.stalled_backward == 1, "%g %g", c.stalled, c.stalled_backward);
}

// Is the trace JSON, and does it end with these lines, in which ' stands for "?
static bool ends_with(const char *lines) {
    size_t n;
    char *want = quoted(lines), *text = file_read(path, &n, &err);
    Json *json = json_read(path, &err);
    const bool ends = n > strlen(want) && strcmp(text + n - strlen(want), want) == 0;
    const bool good = ends && json != NULL;
    if (!good) printf("  %s\n", text);
    free(want);
    free(text);
    json_free(json);
    return good;
}

static void file_says_what_happened(void) {
    TraceFile t;
    CHECK(trace_open(&t, path, &err), "%s", err.text);
    trace_row(&t, 3, "a row: \xc3\xa9");
    t.step = 12;
    span(&t, 3, "fetch", 5, 1.25, 1.5, 1000000000);
    CHECK(trace_flush(&t, &err), "%s", err.text);
    CHECK(ends_with(
        "{'ph':'M','pid':0,'name':'thread_name','tid':3,'args':{'name':'a row: \xc3\xa9'}},\n"
        "{'ph':'M','pid':0,'name':'thread_sort_index','tid':3,'args':{'sort_index':3}},\n"
        "{'ph':'X','pid':0,'name':'fetch','tid':3,'ts':1250000.000,'dur':250000.000,'args':{"
        "'step':12,'number':5,'bytes':1000000000,'GB/s':4}}\n]}\n"), "at a flush");
    span(&t, 0, "forward", TRACE_NONE, 2, 2, 7);
    span(&t, 0, "backwards", 0, 2, 1, 0);  // never negative
    // An hour in, what touches after nanoseconds still touches, and the digits are there.
    span(&t, 0, "a", TRACE_NONE, 3600.0000001234, 3600.0000005678, 0);
    span(&t, 0, "b", TRACE_NONE, 3600.0000005678, 3600.0000009, 0);
    trace_counter(&t, "memory", "weights", 0.5, 8589934593.0);
    CHECK(trace_flush(&t, &err) && trace_close(&t, &err), "%s", err.text);
    CHECK(ends_with("'GB/s':4}},\n"
        "{'ph':'X','pid':0,'name':'forward','tid':0,'ts':2000000.000,'dur':0.000,'args':{"
        "'step':12,'bytes':7}},\n"
        "{'ph':'X','pid':0,'name':'backwards','tid':0,'ts':2000000.000,'dur':0.000,'args':{"
        "'step':12,'number':0}},\n"
        "{'ph':'X','pid':0,'name':'a','tid':0,'ts':3600000000.123,'dur':0.445,'args':{"
        "'step':12}},\n"
        "{'ph':'X','pid':0,'name':'b','tid':0,'ts':3600000000.568,'dur':0.332,'args':{"
        "'step':12}},\n"
        "{'ph':'C','pid':0,'name':'memory','ts':500000.000,'args':{'weights':8589934593}}\n]}\n"),
        "at the end");
}

static void unwritable_is_an_error(void) {
    TraceFile t;
    CHECK(!trace_open(&t, "/no/such/directory/trace.json", &err), "opened");
    CHECK(strcmp(err.text, "cannot write /no/such/directory/trace.json: No such file or directory")
          == 0, "%s", err.text);
    if (access("/dev/full", W_OK) != 0) SKIP("no /dev/full here");
    for (int how = 0; how < 3; how++) {  // found at a flush, at the close, or in between
        CHECK(trace_open(&t, "/dev/full", &err), "%s", err.text);
        for (int i = 0; i < (how == 2 ? 1000 : 1); i++) span(&t, 0, "forward", 1, 0, 1, 0);
        if (how == 0) CHECK(!trace_flush(&t, &err), "flushed");
        CHECK(!trace_close(&t, &err), "closed");
        CHECK(strcmp(err.text, "cannot write /dev/full: No space left on device") == 0, "%d: %s",
              how, err.text);
    }
}

// A pipe cannot go back: it gets one end.
static void pipe_gets_one_end(void) {
    char text[4096], *fifo = in_base("fifo");
    CHECK(mkfifo(fifo, 0600) == 0, "mkfifo");
    FILE *keep = fopen(fifo, "r+"), *in = fopen(fifo, "r");
    TraceFile t;
    CHECK(trace_open(&t, fifo, &err), "%s", err.text);
    span(&t, 0, "forward", 1, 0, 1, 0);
    CHECK(trace_flush(&t, &err), "%s", err.text);
    span(&t, 0, "forward", 2, 1, 2, 0);
    CHECK(trace_close(&t, &err), "%s", err.text);
    fclose(keep);
    const size_t n = fread(text, 1, sizeof text, in);
    Json *root = json_parse(text, n, &err);
    CHECK(root != NULL && json_get(root, "traceEvents")->count == 2 * ROWS + 3, "%s", err.text);
    json_free(root);
    fclose(in);
}

// ---------------------------------------------------------------------------------------------
// The picture

static char *picture, *said;
static bool full;  // is the disk

// Writes JSON in which ' stands for ".
static void put_json(const char *text) {
    char *json = quoted(text);
    put_text(path, json);
    free(json);
}

// Runs build/timeline with these arguments, up to a NULL; its outputs are then picture and said, of
// which each " is a '.
static int timeline(const char *first, ...) {
    char *argv[16] = {(char *)"timeline"};
    int argc = 1, status = 0;
    size_t n;
    va_list args;
    va_start(args, first);
    for (const char *s = first; s != NULL; s = va_arg(args, const char *)) argv[argc++] = (char *)s;
    va_end(args);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        if (freopen(full ? "/dev/full" : in_base("picture"), "w", stdout) == NULL
            || freopen(in_base("said"), "w", stderr) == NULL) abort();
        exit(timeline_main(argc, argv));
    }
    waitpid(child, &status, 0);
    free(picture);
    free(said);
    picture = file_read(in_base("picture"), &n, &err);
    said = file_read(in_base("said"), &n, &err);
    for (char *c = said; *c != '\0'; c++) if (*c == '"') *c = '\'';
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Does it draw a picture, with these arguments?
#define DRAWS(...) (timeline(path, __VA_ARGS__) == 0 && xml_tags(picture) > 0 \
                    && strncmp(picture, "<svg ", 5) == 0)

// Does it say only this line, or one with these words?
static bool one_line(const char *words) {
    return strstr(said, words) != NULL && strchr(said, '\n') == said + strlen(said) - 1;
}

static bool has(const char *part) { return strstr(picture, part) != NULL; }

static int count(const char *part) {
    int n = 0;
    for (const char *s = picture; (s = strstr(s, part)) != NULL; s++) n++;
    return n;
}

static TraceFile trace_begin(void) {
    TraceFile t;
    if (!trace_open(&t, path, &err)) die("%s", err.text);
    t.step = 1;
    return t;
}

static void trace_end(TraceFile *t) {
    if (!trace_close(t, &err)) die("%s", err.text);
}

static void picture_is_to_scale(void) {
    TraceFile t = trace_begin();
    size_t n;
    trace_row(&t, ROW_COMPUTE, "<&\\\"a row with a name that is much too long to be shown");
    span(&t, ROW_COMPUTE, "forward", 0, 10, 11, 0);
    span(&t, ROW_COMPUTE, "forward", 1, 11, 12, 0);
    span(&t, ROW_COMPUTE, "backward", 31, 12, 14, 0);
    t.step = 2;
    span(&t, ROW_HOST, "update", 77, 12, 13, 0);
    span(&t, ROW_UPDATE, "update", 2, 13, 13.0005, 0);
    span(&t, ROW_HOST, "else", TRACE_NONE, 15, 18, 0);
    trace_end(&t);
    CHECK(DRAWS(NULL), "%s", said);  // 10 s .. 18 s
    CHECK(has("d=\"M196.0 41h96.9v20h-96.9zM293.5 41h96.9v20h-96.9z\""), "%s", picture);
    CHECK(has("class=\"k1\" d=\"M391.0 41h194.4v20h-194.4z\""), "backward");
    CHECK(has("class=\"k7\" d=\"M391.0 93h96.9v20h-96.9z\""), "update on the CPU: third row");
    CHECK(has("class=\"k6\" d=\"M488.5 67h0.5v20h-0.5z\""), "a narrow one can be seen");
    CHECK(has(">0</text>\n") && has(">1</text>\n") && has(">31</text>\n"), "numbers");
    CHECK(has("class=\"n t1\" x=\"488.2\""), "in the middle");
    CHECK(count("class=\"n t") == 4, "%d numbers", count("class=\"n t"));  // 2 does not fit twice
    CHECK(has(">0 s</text>") && has(">8</text>") && !has(">9</text>"), "axis");
    CHECK(has(">&lt;&amp;\"a row with a name that is...</text>"), "row");
    CHECK(!has(">fetch"), "rows without spans are left out");
    CHECK(has(">other</text>") && !has(">waiting</text>") && !has("pale\" d"), "legend");
    // step 1 is 10 s .. 14 s; of the others only what falls into it, paler
    CHECK(DRAWS("--step", "1", NULL), "%s", said);
    CHECK(has("class=\"k0\" d=\"M196.0 41h194.4v20h-194.4zM391.0 41h"), "%s", picture);
    CHECK(has("class=\"k7 pale\" d=\"M586.0 93h194.4") && !has(">77</text>"), "paler");
    CHECK(!has(">other</text>") && has(">4</text>") && !has(">5</text>"), "the rest is out");
    CHECK(DRAWS("--from", "10.5", "--to", "11.3", NULL), "%s", said);
    CHECK(has("M196.0 41h486.9v20h-486.9zM683.5 41h291.9"), "cut at both ends: %s", picture);
    CHECK(has(">0 ms</text>") && has(">800</text>") && !has(">backward</text>"), "in ms");
    CHECK(timeline(path, "--to", "10.0005", NULL) == 0 && has(">0 &#181;s</text>"), "%s", said);
    CHECK(timeline(path, "-o", in_base("x.svg"), "--title",
                   "</text> & \x01\xff\xc3\xa9\xef\xbf\xbf", NULL) == 0
          && picture[0] == '\0', "%s", said);
    free(picture);
    picture = file_read(in_base("x.svg"), &n, &err);
    CHECK(xml_tags(picture) > 0 && has(">&lt;/text&gt; &amp; ??\xc3\xa9?</text>"), "%s", picture);
}

// Events come in any order; rows by their numbers, spans by their time. Narrow neighbours are one.
static void order_does_not_matter(void) {
    put_json(
        "[{'ph':'X','name':'fetch','tid':7,'ts':9.5,'dur':0.001},"
        "{'ph':'X','name':'fetch','tid':7,'ts':0.004,'dur':0.001},"
        "{'ph':'X','name':'fetch','tid':7,'ts':0,'dur':0.001},"
        "{'ph':'X','name':'flush','tid':2,'ts':0,'dur':10},"
        // a wide one between two narrow ones stays by itself
        "{'ph':'X','name':'wait','tid':2,'ts':5,'dur':0.001},"
        "{'ph':'X','name':'wait','tid':2,'ts':7.001,'dur':0.001},"
        "{'ph':'X','name':'wait','tid':2,'ts':5.001,'dur':2}]");
    CHECK(DRAWS(NULL), "%s", said);
    CHECK(has("class=\"k8\" d=\"M196.0 41h779.4v"), "row 2 is the first: %s", picture);
    CHECK(has("class=\"k5\" d=\"M196.0 67h0.8v20h-0.8zM937.0 67h0.5v20h-0.5z\""), "%s", picture);
    CHECK(has("class=\"k12\" d=\"M586.0 41h0.5v20h-0.5zM586.1 41h155.4v20h-155.4zM742.1 41h0.5v"),
          "%s", picture);
}

// What counters say and spans hold. 64 bytes are 1.4 of the panel's 140 pixels, a second is 78: 196
// is 0, 274 is 1.
static void memory_is_stacked(void) {
    TraceFile t = trace_begin();
    trace_counter(&t, "memory", "state", -2, 9e9);  // before the picture, and over
    trace_counter(&t, "memory", "state", -1, 0);
    trace_counter(&t, "memory", "less", 0.4, -1024);  // than nothing: nothing
    trace_counter(&t, "memory", "weights", 0, 64 * 20);
    trace_counter(&t, "memory", "state", 7.5, 64 * 60);  // a peak of less than a pixel
    trace_counter(&t, "memory", "state", 7.500001, 64 * 10);
    trace_counter(&t, "memory", "state", 8, 512);  // at one moment the last one holds
    trace_counter(&t, "memory", "state", 8, 64 * 20);
    trace_counter(&t, "memory", "state", 10.5, 9e9);  // after it
    trace_counter(&t, "host & disk", "weights", 1, 3 << 20);
    t.step = 1;
    span(&t, ROW_COMPUTE, "forward", 0, 0, 0.5, 0);      // embeddings
    span(&t, ROW_COMPUTE, "forward", 1, 1, 1.5, 64 * 30);
    span(&t, ROW_COMPUTE, "forward", 2, 1.5, 2, 64 * 30);
    span(&t, ROW_COMPUTE, "evaluate", 1, 2, 2, 64 * 99);
    span(&t, ROW_COMPUTE, "backward", 2, 2, 2.2, 0);     // computes again
    span(&t, ROW_COMPUTE, "backward", 1, 3, 4, 64 * 20);  // when the other has ended, in any order
    span(&t, ROW_COMPUTE, "backward", 2, 2.5, 3, 64 * 20);
    span(&t, ROW_LEAVE, "leave", 2, 3, 4.5, 64 * 15);    // a quarter of it waits
    span(&t, ROW_LEAVE, "leave", 1, 4.5, 5, 64 * 40);    // in a wider type: no less than nothing
    span(&t, ROW_COMPUTE, "forward", 2, 5, 5, 64 * 30);  // the next micro-batch's: the sum stays
    span(&t, ROW_COMPUTE, "backward", 2, 5.2, 5.5, 64 * 20);
    span(&t, ROW_FETCH, "fetch", 7, 6, 6.2, 64 * 25);
    span(&t, ROW_FETCH, "fetch", 7, 6.2, 6.5, 64 * 5);   // its gradient, into the same slot
    span(&t, ROW_FLUSH, "flush", 7, 6.5, 7, 64 * 25);
    t.step = 2;
    span(&t, ROW_COMPUTE, "forward", 2, 9, 10, 64 * 30);
    trace_end(&t);
    CHECK(DRAWS("--memory", NULL), "%s", said);
    CHECK(has(">peak 6.25 KiB</text>") && has(">peak 3 MiB</text>")
          && count(">peak ") == 2, "%s", picture);
    CHECK(has(">host &amp; disk</text>"), "second counter");
    CHECK(!has(">less</text>") && count(">weights</text>") == 2 && has("class=\"c5\""), "legends");
    CHECK(has("class=\"c2\" d=\"M196 336H196V308.0H274V266.0H313V224.0H431V266.0H509V308.0"
              "H586V266.0H626V308.0H898V266.0H976V336z\""), "activations: %s", picture);
    CHECK(has("class=\"c3\" d=\"M196 336H196V308.0H274V266.0H313V224.0H391V196.0H431V210.0"
              "H509V252.0H548V273.0H586V259.0H601V238.0H626V280.0H898V266.0H976V336z\""),
          "gradients on them: %s", picture);
    CHECK(has("V280.0H664V245.0H743V280.0H898V266.0H976V336z\""), "a visitor: %s", picture);
    CHECK(has("V280.0H781V196.0H782V266.0H820V252.0H898V238.0H976V336z\""), "state: %s", picture);
    CHECK(strstr(picture, "\"c3\" d=\"M196 336") < strstr(picture, "\"c2\" d=\"M196 336"),
          "the higher one is behind");
    CHECK(timeline(path, NULL) == 0 && !has("peak"), "only with --memory");
    t = trace_begin();  // without a backward pass, what is fetched is no state
    trace_counter(&t, "memory", "weights", 0, 64);
    span(&t, ROW_FETCH, "fetch", 0, 0, 1, 64);
    trace_end(&t);
    CHECK(timeline(path, "--memory", NULL) == 0 && has("weights") && !has("visiting"), "%s", said);
}

static void bad_input_is_one_line(void) {
    static const struct { const char *text, *why; } bad[] = {
        {"{'traceEvents':[", "JSON, line 1, byte 16: expected a value"},
        {"{}", "no 'traceEvents' in it: it is no trace of --trace"},
        {"[]", "no spans in it"}, {"[{'ph':'M'},7,null,{'ph':1}]", "no spans in it"},
        {"[{'ph':'X','ts':1,'dur':1}]", "a span or a row has no 'tid'"},
        {"[{'ph':'X','tid':1,'dur':1}]", "a span has no 'ts' or no 'dur'"},
        {"[{'ph':'X','tid':1,'ts':1,'dur':-1}]", "a span has no 'ts' or no 'dur'"},
        {"[{'ph':'X','tid':1,'ts':1,'dur':5e-324}]",
         "nothing between 1e-06 s and 1e-06 s; it goes from 1e-06 s to 1e-06 s"},
        {"[{'ph':'X','tid':1,'ts':1e300,'dur':1}]", "a span has no 'ts' or no 'dur'"},
        {"[{'ph':'C','name':'m','ts':1,'args':{'a':1e300}}]", "counter 'm' is no number"},
        {"[{'ph':'C','name':'m'}]", "a counter without 'ts'"},
        {"[{'ph':'C','name':'m','ts':1,'args':{'a':'b'}}]", "counter 'm' is no number"}};
    static const struct { const char *option, *value, *why; } options[] = {
        {"--step", "1", "no spans of step 1"}, {"--from", "1", "nothing between"},
        {"--from", "0x1", "is not a number"}, {"--step", "1.5", "is not a whole number"},
        {"--step", "-3", "--step -3: must be 0 to"}, {"--to", "1e999", "must be"},
        {"--memory", NULL, "no counters"},
        {"--huh", NULL, "no such option: --huh"}, {"--title", NULL, "--title wants a value"},
        {"/a", NULL, "one file too many"},
        {"-o", "/no/such/x.svg", "-o /no/such/x.svg: No such file"}};
    char want[512];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_json(bad[i].text);
        snprintf(want, sizeof want, "tide: %s: %s\n", path, bad[i].why);
        CHECK(timeline(path, NULL) == 2 && strcmp(said, want) == 0, "%zu: %s", i, said);
    }
    put_json("[{'ph':'X','tid':1,'ts':1,'dur':9}]");
    CHECK(DRAWS(NULL), "%s", said);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        CHECK(timeline(path, options[i].option, options[i].value, NULL) == 2
              && one_line(options[i].why), "%zu: %s", i, said);
    CHECK(timeline(path, "--step", "1", "--to", "1", NULL) == 2 && one_line("either"), "%s", said);
    full = access("/dev/full", W_OK) == 0;
    if (full) CHECK(timeline(path, NULL) == 1 && one_line("No space left"), "%s", said);
    full = false;
    TraceFile t = trace_begin();
    span(&t, 0, "forward", 0, 0, 1, 0);
    for (char name[2] = "a"; *name <= 'a' + MAX_CLASSES; name[0]++)
        trace_counter(&t, "memory", name, 0, 1);
    trace_end(&t);
    CHECK(timeline(path, NULL) == 2 && one_line("more than 16 classes"), "%s", said);
    t = trace_begin();
    for (int row = 0; row <= MAX_ROWS; row++) span(&t, row, "forward", 0, 0, 1, 0);
    trace_end(&t);
    CHECK(timeline(path, NULL) == 2 && one_line("more than 64 rows"), "%s", said);
    CHECK(timeline("/no/such", NULL) == 2 && one_line("No such file"), "%s", said);
    CHECK(timeline(NULL) == 2 && strstr(said, "usage"), "%s", said);
    CHECK(timeline("--help", NULL) == 0 && has("usage: timeline"), "help");
}

int main(void) {
    base_new("trace");
    path = in_base("trace.json");
    RUN(counters_of_a_step);
    RUN(file_says_what_happened);
    RUN(unwritable_is_an_error);
    RUN(pipe_gets_one_end);
    RUN(picture_is_to_scale);
    RUN(order_does_not_matter);
    RUN(memory_is_stacked);
    RUN(bad_input_is_one_line);
    remove_tree(base);
    return test_summary();
}
