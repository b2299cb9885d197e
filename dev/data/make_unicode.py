#!/usr/bin/env python3
"""Writes tide/files/unicode.h: which code points GPT-2's split expression calls letters, numbers, white space.

    python3 dev/data/make_unicode.py > tide/files/unicode.h

The classes are asked from Hugging Face `tokenizers` (its byte-level pre-tokenizer holds the
expression), because equal ids are the goal: "a" + c + "a" stays in one piece only if c is a letter,
and so on. Where a Unicode database of the same version is at hand (Python's own unicodedata, or the
package unicodedata2), the result is compared with its general categories L* and N*.
"""
import sys
import tokenizers
from tokenizers import pre_tokenizers

UNICODE = "16.0.0"  # what tokenizers 0.23 was built with; the check below needs the same version
OTHER, LETTER, NUMBER, SPACE = range(4)

HEAD = '''\
// tide/files/unicode.h: letters, numbers and white space as GPT-2's split expression means them:
// \\p{L}, \\p{N} and \\s in Unicode %(unicode)s, as Hugging Face tokenizers %(version)s has it.
// Written by dev/data/make_unicode.py; do not edit.
#ifndef TIDE_UNICODE_H
#define TIDE_UNICODE_H
#include "util.h"

enum { UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE };

// Where the class changes, ascending: the first code point of a range * 4 + the class of the range.
static const uint32_t unicode_ranges[%(count)d] = {
'''

TAIL = '''\
};

// The class of a code point: that of the last range that starts at or before it.
static inline int unicode_class(uint32_t point) {
    size_t low = 0, high = sizeof unicode_ranges / sizeof unicode_ranges[0];
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (unicode_ranges[middle] >> 2 <= point) low = middle;
        else high = middle;
    }
    return (int)(unicode_ranges[low] & 3);
}

#endif
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


classes = [classify(point) for point in range(0x110000)]
check(classes)
starts = [p for p in range(0x110000) if p == 0 or classes[p] != classes[p - 1]]
items = [f"{p * 4 + classes[p]:#x}," for p in starts]
sys.stdout.write(HEAD % {"unicode": UNICODE, "version": tokenizers.__version__,
                         "count": len(items)})
line = "   "
for item in items:
    if len(line) + 1 + len(item) > 100:
        print(line)
        line = "   "
    line += " " + item
print(line)
sys.stdout.write(TAIL)
