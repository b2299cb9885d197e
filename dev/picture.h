// picture.h: what the tools that draw share: any text as XML, and legends.
#ifndef TIDE_PICTURE_H
#define TIDE_PICTURE_H
#include "../tide/run/svg.h"

// Writes at most `most` characters of a text; replaces by '?' what XML does not allow.
static void svg_text(FILE *f, const char *s, int most) {
    const size_t n = strlen(s);
    for (size_t i = 0; i < n; most--) {
        uint32_t c = 0;
        const size_t used = utf8_decode(s + i, n - i, &c);
        if (most == 0) { fputs("...", f); return; }
        if (c == '&') fputs("&amp;", f);
        else if (c == '<') fputs("&lt;", f);
        else if (c == '>') fputs("&gt;", f);
        else if (used == 0 || c < 0x20 || c == 0xfffe || c == 0xffff) fputc('?', f);
        else fwrite(s + i, 1, used, f);
        i += used > 0 ? used : 1;
    }
}

// Draws an entry of a legend at *x, or in the next line if it ends right of `right`; *x is then
// where the next entry begins.
static void svg_legend(FILE *f, double *x, double *y, int left, int right, const char *style,
                       const char *name) {
    const double width = 34 + 6.6 * (double)strlen(name);
    if (*x > left && *x + width > right) { *x = left; *y += 18; }
    fprintf(f, "<path class=\"%s\" d=\"M%.1f %.0fh12v12h-12z\"/><text x=\"%.1f\" y=\"%.0f\">",
            style, *x, *y - 10, *x + 17, *y);
    svg_text(f, name, 40);
    fputs("</text>\n", f);
    *x += width;
}

#endif
