// nfc.h: nfc_text(), Unicode's canonical composition (NFC): "e" and U+0301 become U+00E9. A text is
// cut into segments: a code point without the mark WORD_COMPOSES, and the marked code points that
// follow it. Segments do not depend on each other. A segment with marked code points is decomposed,
// sorted by combining class, and composed; other segments are copied. A byte that is not UTF-8 is
// in no segment. Source: Unicode Standard Annex 15.
#ifndef TIDE_NFC_H
#define TIDE_NFC_H
#include "words.h"

// A Hangul syllable is HANGUL + (leading consonant * 21 + vowel) * 28 + trailing consonant.
// Trailing consonants count from 1; 0 means none.
enum {
    HANGUL = 0xac00, HANGUL_END = 0xd7a4, HANGUL_LEADING = 0x1100, HANGUL_VOWEL = 0x1161,
    HANGUL_TRAILING = 0x11a7, HANGUL_LEADINGS = 19, HANGUL_VOWELS = 21, HANGUL_TRAILINGS = 28
};

// Returns the last of n ascending numbers that is at most `key`, or the first if none is.
static uint64_t nfc_search(const uint64_t *numbers, size_t n, uint64_t key) {
    size_t low = 0;
    for (size_t high = n; high - low > 1;) {
        const size_t middle = (low + high) / 2;
        if (numbers[middle] <= key) low = middle;
        else high = middle;
    }
    return numbers[low];
}
#define NFC_SEARCH(numbers, key) nfc_search(numbers, sizeof(numbers) / sizeof(numbers)[0], key)

// Returns the code point that a and b compose to, or 0.
static uint32_t nfc_compose(uint32_t a, uint32_t b) {
    const uint32_t leading = a - HANGUL_LEADING, vowel = b - HANGUL_VOWEL;
    const uint32_t trailing = b - HANGUL_TRAILING;
    if (leading < HANGUL_LEADINGS && vowel < HANGUL_VOWELS)
        return HANGUL + (leading * HANGUL_VOWELS + vowel) * HANGUL_TRAILINGS;
    if (a >= HANGUL && a < HANGUL_END && (a - HANGUL) % HANGUL_TRAILINGS == 0 && trailing > 0
        && trailing < HANGUL_TRAILINGS) return a + trailing;
    const uint64_t pair = (uint64_t)a << 21 | b;
    const uint64_t found = NFC_SEARCH(unicode_compositions, pair << 21 | 0x1fffff);
    return found >> 21 == pair ? (uint32_t)found & 0x1fffff : 0;
}

// A segment. A code point is stored as class << 56 | its index << 21 | code point: sorting these
// numbers sorts code points by class, and keeps their order within a class.
typedef struct { uint64_t *points; size_t count; } NfcSegment;

// Decomposes a code point, and adds the parts to the segment.
static void nfc_add(NfcSegment *g, uint32_t c) {
    const uint64_t d = NFC_SEARCH(unicode_decompositions, (uint64_t)c << 42 | 0x3ffffffffff);
    const uint32_t syllable = c - HANGUL, trailing = syllable % HANGUL_TRAILINGS;
    if (c >= HANGUL && c < HANGUL_END) {
        const uint32_t rest = syllable / HANGUL_TRAILINGS;
        nfc_add(g, HANGUL_LEADING + rest / HANGUL_VOWELS);
        nfc_add(g, HANGUL_VOWEL + rest % HANGUL_VOWELS);
        if (trailing > 0) nfc_add(g, HANGUL_TRAILING + trailing);
        return;
    }
    if (d >> 42 == c) {
        nfc_add(g, (uint32_t)(d >> 21) & 0x1fffff);
        if ((d & 0x1fffff) > 0) nfc_add(g, (uint32_t)d & 0x1fffff);
        return;
    }
    g->points = (uint64_t *)array_grow(g->points, g->count, sizeof *g->points, "a segment");
    const uint64_t kind = NFC_SEARCH(unicode_marks, (uint64_t)c << 8 | 255) & 255;
    g->points[g->count] = kind << 56 | (uint64_t)g->count << 21 | c;
    g->count++;
}

// Composes a segment, writes it to out, and returns how many bytes it has. A code point composes
// with the last one of class 0 before it (starter), if all between have a lower class than it.
static size_t nfc_write(NfcSegment *g, char *out) {
    size_t starter = SIZE_MAX, kept = 0, used = 0;
    uint64_t last = 0;
    for (size_t i = 0, end; i < g->count; i = end + 1) {  // sort marks that are neighbours
        end = i;
        while (end < g->count && g->points[end] >> 56 > 0) end++;
        if (end > i + 1) qsort(g->points + i, end - i, sizeof *g->points, compare_words);
    }
    for (size_t i = 0; i < g->count; i++) {
        const uint64_t kind = g->points[i] >> 56;
        const uint32_t c = (uint32_t)g->points[i] & 0x1fffff;
        const bool joins = starter != SIZE_MAX && (kept == starter + 1 || last < kind);
        const uint32_t both = joins ? nfc_compose((uint32_t)g->points[starter] & 0x1fffff, c) : 0;
        if (both > 0) g->points[starter] = both;
        if (both > 0) continue;
        if (kind == 0) starter = kept;
        last = kind;
        g->points[kept++] = g->points[i];
    }
    for (size_t i = 0; i < kept; i++)
        used += utf8_encode((uint32_t)g->points[i] & 0x1fffff, out + used);
    return used;
}

// Composes a text of *n bytes. If no character of it has the mark, returns s. Else returns a new
// copy and stores it in *room, to be freed; *n becomes its length, at most three times the old one.
static const char *nfc_text(const char *s, size_t *n, char **room) {
    NfcSegment g = {NULL, 0};
    size_t done = 0, start = 0, at = 0, used = 0, length;  // start: where the segment begins
    char *out = NULL;
    while (at < *n) {
        if ((word_bits(s + at, *n - at, &length) & WORD_COMPOSES) == 0) {
            start = length == 1 && (s[at] & 0x80) != 0 ? at + 1 : at;
            at += length;
            continue;
        }
        while (at < *n && (word_bits(s + at, *n - at, &length) & WORD_COMPOSES) != 0)
            at += length;
        if (out == NULL) out = *room = (char *)malloc(3 * *n);
        if (out == NULL) fail("out of memory: %zu bytes of text", *n);
        memcpy(out + used, s + done, start - done);
        used += start - done;
        for (g.count = 0; start < at; start += length) {
            uint32_t c = 0;
            length = utf8_decode(s + start, at - start, &c);
            nfc_add(&g, c);
        }
        used += nfc_write(&g, out + used);
        done = at;
    }
    free(g.points);
    if (out == NULL) return s;
    memcpy(out + used, s + done, *n - done);
    *n = used + *n - done;
    return out;
}

#endif
