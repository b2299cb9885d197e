# f1.awk: how well generated answers match the right ones: exact match and F1 as SQuAD defines them
# (Rajpurkar et al. 2016). Each line has an answer, a tab and a right answer. More right answers may
# follow, each after a tab; the best score counts.
#     LC_ALL=C awk -f f1.awk ANSWERS      prints "N answers: exact match 50.0 %, F1 62.5 %"
# Words are separated by white space, in lower case, without ASCII punctuation; a, an and the are
# left out. Exact match: the words are the same, in the same order. F1: with c common words, counted
# as often as both have them, 2 c / (words of the answer + words of the right one), the harmonic
# mean of precision and recall; if either has no words, 1 if both have none, else 0 (as in SQuAD
# 2.0, Rajpurkar et al. 2018). Letters beyond ASCII keep their case.

BEGIN { FS = "\t" }

# words_of TEXT: stores the words in words[1 ..] and returns how many there are
function words_of(text, words,    all, n, i, count) {
    text = tolower(text)
    gsub(/[!-\/:-@\[-`{-~]/, "", text)
    n = split(text, all, /[ \t\r\n\f\v]+/)
    for (i = 1; i <= n; i++)
        if (all[i] != "" && all[i] != "a" && all[i] != "an" && all[i] != "the")
            words[++count] = all[i]
    return count + 0
}

# score SAID RIGHT: returns F1, and sets same to 1 for an exact match, to 0 otherwise
function score(said, right,    a, b, n, m, i, times, common) {
    split("", a)
    split("", b)
    n = words_of(said, a)
    m = words_of(right, b)
    same = n == m
    for (i = 1; i <= m; i++) times[b[i]]++
    for (i = 1; i <= n; i++) {
        if (a[i] "" != b[i] "") same = 0
        if (times[a[i]]-- > 0) common++
    }
    if (n == 0 || m == 0) return same
    return 2 * common / (n + m)
}

{
    if (NF < 2) {
        print "f1.awk: line " NR ": no tab and right answer" >"/dev/stderr"
        wrong = 1
        exit 2
    }
    best = exact = 0
    for (k = 2; k <= NF; k++) {
        f1 = score($1, $k)
        if (f1 > best) best = f1
        if (same) exact = 1
    }
    sum_f1 += best
    sum_exact += exact
}

END {
    if (!wrong && NR > 0)
        printf "%d answers: exact match %.1f %%, F1 %.1f %%\n", NR, 100 * sum_exact / NR,
            100 * sum_f1 / NR
    exit wrong ? 2 : NR == 0
}
