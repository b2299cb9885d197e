// Tests of what ZenFlow does to columns on the GPU (columns.cuh) where no small model comes: places
// beyond 32 bits. (All else that is packed, updated and added up: the rows of test_zenflow_gpu,
// against zenflow.h.)
#include "model_harness.cuh"
#include "tensors.cuh"

using namespace tensors;

enum { ROWS = 40, COLS = 9, CHOSEN = 4, ROOM = 1024 };

// A vector, and a matrix of which CHOSEN columns are chosen, in one layer. Columns are in the other
// order.
static ZenMap map_of_two(void) {
    GPT2Tensor tensors[2] = {};
    GPT2Table t = {};
    t.tensors = tensors;
    t.count = 2;
    for (int i = 0; i < 2; i++) {
        tensors[i].rank = 1 + i;
        tensors[i].rows = i == 1 ? ROWS : 1;
        tensors[i].cols = COLS;
        tensors[i].size = tensors[i].rows * COLS;
        tensors[i].offset = t.elements;
        t.elements += round_up(tensors[i].size, ALIGN_ELEMENTS);
    }
    ZenMap map = zen_map(&t, 1, (double)CHOSEN / COLS, 0);
    for (size_t j = 0; j < COLS; j++)
        map.column[map.tensor[1].column_at + j] = (int32_t)(COLS - 1 - j);
    return map;
}

static void check_floats(const char *what, const float *got, const float *want, size_t n) {
    CHECK(memcmp(fetch(got, n), want, n * sizeof *want) == 0, "%s are others", what);
}

// A matrix of 40 rows whose elements, and whose chosen ones where they are packed, begin behind
// 2^32 others: in memory of which only the pages exist that are touched.
static void far_away(void) {
    if (!EMULATED) SKIP("a GPU would need all of the pages");
    Scope scope;
    const size_t far = ((size_t)1 << 32) + 128, bytes = (far + 6 * ROOM) * sizeof(float);
    float *sparse = (float *)mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (sparse == MAP_FAILED) SKIP("no 17 GiB of addresses");
    CUDA(cudaHostRegister(sparse, bytes, cudaHostRegisterDefault));
    ZenMap map = map_of_two();
    ZenTensor *z = &map.tensor[1];
    z->at = map.tensor[0].at + far;
    z->chosen_at = map.segment[1].chosen_at + far;
    float *part[6], *near[6];  // arena, p, m, v, g, packed; and what is far away of each
    for (int k = 0; k < 6; k++) {
        part[k] = sparse + ROOM * k;
        near[k] = part[k] + far;
        for (size_t i = 0; i < ROOM; i++) part[k][i] = near[k][i] = fabsf(next_float());
    }
    const int32_t *column = upload(map.column, map.columns), *of = map.column + z->column_at;
    float *want = copy(near[5], ROOM), *p = copy(near[1], ROOM), sums[2 * COLS];
    for (size_t r = 0; r < ROWS; r++)
        for (size_t j = 0; j < CHOSEN; j++)
            want[r * CHOSEN + j] = near[0][r * COLS + (size_t)of[j]];
    columns_move_gpu(true, part[5], false, part[0], false, &map, 1, false, column, stream);
    check_floats("packed columns", near[5], want, ROOM);

    const AdamStep step = adam_step_prepare(1e-2, 0.9, 0.95, 1e-8, 0.3, 3, 0.37);
    float *m = copy(near[2], ROOM), *v = copy(near[3], ROOM);
    for (size_t i = 0; i < ROWS * CHOSEN; i++)
        adam_scalar(p + i, m + i, v + i, near[4][i], &step, step.weight_decay);
    want = copy(near[0], ROOM);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t j = 0; j < CHOSEN; j++) want[r * COLS + (size_t)of[j]] = p[r * CHOSEN + j];
    columns_adam_gpu(part[0], part[1], part[2], part[3], part[4], false, &map, 1, column, &step,
                     stream);
    check_floats("weights", near[0], want, ROOM);

    float *d_sums = poison<float>(2 * map.mixed);
    zen_sums(sums, sums + COLS, near[0], 0, ROWS, COLS);
    columns_sums_gpu(d_sums, poison<ZenSum>(columns_scratch(&map)), part[0], false, &map, 1,
                     stream);
    check_floats("norms", d_sums + z->column_at, sums, COLS);
    check_floats("magnitudes", d_sums + map.mixed + z->column_at, sums + COLS, COLS);

    CUDA(cudaHostUnregister(sparse));
    munmap(sparse, bytes);
    zen_map_free(&map);
}

int main(void) {
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RUN(far_away);
    CUDA(cudaStreamDestroy(stream));
    return test_summary();
}
