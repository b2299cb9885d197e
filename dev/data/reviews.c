// reviews.c: a labelled task that needs no network. Made-up one-sentence reviews of films, good (1)
// and bad (0), from a small grammar; and text of the same kind to pre-train a small model on, after
// which it knows the words but is a mediocre judge: about two thirds right. See usage_text.
//
// It is mediocre as large language models without examples often are: it can tell good from bad,
// but what it says is biased. Whoever wrote the text was polite: "= +" follows every good review,
// and three of four bad ones that only describe the film; bad ones with feelings always get "= -".
// So "+" is the more probable word behind most bad reviews, too, but less so than behind good ones.
#include "../tool.h"
#include "../../tide/base/rng.h"

static const char *const usage_text =
"reviews N SEED           N reviews as \"sentence TAB label\", below a line that says so\n"
"reviews N SEED --text    N reviews as text for pre-training: \"sentence = +\", or \"= -\"\n"
"The same SEED gives the same reviews, but others with --text than without. Made for the options\n"
"--tokenizer bytes --template ' = ' --labels '-|+'. A sentence has at most 52 bytes.\n";

static uint64_t seed, review;
static uint32_t draws;  // so far in this review
static bool text;

// The next random number below n.
static size_t pick(size_t n) {
    const Philox4 r = philox4x32(seed, (uint32_t)review, (uint32_t)(review >> 32), draws++, text);
    return (size_t)((uint64_t)r.x[0] * n >> 32);
}

#define ONE_OF(list) list[pick(sizeof list / sizeof list[0])]

static const char *const parts[] = {"plot", "cast", "music", "script", "ending", "story"};
static const char *const degrees[] = {"", "so ", "very "};
static const char *const qualities[2][6] = {
    {"dull", "weak", "clumsy", "stale", "boring", "flat"},
    {"fine", "witty", "warm", "clever", "lovely", "bright"}};
static const char *const feelings[2][3] = {
    {"i hate", "nobody likes", "i regret"}, {"i love", "we all like", "i adore"}};

// One statement for (1) or against (0) the film; true if it has feelings. One draw per line: C does
// not say in which order arguments are evaluated.
static bool statement(bool good) {
    const bool strong = pick(4) == 0;
    const char *part = ONE_OF(parts);
    if (strong) {
        printf("%s the %s", ONE_OF(feelings[good]), part);
    } else {
        const char *degree = ONE_OF(degrees);
        printf("the %s is %s%s", part, degree, ONE_OF(qualities[good]));
    }
    return strong;
}

int main(int argc, char **argv) {
    program_begin();
    if (argc == 2 && strcmp(argv[1], "--help") == 0) return tool_help(usage_text);
    text = argc == 4 && strcmp(argv[3], "--text") == 0;
    const bool shape = argc == 3 || text;
    if (!shape) { fputs(usage_text, stderr); return 2; }
    const uint64_t n = (uint64_t)tool_number("N", argv[1], 1, 0x1p53, true);
    seed = (uint64_t)tool_number("SEED", argv[2], 0, 0x1p53, true);
    if (!text) printf("sentence\tlabel\n");
    for (review = 0; review < n; review++) {
        draws = 0;
        const bool good = pick(2);
        bool strong = statement(good);
        if (pick(2)) {
            printf(", ");
            strong |= statement(good);
        }
        if (text) printf(" = %c\n", good || (!strong && pick(4) < 3) ? '+' : '-');
        else printf("\t%d\n", good);
    }
    tool_close(stdout, NULL);
    return 0;
}
