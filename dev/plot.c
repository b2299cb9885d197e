// plot.c: a picture of a table; --help says the rest.
#include "tool.h"
#include "../tide/run/log.h"

static const char help[] =
    "usage: plot [TABLE.tsv] [-o OUT.svg] [--lines | --stack] [--title T] [--y T] [--note T]\n"
    "\n"
    "Draws a table with tabs as an SVG. Its first line names the columns: the first is what the\n"
    "rows are of, each other one a series. Cells that are no number, as \"-\", are left out. A\n"
    "series \"NAME (paper)\" has the colour of NAME, and is drawn hollow. Without a file it reads\n"
    "the standard input, without -o it writes to the standard output.\n"
    "\n"
    "  --lines    one line for each series; the rows are numbers, if all of them are\n"
    "  --stack    one bar for each row: its cells, one above the other. (Else one for each cell.)\n"
    "             What is after a space in the name of a row comes in a line of its own below\n"
    "  --title T  above the picture\n"
    "  --y T      beside the numbers: what they are, and their unit\n"
    "  --note T   below the picture\n";

enum { WIDTH = 800, HEIGHT = 470, LEFT = 64, RIGHT = 20, TOP = 76, BOTTOM = 80, MOST_ROWS = 400,
       MOST_COLUMNS = 12, PIXELS = WIDTH - LEFT - RIGHT, FLOOR = HEIGHT - BOTTOM };
static const char *const colours[] = {"#2670bf", "#d9601a", "#599a3e", "#8a5ec0", "#dcac3d",
                                      "#2a998b", "#a8446f", "#84b6ea", "#738090", "#c0563f",
                                      "#4f9fb8", "#b08549"};

typedef struct {
    char *text;
    size_t rows, columns, count;  // of numbers; how many there are
    const char *names[MOST_COLUMNS + 1], *labels[MOST_ROWS];
    double cells[MOST_ROWS][MOST_COLUMNS];  // NaN: none
    double x[MOST_ROWS], x0, x1, top;       // of --lines; the largest number
    bool numbers;                           // all labels are
} Table;

static bool is_number(const char *s, double *x) {
    char *end;
    *x = strtod(s, &end);
    return end != s && *end == '\0' && isfinite(*x);
}

// Reads it all. Cells are cut out of the text.
static void read_table(Table *t, FILE *f, const char *path, bool stack) {
    size_t n = 0, row = 0;
    for (int c; (c = fgetc(f)) != EOF;) {
        t->text = (char *)array_grow(t->text, n, 1, "the table");
        t->text[n++] = (char)c;
    }
    t->text = (char *)array_grow(t->text, n, 1, "the table");
    t->text[n] = '\0';
    if (n == 0 && !ferror(f)) die("%s is empty", path);
    const char *kind = file_kind(t->text, n);
    if (kind != NULL) die("%s is %s", path, kind);
    if (ferror(f) || strlen(t->text) != n) die("%s: not a text that can be read", path);
    t->numbers = true;
    char *lines = NULL;
    for (char *line = strtok_r(t->text, "\n", &lines); line != NULL;
         line = strtok_r(NULL, "\n", &lines), row++) {
        size_t column = 0;
        double sum = 0, *cells = row > 0 ? t->cells[row - 1] : NULL;
        if (row > MOST_ROWS) die("%s: more than %d rows", path, MOST_ROWS);
        for (char *cell = line; cell != NULL; column++) {
            char *next = strchr(cell, '\t');
            if (next != NULL) *next++ = '\0';
            if (column > MOST_COLUMNS) die("%s: more than %d series", path, MOST_COLUMNS);
            if (row == 0) t->names[column] = cell;
            else if (column == 0) t->labels[row - 1] = cell;
            else if (!is_number(cell, &cells[column - 1])) cells[column - 1] = NAN;
            if (row > 0 && column > 0 && cells[column - 1] < 0)
                die("%s: row %zu has %s, which is negative", path, row, cell);
            if (row > 0 && column > 0) {
                const double x = isnan(cells[column - 1]) ? 0 : cells[column - 1];
                t->count += !isnan(cells[column - 1]);
                sum = stack ? sum + x : x;
                t->top = fmax(t->top, sum);
            }
            cell = next;
        }
        if (row == 0) t->columns = column - 1;
        if (t->columns == 0)
            die("%s: its first line has no tab, so that it is no table: there are tabs between the "
                "cells of one", path);
        if (column - 1 != t->columns)
            die("%s: row %zu has %zu cells, and there are %zu columns", path, row, column,
                t->columns + 1);
        if (row > 0) t->numbers &= is_number(t->labels[row - 1], &t->x[row - 1]);
    }
    if (t->count == 0) die("%s: there is nothing to draw", path);
    if (t->top == 0) t->top = 1;
    t->rows = row - 1;
    t->x0 = 0;
    for (size_t i = 0; i < t->rows; i++) {
        if (!t->numbers) t->x[i] = (double)i;
        t->x0 = fmin(t->x0, t->x[i]);
        t->x1 = fmax(t->x1, t->x[i]);
    }
}

// ---------------------------------------------------------------------------------------------

static void put_text(FILE *f, double x, double y, const char *attributes, const char *text) {
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\"%s>", x, y, attributes);
    for (; *text != '\0'; text++) {
        if (*text == '<') fputs("&lt;", f);
        else if (*text == '&') fputs("&amp;", f);
        else fputc(*text, f);
    }
    fputs("</text>\n", f);
}

static double at_y(const Table *t, double y) { return FLOOR - (FLOOR - TOP) * y / t->top; }

static double at_x(const Table *t, double x) {
    return LEFT + 12 + (PIXELS - 24) * (t->x1 > t->x0 ? (x - t->x0) / (t->x1 - t->x0) : 0.5);
}

// The colour of a series, and whether it is hollow.
static int colour_of(const Table *t, size_t column, bool *hollow) {
    const char *name = t->names[column + 1], *paper = strstr(name, " (paper)");
    int colour = 0;
    *hollow = false;
    for (size_t k = 0; k < column; k++) {
        const char *other = t->names[k + 1];
        if (paper != NULL && strlen(other) == (size_t)(paper - name)
            && memcmp(other, name, (size_t)(paper - name)) == 0) {
            *hollow = true;
            return colour_of(t, k, &(bool){false});
        }
        colour += strstr(other, " (paper)") == NULL;
    }
    *hollow = paper != NULL;
    return colour % (int)(sizeof colours / sizeof *colours);
}

static void draw_bar(FILE *f, const Table *t, size_t column, double x, double width, double from,
                     double to) {
    bool hollow;
    const int colour = colour_of(t, column, &hollow);
    fprintf(f, "<rect class=\"%c%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
            hollow ? 'h' : 'k', colour, x, at_y(t, to), width, at_y(t, from) - at_y(t, to));
}

// Bars of each row: beside each other, or one above the other.
static void draw_bars(FILE *f, const Table *t, bool stack) {
    const double group = (double)PIXELS / (double)t->rows;
    const double each = fmin(0.8 * group / (stack ? 1 : (double)t->columns), 60);
    for (size_t i = 0; i < t->rows; i++) {
        const double middle = LEFT + group * ((double)i + 0.5);
        double x = middle - 0.5 * each * (stack ? 1 : (double)t->columns), sum = 0;
        for (size_t c = 0; c < t->columns; c++) {
            const double value = t->cells[i][c];
            if (!isnan(value)) draw_bar(f, t, c, x, each, sum, sum + value);
            if (stack && !isnan(value)) sum += value;
            if (!stack) x += each;
        }
        char first[128];
        snprintf(first, sizeof first, "%s", t->labels[i]);
        char *second = strchr(first, ' ');
        if (second != NULL) *second++ = '\0';
        put_text(f, middle, FLOOR + 16, " text-anchor=\"middle\"", first);
        if (second != NULL) put_text(f, middle, FLOOR + 30, " text-anchor=\"middle\"", second);
    }
}

static void draw_lines(FILE *f, const Table *t) {
    const double tick = plot_tick(t->x1 - t->x0 > 0 ? t->x1 - t->x0 : 1, 10);
    for (size_t c = 0; c < t->columns; c++) {
        bool hollow;
        const int colour = colour_of(t, c, &hollow);
        fprintf(f, "<polyline class=\"%c%d\" points=\"", hollow ? 'd' : 'l', colour);
        for (size_t i = 0; i < t->rows; i++)
            if (!isnan(t->cells[i][c]))
                fprintf(f, " %.1f,%.1f", at_x(t, t->x[i]), at_y(t, t->cells[i][c]));
        fputs("\"/>\n", f);
        for (size_t i = 0; i < t->rows && t->rows <= 40; i++)
            if (!isnan(t->cells[i][c]))
                fprintf(f, "<circle class=\"%c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>\n",
                        hollow ? 'h' : 'k', colour, at_x(t, t->x[i]), at_y(t, t->cells[i][c]));
    }
    for (size_t i = 0; i < t->rows && !t->numbers; i++)
        put_text(f, at_x(t, t->x[i]), FLOOR + 16, " text-anchor=\"middle\"", t->labels[i]);
    for (double k = ceil(t->x0 / tick); k * tick <= t->x1 && t->numbers; k++) {
        char text[32];
        snprintf(text, sizeof text, "%.6g", k * tick);
        put_text(f, at_x(t, k * tick), FLOOR + 16, " text-anchor=\"middle\"", text);
    }
}

static void draw(FILE *f, const Table *t, int kind, const char *title, const char *unit,
                 const char *note) {
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\">\n<style>\ntext{font:12px sans-serif;fill:#444} .page{fill:#fff} "
            ".grid{stroke:#8886;fill:none} .axis{stroke:#888;fill:none} .title{font-size:15px}\n"
            "polyline{fill:none;stroke-width:2}\n", WIDTH, HEIGHT, WIDTH, HEIGHT);
    for (size_t k = 0; k < sizeof colours / sizeof *colours; k++)
        fprintf(f, ".k%zu{fill:%s} .l%zu{stroke:%s} "
                ".h%zu{fill:none;stroke:%s;stroke-dasharray:3 2} .d%zu{stroke:%s;stroke-dasharray:5 4}\n", k, colours[k], k, colours[k], k,
                colours[k], k, colours[k]);
    fprintf(f, "@media(prefers-color-scheme:dark){text{fill:#bbb} .page{fill:#161b22}}\n</style>\n"
            "<rect class=\"page\" width=\"100%%\" height=\"100%%\"/>\n");
    const double tick = plot_tick(t->top, 8);
    for (double i = 0; i * tick <= t->top; i++) {
        char text[32];
        snprintf(text, sizeof text, "%.6g", i * tick);
        fprintf(f, "<path class=\"grid\" d=\"M%d %.1fh%d\"/>\n", LEFT, at_y(t, i * tick), PIXELS);
        put_text(f, LEFT - 8, at_y(t, i * tick) + 4, " text-anchor=\"end\"", text);
    }
    if (kind == 'l') draw_lines(f, t);
    else draw_bars(f, t, kind == 's');
    fprintf(f, "<path class=\"axis\" d=\"M%d %dh%d\"/>\n", LEFT, FLOOR, PIXELS);
    double x = LEFT, y = 46;
    for (size_t c = 0; c < t->columns; c++) {
        bool hollow;
        const int colour = colour_of(t, c, &hollow);
        const double width = 34 + 6.8 * (double)strlen(t->names[c + 1]);
        if (x + width > WIDTH - RIGHT && x > LEFT) { x = LEFT; y += 16; }
        fprintf(f, "<rect class=\"%c%d\" x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"10\"/>\n",
                hollow ? 'h' : 'k', colour, x, y - 9);
        put_text(f, x + 17, y, "", t->names[c + 1]);
        x += width;
    }
    put_text(f, LEFT, 24, " class=\"title\"", title);
    put_text(f, LEFT + PIXELS / 2, FLOOR + (kind == 's' ? 48 : 36), " text-anchor=\"middle\"",
             t->names[0]);
    put_text(f, 0, 0, " transform=\"translate(16 235) rotate(-90)\" text-anchor=\"middle\"", unit);
    put_text(f, LEFT, HEIGHT - 12, "", note);
    fputs("</svg>\n", f);
}

int main(int argc, char **argv) {
    static Table t;
    const char *in = NULL, *out = NULL, *title = "", *unit = "", *note = "";
    int kind = 'b';
    program_begin();
    for (int i = 1; i < argc; i++) {
        const char *s = argv[i];
        if (strcmp(s, "--help") == 0) { fputs(help, stdout); return 0; }
        if (strcmp(s, "--lines") == 0 || strcmp(s, "--stack") == 0) { kind = s[2]; continue; }
        if (*s != '-') {
            if (in != NULL) die("one file too many: %s", s);
            in = s;
            continue;
        }
        const bool known = strcmp(s, "-o") == 0 || strcmp(s, "--title") == 0
                           || strcmp(s, "--y") == 0 || strcmp(s, "--note") == 0;
        if (!known) die("no such option: %s (see --help)", s);
        if (++i == argc) die("%s wants a value", s);
        if (strcmp(s, "-o") == 0) out = argv[i];
        else if (strcmp(s, "--title") == 0) title = argv[i];
        else if (strcmp(s, "--y") == 0) unit = argv[i];
        else note = argv[i];
    }
    tool_check("-o", out, in);
    FILE *table = in != NULL ? fopen(in, "r") : stdin;
    if (in != NULL && path_is_directory(in)) die("%s is a directory", in);
    if (table == NULL) die("%s: %s", in, strerror(errno));
    read_table(&t, table, in != NULL ? in : "the standard input", kind == 's');
    if (in != NULL) fclose(table);
    FILE *f = tool_open(out);
    draw(f, &t, kind, title, unit, note);
    tool_close(f, out);
    free(t.text);
    return 0;
}
