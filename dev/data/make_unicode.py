#!/usr/bin/env python3
"""Writes tide/files/unicode.h: which code points the split expressions call letters, numbers, white space, capital
and small letters, and marks; and tide/files/unicode_nfc.h: what canonical composition (NFC) needs.

    python3 dev/data/make_unicode.py > tide/files/unicode.h
    python3 dev/data/make_unicode.py nfc > tide/files/unicode_nfc.h

The classes are asked from Hugging Face `tokenizers` (its byte-level pre-tokenizer holds the
expression), because equal ids are the goal: "a" + c + "a" stays in one piece only if c is a letter,
and so on. Where a Unicode database of the same version is at hand (Python's own unicodedata, or the
package unicodedata2), the result is compared with its general categories L* and N*. So are the numeric
code points of its Digits pre-tokenizer (a newer Unicode), and the tables of NFC (Unicode 9).
"""
import sys
import tokenizers
from tokenizers import normalizers, pre_tokenizers

UNICODE = "16.0.0"  # what tokenizers 0.23 was built with; the check below needs the same version
OTHER, LETTER, NUMBER, SPACE, UPPER, LOWER, MARK, NUMERIC = range(8)

HEAD = '''\
// unicode.h: letters, numbers, white space, cases and marks as split expressions mean them: \\p{L},
// \\p{N}, \\s, \\p{M} .. in Unicode %(unicode)s, as Hugging Face tokenizers %(version)s has it.
// Written by dev/data/make_unicode.py; do not edit.
#ifndef TIDE_UNICODE_H
#define TIDE_UNICODE_H
#include "../base/util.h"

// Classes; and kinds of letters (Lu and Lt; Ll) and of OTHER (M; what only the pre-tokenizer Digits
// takes for a number), which only unicode_ranges has.
enum { UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE,
       UNICODE_UPPER, UNICODE_LOWER, UNICODE_MARK, UNICODE_NUMERIC };

// Where this changes, ascending: the first code point of a range * 8 + the number of the range.
static const uint32_t unicode_ranges[%(count)d] = {
'''

TAIL = '''\
};

#endif
'''

NFC_HEAD = '''\
// unicode_nfc.h: canonical decompositions, compositions and combining classes as Hugging
// Face tokenizers %(version)s has them: those of Unicode 9.0, whatever a newer one has added.
// Written by dev/data/make_unicode.py; do not edit. Hangul syllables are arithmetic (nfc.h).
#ifndef TIDE_UNICODE_NFC_H
#define TIDE_UNICODE_NFC_H
#include "../base/util.h"

// Decompositions of one code point into one or two, ascending: c << 42 | first << 21 | second; a
// single one has no second (0). A first one may decompose further.
static const uint64_t unicode_decompositions[%(decompositions)d] = {
'''
NFC_COMPOSE = '''\
};

// The pairs that compose, ascending: first << 42 | second << 21 | c.
static const uint64_t unicode_compositions[%(compositions)d] = {
'''
NFC_MARKS = '''\
};

// The ranges of one combining class, ascending: the first code point << 8 | the class.
static const uint64_t unicode_marks[%(marks)d] = {
'''
NFC_COMPOSING = '''\
};

// Code points that change alone, compose with the one before them, or have a combining class: the
// first of a range, and the last.
static const uint32_t unicode_composing[%(composing)d] = {
'''

split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str


def classify(point):
    if 0xD800 <= point < 0xE000:
        return OTHER  # surrogates are not in UTF-8
    for kind, neighbour in ((LETTER, "a"), (NUMBER, "1"), (OTHER, "!")):
        if len(split(neighbour + chr(point) + neighbour)) == 1:
            return kind
    return SPACE


def check(classes):
    """Compares with a Unicode database of the same version; says so if there is none."""
    import unicodedata as database
    if database.unidata_version != UNICODE:
        try:
            import unicodedata2 as database
        except ImportError:
            pass
    if database.unidata_version != UNICODE:
        print(f"not compared: no Unicode {UNICODE} database here", file=sys.stderr)
        return
    for point, kind in enumerate(classes):
        category = database.category(chr(point))[0]
        expected = {"L": LETTER, "N": NUMBER}.get(category)
        if (kind if kind in (LETTER, NUMBER) else None) != expected:
            sys.exit(f"U+{point:04X}: class {kind}, but category {category}")
    print(f"equal to the categories of Unicode {UNICODE}", file=sys.stderr)


def write_items(items):
    line = "   "
    for item in items:
        if len(line) + 1 + len(item) > 100:
            print(line)
            line = "   "
        line += " " + item
    print(line)


def points():
    return (p for p in range(0x110000) if not 0xD800 <= p < 0xE000)


def ranges(numbers):
    """The first and the last of each run of numbers, ascending."""
    ends = []
    for n in sorted(numbers):
        if ends and ends[-1] == n - 1:
            ends[-1] = n
        else:
            ends += [n, n]
    return ends


def members(expression):
    """The code points that a character class of the library's regular expressions contains."""
    cut = pre_tokenizers.Split(tokenizers.Regex(expression), "isolated").pre_tokenize_str
    return {p for p in points() if len(cut("!" + chr(p) + "!")) == 3}


def write_classes():
    classes = [classify(point) for point in range(0x110000)]
    check(classes)
    digits = pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str
    numeric = {p for p in points() if len(digits("a" + chr(p) + "a")) == 3}
    if not {p for p in points() if classes[p] == NUMBER} <= numeric:
        sys.exit("a number that is not numeric")
    more = {p for p in numeric if classes[p] != NUMBER}
    for kind, code_points, of in ((UPPER, members(r"[\p{Lu}\p{Lt}]"), LETTER),
                                  (LOWER, members(r"\p{Ll}"), LETTER),
                                  (MARK, members(r"\p{M}"), OTHER), (NUMERIC, more, OTHER)):
        for p in code_points - set(range(0xE0100, 0xE01F0)):  # word_bits() has these marks
            if classes[p] != of:
                sys.exit(f"U+{p:04X}: class {classes[p]}, and kind {kind}")
            classes[p] = kind
    starts = [p for p in range(0x110000) if p == 0 or classes[p] != classes[p - 1]]
    sys.stdout.write(HEAD % {"unicode": UNICODE, "version": tokenizers.__version__,
                             "count": len(starts)})
    write_items(f"{p * 8 + classes[p]:#x}," for p in starts)
    sys.stdout.write(TAIL)


def write_nfc():
    import unicodedata
    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    hangul = range(0xAC00, 0xD7A4)
    full = {c: nfd(chr(c)) for c in points() if c not in hangul}
    by_full = {}  # a code point of each full decomposition; any will do
    for c, s in full.items():
        by_full.setdefault(s, c)
    decompositions = []
    for c, s in full.items():
        if s == chr(c):
            continue
        # What another code point stands for is one. Else the last code point is the second one, and
        # a code point that stands for those before it is the first.
        if len(nfc(chr(c))) == 1 and nfc(chr(c)) != chr(c):
            first, second = ord(nfc(chr(c))), 0
        else:
            first, second = by_full[s[:-1]], ord(s[-1])
        decompositions.append((c, first, second))
    compositions = sorted((first, second, c) for c, first, second in decompositions
                          if second > 0 and nfc(chr(first) + chr(second)) == chr(c))

    def reordered(a, b):
        return nfd("a" + a + b) != "a" + a + b

    known = {}  # a mark of each class; old ones, whose class never changes
    for c in full:
        if unicodedata.combining(chr(c)) and full[c] == chr(c) and (
                reordered(chr(c), "\u0334") or reordered("\u0345", chr(c))):
            known.setdefault(unicodedata.combining(chr(c)), chr(c))

    def mark_class(c):
        x = chr(c)
        if full[c] != x or not (reordered(x, "\u0334") or reordered("\u0345", x)):
            return 0
        classes = [k for k, r in known.items() if not reordered(r, x) and not reordered(x, r)]
        if len(classes) != 1:
            sys.exit(f"U+{c:04X}: classes {classes}")
        return classes[0]

    composing = {second for _, second, _ in compositions}
    composing.update(c for c in full if nfc(chr(c)) != chr(c))
    composing.update([*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)])  # Hangul behind a consonant
    marks, last = [], -1
    for c in full:
        kind = mark_class(c)
        if kind:
            composing.add(c)
        if kind != last:
            marks.append(c << 8 | kind)
        last = kind
    sys.stdout.write(NFC_HEAD % {"version": tokenizers.__version__,
                                 "decompositions": len(decompositions)})
    write_items(f"{a << 42 | b << 21 | c:#x}," for a, b, c in decompositions)
    sys.stdout.write(NFC_COMPOSE % {"compositions": len(compositions)})
    write_items(f"{a << 42 | b << 21 | c:#x}," for a, b, c in compositions)
    sys.stdout.write(NFC_MARKS % {"marks": len(marks)})
    write_items(f"{mark:#x}," for mark in marks)
    sys.stdout.write(NFC_COMPOSING % {"composing": len(ranges(composing))})
    write_items(f"{end:#x}," for end in ranges(composing))
    sys.stdout.write(TAIL)


if sys.argv[1:] == ["nfc"]:
    write_nfc()
else:
    write_classes()
