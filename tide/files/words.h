// words.h: cuts a text into words. No token spans two words.
//
//     word_rules            the expressions of GPT-2, Llama-3, Qwen2 and Tekken, as a table
//     word_length()         the bytes of the first word of a text
//     word_classes_make()   makes the table of the classes of all code points (word_classes)
//     word_class()          the class of the first code point of a text
//
// At each place of a text, GPT-2's expression tries these alternatives in this order:
//     's|'t|'re|'ve|'m|'ll|'d     a contraction
//      ?\p{L}+                    letters, and a space in front of them
//      ?\p{N}+                    numbers, and a space in front of them
//      ?[^\s\p{L}\p{N}]+          other characters, and a space in front of them
//     \s+(?!\S)|\s+               white space; its last character is left for a word after it
// WordRule says how newer expressions differ. Tekken's (Mistral Nemo and later) has no
// contractions, and begins a word at a capital after a small letter: word_cased(). A byte that is
// not valid UTF-8 counts as one code point that is no letter, number or space.
#ifndef TIDE_WORDS_H
#define TIDE_WORDS_H
#include "unicode.h"
#include "unicode_nfc.h"

typedef struct {
    const char *expression;         // as tokenizer.json has it
    // newer: contractions may be in upper case. A word of letters may begin with any character but
    // CR, LF or a number; a word of numbers does not begin with a space. A word of other characters
    // ends with the CRs and LFs after it, and a word of white space after its last CR or LF.
    bool newer, cased;              // cased: Tekken's. After other characters, "/" counts like CR
    size_t max_number;              // the most numbers in one word
} WordRule;

enum { RULE_GPT2, RULE_LLAMA3, RULE_QWEN2, RULE_TEKKEN, RULES };
#define NEWER_WORDS(letters, numbers, ends) \
    letters "|" numbers "| ?[^\\s\\p{L}\\p{N}]+[" ends "]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LETTERS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define CASED(upper, lower) "[^\\r\\n\\p{L}\\p{N}]?" \
    "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]" upper "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]" lower
static const WordRule word_rules[RULES] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     false, false, SIZE_MAX},
    {NEWER_WORDS(LETTERS, "\\p{N}{1,3}", "\\r\\n"), true, false, 3},
    {NEWER_WORDS(LETTERS, "\\p{N}", "\\r\\n"), true, false, 1},
    {NEWER_WORDS(CASED("*", "+") "|" CASED("+", "*"), "\\p{N}", "\\r\\n/"), true, true, 1}};

// ---------------------------------------------------------------------------------------------
// Classes of code points

enum {
    WORD_CLASS = 3,            // the bits of UNICODE_OTHER, UNICODE_LETTER, ..
    WORD_NUMERIC = 4,          // the pre-tokenizer Digits makes this code point a piece
    WORD_COMPOSES = 8,         // NFC may change it, or the code point before it (nfc.h)
    WORD_UPPER = 16,           // a capital, a letter without case, or a mark
    WORD_LOWER = 32,           // a small letter, a letter without case, or a mark
    WORD_POINTS = 0x323b0      // code points from here on are of class UNICODE_OTHER
};

// The bits of each code point below WORD_POINTS. Without this table, a search in ranges would take
// most of the time.
ONE_PER_PROGRAM unsigned char word_classes[WORD_POINTS];

// Fills the table.
static void word_classes_make(void) {
    enum { LETTER = UNICODE_LETTER, BOTH = WORD_UPPER | WORD_LOWER };
    static const unsigned char bits[UNICODE_NUMERIC + 1] = {  // for each kind of unicode_ranges
        UNICODE_OTHER, LETTER | BOTH, UNICODE_NUMBER | WORD_NUMERIC, UNICODE_SPACE,
        LETTER | WORD_UPPER, LETTER | WORD_LOWER, UNICODE_OTHER | BOTH, WORD_NUMERIC};
    const uint32_t *ranges = unicode_ranges, *composing = unicode_composing;
    for (size_t i = 0; i + 1 < sizeof unicode_ranges / sizeof *ranges; i++)
        memset(word_classes + (ranges[i] >> 3), bits[ranges[i] & 7],
               (ranges[i + 1] >> 3) - (ranges[i] >> 3));
    for (size_t i = 0; i < sizeof unicode_composing / sizeof *composing; i += 2)
        for (uint32_t c = composing[i]; c <= composing[i + 1]; c++)
            word_classes[c] |= WORD_COMPOSES;
}

// Returns the bits of the first code point of a text of n > 0 bytes, and its bytes in *length.
static inline int word_bits(const char *s, size_t n, size_t *length) {
    uint32_t c = 0;
    *length = 1;
    if ((unsigned char)*s < 0x80) return word_classes[(unsigned char)*s];
    const size_t used = utf8_decode(s, n, &c);
    if (used == 0) return UNICODE_OTHER;
    *length = used;
    if (c >= 0xe0100 && c < 0xe01f0) return UNICODE_OTHER | WORD_UPPER | WORD_LOWER;  // marks
    return c < WORD_POINTS ? word_classes[c] : (int)UNICODE_OTHER;
}

static inline int word_class(const char *s, size_t n, size_t *length) {
    return word_bits(s, n, length) & WORD_CLASS;
}

// ---------------------------------------------------------------------------------------------
// Words

// Skips at most `most` code points of class `kind`, from `at` on. Returns where they end.
static inline size_t word_run(const char *s, size_t at, size_t n, int kind, size_t most) {
    size_t length;
    for (; at < n && most > 0 && word_class(s + at, n - at, &length) == kind; most--)
        at += length;
    return at;
}

// Returns the length of the contraction with which a text begins, or 0. s[0] is an apostrophe.
static size_t word_contraction(const WordRule *rule, const char *s, size_t n) {
    static const char *const ends[7] = {"s", "t", "re", "ve", "m", "ll", "d"};
    for (int i = 0; i < 7; i++) {
        const size_t length = strlen(ends[i]);
        if (n > length && (rule->newer ? strncasecmp(s + 1, ends[i], length)
                                       : memcmp(s + 1, ends[i], length)) == 0) return 1 + length;
    }
    // Without case, one letter outside ASCII equals a letter of a contraction: U+017F, a long s.
    return rule->newer && n > 2 && memcmp(s + 1, "\xc5\xbf", 2) == 0 ? 3 : 0;
}

// Returns the end of Tekken's word whose letters begin at `at`, or 0. A word is a run of letters
// that are not small, and then a run of one or more that are no capitals; or, without such letters,
// the first run alone. As in a regular expression, the first run gives letters back to the second
// until that has one.
static size_t word_cased(const char *s, size_t at, size_t n) {
    size_t length, end = at, last = 0;  // last: the end of the last letter that is no capital
    for (int bits, run = WORD_UPPER; end < n; end += length) {
        bits = word_bits(s + end, n - end, &length);
        if (!(bits & WORD_UPPER)) run = WORD_LOWER;  // the second run has begun
        if (!(bits & run)) break;
        if (bits & WORD_LOWER) last = end + length;
    }
    return last > 0 ? last : end > at ? end : 0;
}

// Returns the bytes of the first word of a text of n > 0 bytes.
static size_t word_length(const WordRule *rule, const char *s, size_t n) {
    size_t first, second = 0;
    const int bits = word_bits(s, n, &first), kind = bits & WORD_CLASS;
    const int next = first < n ? word_class(s + first, n - first, &second) : UNICODE_SPACE;
    const bool space = s[0] == ' ';
    const size_t contraction = s[0] == '\'' && !rule->cased ? word_contraction(rule, s, n) : 0;
    if (contraction > 0) return contraction;
    const bool prefix = space || (rule->newer && kind != UNICODE_NUMBER && s[0] != '\r'
                                  && s[0] != '\n');
    if (rule->cased) {  // a mark that stands first counts as a letter, not as a prefix
        const bool leads = prefix && !(bits & (WORD_UPPER | WORD_LOWER));
        const size_t end = word_cased(s, leads ? first : 0, n);
        if (end > 0) return end;
    }
    if (!rule->cased && (kind == UNICODE_LETTER || (next == UNICODE_LETTER && prefix)))
        return word_run(s, first, n, UNICODE_LETTER, n);
    if (kind == UNICODE_NUMBER) return word_run(s, 0, n, kind, rule->max_number);
    if (space && next == UNICODE_NUMBER && !rule->newer)
        return word_run(s, 1, n, next, rule->max_number);
    if (kind == UNICODE_OTHER || (space && next == UNICODE_OTHER)) {
        size_t end = word_run(s, first, n, UNICODE_OTHER, n);
        while (rule->newer && end < n
               && (s[end] == '\r' || s[end] == '\n' || (rule->cased && s[end] == '/'))) end++;
        return end;
    }
    size_t end = 0, last = 0, line = 0;  // end: where the white space ends; last: where its last
                                         // character begins; line: the end of its last CR or LF
    for (size_t length; end < n && word_class(s + end, n - end, &length) == UNICODE_SPACE;
         end += length) {
        last = end;
        if (s[end] == '\r' || s[end] == '\n') line = end + 1;
    }
    if (rule->newer && line > 0) return line;
    return end == n || last == 0 ? end : last;
}

#endif
