// compare.c: how far apart are two safetensors files, tensor by tensor? For reference dumps,
// weights and training state of any framework; --help says the rest.
#include "difference.h"
#include "tool.h"

static const char help[] =
    "usage: compare A B [--rtol X] [--atol Y] [--match PREFIX] [--all]\n"
    "\n"
    "A and B are safetensors files, or directories with a model.safetensors; B is the reference.\n"
    "Prints for every tensor that differs:\n"
    "  max abs   the largest |a - b|, and the element where it is\n"
    "  /max|b|   that divided by the tensor's largest |b|\n"
    "  max rel   the largest |a - b| / |b| of one element (inf where only b is 0)\n"
    "  verdict   ok, or why not\n"
    "A tensor of floats of any width is right when max abs <= atol + rtol * max|b|. Everything\n"
    "else must be equal. A NaN is never right, an infinity only opposite the same one.\n"
    "\n"
    "  --rtol X        relative tolerance (2e-5: ten times the rounding of fp32 in a small model)\n"
    "  --atol Y        absolute tolerance (1e-7: for gradients that are zero but for rounding)\n"
    "  --match PREFIX  only the tensors whose name starts so\n"
    "  --all           print the identical ones too\n"
    "\n"
    "exit code: 0 all right; 1 a difference beyond tolerance, another shape or kind, or a tensor\n"
    "in one file only; 2 a file that cannot be read, or nothing to compare\n";

static void print_element(const SafeTensor *t, size_t i) {
    size_t at[ST_MAX_RANK];
    for (int d = t->rank - 1; d >= 0; d--) {
        at[d] = i % t->shape[d];
        i /= t->shape[d];
    }
    printf(" at [");
    for (int d = 0; d < t->rank; d++) printf(d == 0 ? "%zu" : ",%zu", at[d]);
    printf("]");
}

static void open_model(SafeTensors *st, const char *path) {
    Error err;
    char file[PATH_MAX];
    if (path_is_directory(path)) {
        path_join(file, path, "model.safetensors");
        path = file;
    }
    if (!safetensors_open(st, path, &err)) die("%s", err.text);
}

int main(int argc, char **argv) {
    const char *path[2] = {NULL, NULL}, *match = "";
    double rtol = 2e-5, atol = 1e-7;
    bool all = false;
    int paths = 0;
    program_begin();
    for (int i = 1; i < argc; i++) {
        const char *s = argv[i];
        if (strcmp(s, "--help") == 0) return tool_help(help);
        if (strcmp(s, "--all") == 0) { all = true; continue; }
        if (strncmp(s, "--", 2) != 0) {
            if (paths == 2) die("one file too many: %s", s);
            path[paths++] = s;
            continue;
        }
        const bool known = strcmp(s, "--rtol") == 0 || strcmp(s, "--atol") == 0
                           || strcmp(s, "--match") == 0;
        if (!known) die("no such option: %s (see --help)", s);
        if (++i == argc) die("%s wants a value", s);
        if (strcmp(s, "--rtol") == 0) rtol = tool_number(s, argv[i], 0, 1e300, false);
        else if (strcmp(s, "--atol") == 0) atol = tool_number(s, argv[i], 0, 1e300, false);
        else match = argv[i];
    }
    if (paths != 2) die("usage: compare A B [--rtol X] [--atol Y] [--match PREFIX] [--all]");

    SafeTensors st[2];
    for (int i = 0; i < 2; i++) open_model(&st[i], path[i]);

    // Every name once: B's in its order, then those that only A has.
    const size_t most = (size_t)st[0].count + (size_t)st[1].count;
    const SafeTensor **a = (const SafeTensor **)alloc_or_fail(most, sizeof *a, "names");
    const SafeTensor **b = (const SafeTensor **)alloc_or_fail(most, sizeof *b, "names");
    int count = 0, wide = 6, wide_shape = 5;
    for (int side = 1; side >= 0; side--)
        for (int i = 0; i < st[side].count; i++) {
            const SafeTensor *t = &st[side].tensors[i];
            const SafeTensor *other = safetensors_find(&st[!side], t->name);
            char shape[200];
            if (strncmp(t->name, match, strlen(match)) != 0) continue;
            if (side == 0 && other != NULL) continue;
            a[count] = side == 0 ? t : other;
            b[count++] = side == 0 ? NULL : t;
            const int n = (int)strlen(t->name);
            const int m = (int)strlen(shape_text(shape, t->rank, t->shape));
            if (n > wide && n <= 60) wide = n;
            if (m > wide_shape && m <= 40) wide_shape = m;
        }
    if (count == 0)
        die("nothing to compare: no tensor%s%s", *match ? " whose name starts with " : "", match);

    printf("%-*s  %-*s  %9s  %9s  %9s  verdict\n", wide, "tensor", wide_shape, "shape", "max abs",
           "/max|b|", "max rel");
    int identical = 0, beyond = 0, missing = 0, other = 0;
    double worst = 0;
    const char *worst_name = NULL;
    for (int i = 0; i < count; i++) {
        const SafeTensor *t = b[i] != NULL ? b[i] : a[i];
        char shape[200], shape_a[200];
        shape_text(shape, t->rank, t->shape);
        if (a[i] == NULL || b[i] == NULL) {
            missing++;
            printf("%-*s  %-*s  %9s  %9s  %9s  ONLY IN %s\n", wide, t->name, wide_shape, shape, "-",
                   "-", "-", b[i] != NULL ? "B" : "A");
            continue;
        }
        shape_text(shape_a, a[i]->rank, a[i]->shape);
        const bool kinds = are_comparable(a[i]->dtype, t->dtype);
        if (strcmp(shape, shape_a) != 0 || !kinds) {
            other++;
            printf("%-*s  %-*s  %9s  %9s  %9s  ", wide, t->name, wide_shape, shape, "-", "-", "-");
            if (strcmp(shape, shape_a) != 0) printf("SHAPE IN A %s\n", shape_a);
            else printf("ANOTHER KIND OF NUMBER\n");
            continue;
        }
        const Difference d = difference(a[i], t);
        const bool near = d.invalid == 0 && d.absolute <= atol + rtol * d.scale;
        const bool right = is_float(t->dtype) ? near : d.unequal == 0;
        const double relative = d.absolute == 0 ? 0 : d.absolute / d.scale;  // inf where b is zero
        identical += d.unequal == 0;
        beyond += !right;
        const double used = d.absolute == 0 ? 0 : d.absolute / (atol + rtol * d.scale);
        if (is_float(t->dtype) && used > worst) { worst = used; worst_name = t->name; }
        if (d.unequal == 0 && !all) continue;
        printf("%-*s  %-*s  %9.2e  %9.2e  %9.2e  ", wide, t->name, wide_shape, shape, d.absolute,
               relative, d.relative);
        if (d.invalid > 0) printf("NOT FINITE (%zu)", d.invalid);
        else printf(d.unequal == 0 ? "ok, identical" : right ? "ok" : "DIFFERS");
        if (d.unequal > 0) print_element(t, d.worst);
        printf("\n");
    }
    printf("%d tensor%s: %d identical, %d within tolerance, %d beyond, %d of another shape or "
           "kind, %d in one file only", count, count == 1 ? "" : "s", identical,
           count - identical - beyond - missing - other, beyond, other, missing);
    if (worst_name != NULL)
        printf("; the largest is %.2g times its tolerance: %s", worst, worst_name);
    printf("\n");
    tool_close(stdout, NULL);
    free(a);
    free(b);
    for (int i = 0; i < 2; i++) safetensors_close(&st[i]);
    return beyond + missing + other > 0;
}
