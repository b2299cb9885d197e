// svg.h: pictures as SVG, for light and dark pages: axes with round numbers, curves, text.
//
//   svg_begin, svg_page        write the head of a picture; the caller writes "</svg>" at its end
//   svg_x, svg_y               convert a value to a place in a frame
//   svg_levels, svg_ticks      draw round numbers beside a frame; below it
//   svg_axes                   draw the line below a frame, and the names of both axes
//   svg_curve, svg_series      draw a line through points; through many, or noisy, points
#ifndef TIDE_SVG_H
#define TIDE_SVG_H
#include "../base/util.h"

enum { SVG_BUCKETS = 400 };  // most points of a curve

typedef struct { double x, y; } SvgPoint;

typedef struct {
    FILE *f;
    int left, right;
    double top, bottom;     // pixels, as left and right
    double x0, x1, y0, y1;  // the values at left and right, at bottom and top
} SvgFrame;

// Writes the head of a picture, and its style rules (CSS), to which the caller may add more. Class
// "n" is for text on a coloured box.
static void svg_begin(FILE *f, int width, double height) {
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" "
            "height=\"%.0f\">\n<style>\ntext{font:12px sans-serif;fill:#444} .page{fill:#fff} "
            ".grid{stroke:#8886;fill:none}\n.title{font-size:15px} .n{font-size:9px;"
            "text-anchor:middle} ", width, height, width, height);
}

// Ends the rules of style, and paints the page. dark: more rules, for a dark page, or "".
static void svg_page(FILE *f, const char *dark) {
    fprintf(f, "@media(prefers-color-scheme:dark){text:not(.n){fill:#bbb} .page{fill:#161b22}%s}\n"
            "</style>\n<rect class=\"page\" width=\"100%%\" height=\"100%%\"/>\n", dark);
}

static double svg_x(const SvgFrame *s, double x) {
    return s->left + (s->right - s->left) * (x - s->x0) / (s->x1 - s->x0);
}

static double svg_y(const SvgFrame *s, double y) {
    return s->bottom - (s->bottom - s->top) * (y - s->y0) / (s->y1 - s->y0);
}

// Returns the distance of ticks, 1, 2 or 5 times a power of ten, so that there are at most n.
static double svg_tick(double span, int n) {
    const double unit = pow(10, floor(log10(span / n)));
    for (int m = 1; m < 10; m = m == 1 ? 2 : m == 2 ? 5 : 10)
        if (span / (unit * m) <= n) return unit * m;
    return unit * 10;
}

// Draws a line across the frame at each round value, at most n + 1 of them, with its number on the
// left. unit, or "", is printed beside the zero.
static void svg_levels(const SvgFrame *s, int n, const char *unit) {
    const double d = svg_tick(s->y1 - s->y0, n);
    for (double i = ceil(s->y0 / d) + 0.0; i * d <= s->y1; i++)  // + 0.0 avoids "-0"
        fprintf(s->f, "<path class=\"grid\" d=\"M%d %.1fh%d\"/><text x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">%.6g%s%s</text>\n", s->left, svg_y(s, i * d),
                s->right - s->left, s->left - 8, svg_y(s, i * d) + 4, i * d,
                i == 0 && *unit != '\0' ? " " : "", i == 0 ? unit : "");
}

// Draws ticks at multiples of d, and their numbers below; with `across`, lines up to the top.
static void svg_ticks(const SvgFrame *s, double d, bool across, const char *unit) {
    for (double i = ceil(s->x0 / d) + 0.0; i * d <= s->x1 * 1.0001; i++) {
        const double x = fmin(svg_x(s, i * d), s->right);
        fprintf(s->f, "<path class=\"%s\" d=\"M%.1f %.0fV%.0f\"/><text x=\"%.1f\" y=\"%.0f\" "
                "text-anchor=\"middle\">%.10g%s%s</text>\n", across ? "grid" : "axis", x,
                across ? s->top : s->bottom, across ? s->bottom : s->bottom + 5, x, s->bottom + 17,
                i * d, i == 0 && *unit != '\0' ? " " : "", i == 0 ? unit : "");
    }
}

// Draws the line below the frame, and the names x, `below` pixels lower, and y (as XML text).
static void svg_axes(const SvgFrame *s, const char *x, int below, const char *y) {
    fprintf(s->f, "<path class=\"axis\" d=\"M%d %.0fH%d\"/>\n<text x=\"%d\" y=\"%.0f\" "
            "text-anchor=\"middle\">%s</text>\n<text transform=\"translate(16 %.0f) rotate(-90)\""
            " text-anchor=\"middle\">%s</text>\n", s->left, s->bottom, s->right,
            (s->left + s->right) / 2, s->bottom + below, x, (s->top + s->bottom) / 2, y);
}

// Draws a line through n points. Leaves out points whose y is NaN.
static void svg_curve(const SvgFrame *s, const char *style, const SvgPoint *points, size_t n) {
    fprintf(s->f, "<polyline class=\"%s\" points=\"", style);
    for (size_t i = 0; i < n; i++)
        if (!isnan(points[i].y))
            fprintf(s->f, " %.1f,%.1f", svg_x(s, points[i].x), svg_y(s, points[i].y));
    fputs("\"/>\n", s->f);
}

// Returns the mean of about n / 25 points around point i; of fewer near the first and last point.
static SvgPoint svg_mean(const SvgPoint *points, size_t n, size_t i) {
    const size_t back = min_size(i, n / 50), ahead = min_size(back, n - 1 - i);
    SvgPoint mean = {points[i].x, 0};
    for (size_t k = i - back; k <= i + ahead; k++) mean.y += points[k].y;
    mean.y /= (double)(back + ahead + 1);
    return mean;
}

// Draws a curve through n > 0 points, cut into buckets, with a ring at its end (which is all that
// is seen of a single point). The curve has the last point of each bucket; if noisy, the mean
// around this point, and below it a thin curve of style "raw" has the lowest and highest point of
// each bucket, so that no spike is lost. Returns the end of the curve.
static SvgPoint svg_series(const SvgFrame *s, const char *style, bool noisy, const SvgPoint *points,
                           size_t n) {
    SvgPoint curve[SVG_BUCKETS], raw[2 * SVG_BUCKETS];
    const size_t buckets = min_size(n, SVG_BUCKETS);
    for (size_t b = 0, i = 0; b < buckets; b++) {
        size_t low = i, high = i;
        for (; i < (b + 1) * n / buckets; i++) {
            if (points[i].y < points[low].y) low = i;
            if (points[i].y > points[high].y) high = i;
        }
        raw[2 * b] = points[min_size(low, high)];
        raw[2 * b + 1] = points[low < high ? high : low];
        curve[b] = noisy ? svg_mean(points, n, b == 0 ? 0 : i - 1) : points[i - 1];
    }
    const SvgPoint last = curve[buckets - 1];
    if (noisy) svg_curve(s, "raw", raw, 2 * buckets);
    svg_curve(s, style, curve, buckets);
    fprintf(s->f, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", style,
            svg_x(s, last.x), svg_y(s, last.y));
    return last;
}

#endif
