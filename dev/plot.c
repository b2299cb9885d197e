// plot.c: a picture of a table; --help says the rest.
#include "tool.h"
#include "picture.h"

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
       MOST_COLUMNS = 12, MOST_BYTES = 1 << 20, PIXELS = WIDTH - LEFT - RIGHT, FLOOR = HEIGHT - BOTTOM };
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
    for (int c; n <= MOST_BYTES && (c = fgetc(f)) != EOF;) {
        t->text = (char *)array_grow(t->text, n, 1, "the table");
        t->text[n++] = (char)c;
    }
    t->text = (char *)array_grow(t->text, n, 1, "the table");
    t->text[n] = '\0';
    if (n == 0 && !ferror(f)) die("%s is empty", path);
    const char *kind = file_kind(t->text, n);
    if (kind != NULL) die("%s is %s", path, kind);
    if (n > MOST_BYTES) die("%s: more than %d bytes", path, MOST_BYTES);
    if (ferror(f) || strlen(t->text) != n) die("%s: not a text that can be read", path);
    t->numbers = true;
    char *lines = NULL;
    for (char *line = strtok_r(t->text, "\r\n", &lines); line != NULL;
         line = strtok_r(NULL, "\r\n", &lines), row++) {
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
            if (row > 0 && column > 0 && (cells[column - 1] < 0 || cells[column - 1] > 1e30))
                die("%s: row %zu has %s, which is negative or above 1e30", path, row, cell);
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
        if (row > 0)
            t->numbers &= is_number(t->labels[row - 1], &t->x[row - 1])
                && fabs(t->x[row - 1]) <= 1e30;
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
    svg_text(f, text, 400);
    fputs("</text>\n", f);
}

// Returns a text of the table as XML; free() it.
static char *text_as_xml(const char *text) {
    char *xml = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&xml, &n);
    if (f == NULL) fail("out of memory");
    svg_text(f, text, 120);
    if (fclose(f) != 0) fail("out of memory");
    return xml;
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

static void draw_bar(const SvgFrame *s, const Table *t, size_t column, double x, double width,
                     double from, double to) {
    bool hollow;
    const int colour = colour_of(t, column, &hollow);
    fprintf(s->f, "<rect class=\"%c%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
            hollow ? 'h' : 'k', colour, x, svg_y(s, to), width, svg_y(s, from) - svg_y(s, to));
}

// Bars of each row: beside each other, or one above the other.
static void draw_bars(const SvgFrame *s, const Table *t, bool stack) {
    const double group = (double)PIXELS / (double)t->rows;
    const double each = fmin(0.8 * group / (stack ? 1 : (double)t->columns), 60);
    for (size_t i = 0; i < t->rows; i++) {
        const double middle = LEFT + group * ((double)i + 0.5);
        double x = middle - 0.5 * each * (stack ? 1 : (double)t->columns), sum = 0;
        for (size_t c = 0; c < t->columns; c++) {
            const double value = t->cells[i][c];
            if (!isnan(value)) draw_bar(s, t, c, x, each, sum, sum + value);
            if (stack && !isnan(value)) sum += value;
            if (!stack) x += each;
        }
        char first[128];
        snprintf(first, sizeof first, "%s", t->labels[i]);
        char *second = strchr(first, ' ');
        if (second != NULL) *second++ = '\0';
        put_text(s->f, middle, FLOOR + 16, " text-anchor=\"middle\"", first);
        if (second != NULL) put_text(s->f, middle, FLOOR + 30, " text-anchor=\"middle\"", second);
    }
}

static void draw_lines(const SvgFrame *s, const Table *t) {
    for (size_t c = 0; c < t->columns; c++) {
        SvgPoint points[MOST_ROWS];
        bool hollow;
        char style[16];
        const int colour = colour_of(t, c, &hollow);
        for (size_t i = 0; i < t->rows; i++) points[i] = (SvgPoint){t->x[i], t->cells[i][c]};
        snprintf(style, sizeof style, "%c%d", hollow ? 'd' : 'l', colour);
        svg_curve(s, style, points, t->rows);
        for (size_t i = 0; i < t->rows && t->rows <= 40; i++)
            if (!isnan(points[i].y))
                fprintf(s->f, "<circle class=\"%c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>\n",
                        hollow ? 'h' : 'k', colour, svg_x(s, points[i].x), svg_y(s, points[i].y));
    }
    if (t->numbers) svg_ticks(s, svg_tick(s->x1 - s->x0, 10), false, "");
    for (size_t i = 0; i < t->rows && !t->numbers; i++)
        put_text(s->f, svg_x(s, t->x[i]), FLOOR + 16, " text-anchor=\"middle\"", t->labels[i]);
}

static void draw(FILE *f, const Table *t, int kind, const char *title, const char *unit,
                 const char *note) {
    // 12 pixels on both sides of the first and last points; a single one is in the middle
    const double margin = t->x1 > t->x0 ? 12 * (t->x1 - t->x0) / (PIXELS - 24) : 1;
    const SvgFrame s = {.f = f, .left = LEFT, .right = LEFT + PIXELS, .top = TOP, .bottom = FLOOR,
                        .x0 = t->x0 - margin, .x1 = t->x1 + margin, .y1 = t->top};
    svg_begin(f, WIDTH, HEIGHT);
    fputs(".axis{stroke:#888} polyline{fill:none;stroke-width:2}\n", f);
    for (size_t k = 0; k < sizeof colours / sizeof *colours; k++)
        fprintf(f, ".k%zu{fill:%s} .l%zu{stroke:%s} .h%zu{fill:none;stroke:%s;stroke-dasharray:"
                "3 2} .d%zu{stroke:%s;stroke-dasharray:5 4}\n", k, colours[k], k, colours[k], k,
                colours[k], k, colours[k]);
    svg_page(f, "");
    svg_levels(&s, 8, "");
    if (kind == 'l') draw_lines(&s, t);
    else draw_bars(&s, t, kind == 's');
    char *x_name = text_as_xml(t->names[0]), *y_name = text_as_xml(unit);
    svg_axes(&s, x_name, kind == 'l' ? 36 : 48, y_name);
    free(x_name);
    free(y_name);
    double x = LEFT, y = 46;
    for (size_t c = 0; c < t->columns; c++) {
        bool hollow;
        char style[16];
        const int colour = colour_of(t, c, &hollow);
        snprintf(style, sizeof style, "%c%d", hollow ? 'h' : 'k', colour);
        svg_legend(f, &x, &y, LEFT, WIDTH - RIGHT, style, t->names[c + 1]);
    }
    put_text(f, LEFT, 24, " class=\"title\"", title);
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
        if (strcmp(s, "--help") == 0) return tool_help(help);
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
