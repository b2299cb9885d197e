// tensorboard.c: a run's log.jsonl as TensorBoard's event file; --help says the rest.
#include "tool.h"
#include "../tide/files/json.h"

static const char help[] =
    "usage: tensorboard DIR ... [--follow]\n"
    "\n"
    "Writes the numbers of DIR/log.jsonl of each run, in doc/logs.md, to\n"
    "DIR/events.out.tfevents.0.tide, anew; \"tensorboard --logdir\" shows the directory above.\n"
    "Members of an object are its name, a slash, and theirs; false and true are 0 and 1. The log\n"
    "has no time of day: its last line is given that of the file, and those before it are as far\n"
    "from it as their steps took.\n"
    "\n"
    "  --follow    goes on as long as it is let, and adds what the logs get: every second\n"
    "\n"
    "exit code: 0; 1 if a file cannot be written; 2 for a log that cannot be read\n";

// ---------------------------------------------------------------------------------------------
// The file: records of TensorFlow's TFRecord format (length, its checksum, data, its checksum, all
// little-endian), whose data is a message Event in the encoding of Protocol Buffers:
//     Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; }
//     Summary { repeated Value value = 1; }    Value { string tag = 1; float simple_value = 2; }

typedef struct { size_t n; unsigned char bytes[16384]; } Message;

static void put(Message *m, const void *data, size_t n) {
    if (m->n + n > sizeof m->bytes) die("a line of the log has too many numbers");
    memcpy(m->bytes + m->n, data, n);
    m->n += n;
}

static void put_varint(Message *m, uint64_t x) {
    for (; x >= 128; x >>= 7) put(m, &(unsigned char){(unsigned char)(x | 128)}, 1);
    put(m, &(unsigned char){(unsigned char)x}, 1);
}

// Fields: a number and a wire type, then the value. (The machine is little-endian, too.)
enum { VARINT, FIXED64, BYTES, FIXED32 = 5 };
static void put_field(Message *m, int field, int type) {
    put_varint(m, (uint64_t)(field << 3 | type));
}

static void put_double(Message *m, int field, double x) {
    put_field(m, field, FIXED64);
    put(m, &x, 8);
}

static void put_float(Message *m, int field, float x) {
    put_field(m, field, FIXED32);
    put(m, &x, 4);
}

static void put_bytes(Message *m, int field, const void *data, size_t n) {
    put_field(m, field, BYTES);
    put_varint(m, n);
    put(m, data, n);
}

// CRC-32C (Castagnoli), turned and shifted as TFRecord has it.
static uint32_t masked_crc(const unsigned char *data, size_t n) {
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < n; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (0x82f63b78 & (0 - (crc & 1)));
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

static void write_record(FILE *f, const Message *m) {
    const uint64_t length = m->n;
    const uint32_t check = masked_crc((const unsigned char *)&length, 8);
    const uint32_t data_check = masked_crc(m->bytes, m->n);
    fwrite(&length, 8, 1, f);
    fwrite(&check, 4, 1, f);
    fwrite(m->bytes, 1, m->n, f);
    fwrite(&data_check, 4, 1, f);
}

// ---------------------------------------------------------------------------------------------
// A run

typedef struct {
    char log[PATH_MAX], path[PATH_MAX];
    FILE *events;        // NULL before it is there, whole
    char *text;          // of the log, and how much of it is in the file
    size_t done;
    double begin;        // time of day at which the run began
    double seconds;      // since then, by the steps
} Events;

// Adds x, a member of an object, to the summary: itself if it is a number, else its members.
static void put_member(Message *summary, const char *object, const Json *x) {
    char tag[256];
    snprintf(tag, sizeof tag, "%s%s%s", object, *object != '\0' ? "/" : "", x->key);
    if (x->type == JSON_OBJECT && *object == '\0') {
        for (const Json *y = x->child; y != NULL; y = y->next) put_member(summary, x->key, y);
    } else if (x->type == JSON_NUMBER || x->type == JSON_TRUE || x->type == JSON_FALSE) {
        Message value = {0, {0}};
        put_bytes(&value, 1, tag, strlen(tag));
        put_float(&value, 2, x->type == JSON_NUMBER ? (float)x->number : x->type == JSON_TRUE);
        put_bytes(summary, 1, value.bytes, value.n);
    }
}

// A line of the log, with its newline, unless it is damaged. Adds to *seconds what its step took.
static Json *line_read(const char *line, const char *end, size_t *step, double *seconds) {
    Error ignored;
    Json *x = json_parse(line, (size_t)(end - line), &ignored);
    if (!json_get_size(x, "step", step)) {
        json_free(x);
        return NULL;
    }
    const Json *ms = json_get(x, "ms");
    if (ms != NULL && ms->type == JSON_NUMBER) *seconds += 1e-3 * ms->number;
    return x;
}

static void write_line(Events *e, const Json *line, size_t step) {
    Message event = {0, {0}}, summary = {0, {0}};
    put_double(&event, 1, e->begin + e->seconds);
    put_field(&event, 2, VARINT);
    put_varint(&event, step);
    for (const Json *x = line->child; x != NULL; x = x->next)
        if (strcmp(x->key, "step") != 0) put_member(&summary, "", x);
    put_bytes(&event, 5, summary.bytes, summary.n);
    write_record(e->events, &event);
}

// Begins the file, whose first record names the format. The log was last written at `time`. An
// older file stays until this one is whole.
static void begin(Events *e, const char *text, double time) {
    static const char version[] = "brain.Event:2";
    Message event = {0, {0}};
    size_t step;
    double seconds = 0;
    for (const char *end; (end = strchr(text, '\n')) != NULL; text = end + 1)
        json_free(line_read(text, end, &step, &seconds));
    if (e->events != NULL) fclose(e->events);
    e->events = tool_open(e->path);
    e->done = 0;
    e->seconds = 0;
    e->begin = time - seconds;
    put_double(&event, 1, e->begin);
    put_bytes(&event, 3, version, sizeof version - 1);
    write_record(e->events, &event);
}

// Adds what the log got since the last time. One that was cut back, by a run that was resumed or is
// another, is written anew. False and the reason in err if it cannot be read, or has no line: then
// nothing is written.
static bool follow(Events *e, Error *err) {
    struct stat s;
    size_t n, step;
    char *text = file_read(e->log, &n, err);
    if (text == NULL) return false;
    if (strchr(text, '\n') == NULL) {
        free(text);
        return error_set(err, "%s: no line in it", e->log);
    }
    const bool anew = e->events == NULL || n < e->done || memcmp(text, e->text, e->done) != 0;
    if (stat(e->log, &s) != 0) s.st_mtime = time(NULL);
    if (anew) begin(e, text, (double)s.st_mtime);
    const char *line = text + e->done;
    for (const char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        Json *x = line_read(line, end, &step, &e->seconds);
        if (x != NULL) write_line(e, x, step);
        json_free(x);
    }
    free(e->text);
    e->text = text;
    e->done = (size_t)(line - text);
    if (anew) {
        tool_close(e->events, e->path);
        e->events = fopen(e->path, "ab");
    }
    if (e->events == NULL || fflush(e->events) != 0 || ferror(e->events))
        fail("cannot write %s: %s", e->path, strerror(errno));
    return true;
}

int main(int argc, char **argv) {
    Events *runs = ALLOC(Events, argc, "runs");
    int count = 0;
    bool goes_on = false;
    Error err;
    program_begin();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) { fputs(help, stdout); return 0; }
        if (strcmp(argv[i], "--follow") == 0) { goes_on = true; continue; }
        if (*argv[i] == '-') die("no such option: %s (see --help)", argv[i]);
        if (path_exists(argv[i]) && !path_is_directory(argv[i]))
            die("%s is no folder: name the one that a run's log.jsonl is in", argv[i]);
        path_join(runs[count].log, argv[i], "log.jsonl");
        path_join(runs[count++].path, argv[i], "events.out.tfevents.0.tide");
    }
    if (count == 0) die("usage: tensorboard DIR ... [--follow] (see --help)");
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            tool_check("the file of events", runs[i].path, runs[j].log);
            if (i != j && (path_is_same(runs[i].log, runs[j].log)
                           || path_is_same(runs[i].path, runs[j].path)))
                die("%s and %s are the same file: name each run once", runs[i].log, runs[j].log);
        }
    for (int i = 0; i < count; i++)
        if (!follow(&runs[i], &err)) die("%s", err.text);
    while (goes_on) {
        sleep(1);
        for (int i = 0; i < count; i++) (void)follow(&runs[i], &err);  // it may be written just now
    }
    for (int i = 0; i < count; i++) {
        if (fclose(runs[i].events) != 0) fail("cannot write %s: %s", runs[i].path, strerror(errno));
        free(runs[i].text);
    }
    free(runs);
    return 0;
}
