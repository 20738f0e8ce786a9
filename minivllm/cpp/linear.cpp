// y = x W^T + b in float32, for few rows or many, close to what memory and arithmetic allow.
//
// W [N, K] is laid out once in panels of 32 outputs: panel p holds W[32 p + c][k] at [k][c], so that
// a core reads one unbroken stream. A tile of up to 12 rows of x times one panel keeps its 12 x 32
// sums in registers. A sum runs over k in order whatever else is in the batch: a row's result does
// not depend, to the last bit, on how many rows are computed with it.
#include <algorithm>

#include "vec.h"

constexpr int PANEL = 2 * LANES;    // outputs in a panel
constexpr int64_t MAX_ROWS = 12;    // of a tile: 24 sums, 2 weights and 1 input fill 32 registers
constexpr int64_t MAX_CHUNK = 96;   // rows of x worked on together, so that they stay in the cache
constexpr int AHEAD = 64 * LANES;   // 4 KiB: how far before its use a weight is asked for

// One tile: y[r][0..31] = bias[0..31] + sum over k of x[r][k] * panel[k][0..31]. Memory is slow to
// answer and the core must not wait: every `pace` steps of k ask for two more lines from `next` on.
template <int ROWS>
static void tile(const float* x, const float* panel, const float* bias, float* y, int64_t N,
                 int64_t K, const float* next, int64_t pace) {
    vec sum[ROWS][2];
    for (int r = 0; r < ROWS; r++)
        for (int half = 0; half < 2; half++)
            sum[r][half] = bias ? load(bias + half * LANES) : vec{};
    int64_t due = pace;  // steps until the next request to memory
#pragma GCC unroll 4
    for (int64_t k = 0; k < K; k++) {
        if (--due == 0) {
            __builtin_prefetch(next, 0, 2);
            __builtin_prefetch(next + LANES, 0, 2);
            next += PANEL;
            due = pace;
        }
        const vec w0 = load(panel + k * PANEL), w1 = load(panel + k * PANEL + LANES);
        for (int r = 0; r < ROWS; r++) {
            sum[r][0] += x[r * K + k] * w0;
            sum[r][1] += x[r * K + k] * w1;
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int half = 0; half < 2; half++) store(y + r * N + half * LANES, sum[r][half]);
}

// One compiled function for each number of rows, so that the sums stay in registers.
static const decltype(&tile<1>) TILES[] = {
    nullptr, tile<1>, tile<2>, tile<3>,  tile<4>,  tile<5>, tile<6>,
    tile<7>, tile<8>, tile<9>, tile<10>, tile<11>, tile<12>};

// T rows of x, shared out evenly among as few tiles as will do, times one panel. A tile alone asks
// for its own weights shortly before it needs them; of several, each asks for a share of the next
// panel, so that memory works while they compute. (To ask for what lies behind the last panel does
// nothing: a prefetch is only a hint.)
static void rows_times_panel(const float* x, const float* panel, const float* bias, float* y,
                             int64_t T, int64_t N, int64_t K) {
    const int64_t num_tiles = (T + MAX_ROWS - 1) / MAX_ROWS;
    for (int64_t i = 0; i < num_tiles; i++) {
        const int64_t first = T * i / num_tiles, rows = T * (i + 1) / num_tiles - first;
        const float* share = panel + (K + K * i / num_tiles) * PANEL;
        const float* next = num_tiles == 1 ? panel + AHEAD : share;
        TILES[rows](x + first * K, panel, bias, y + first * N, N, K, next, num_tiles);
    }
}

// x [T, K], panels of W [N, K], bias [N] or null -> y [T, N]; N a multiple of 32.
extern "C" void linear_float32(const float* x, const float* panels, const float* bias, float* y, int64_t T,
                       int64_t N, int64_t K) {
    const int64_t num_chunks = (T + MAX_CHUNK - 1) / MAX_CHUNK;
    for (int64_t i = 0; i < num_chunks; i++) {
        const int64_t first = T * i / num_chunks, rows = T * (i + 1) / num_chunks - first;
#pragma omp parallel for
        for (int64_t n = 0; n < N; n += PANEL)
            rows_times_panel(x + first * K, panels + n * K, bias ? bias + n : nullptr,
                             y + first * N + n, rows, N, K);
    }
}

// weight [N, K] -> panels [N / 32][K][32].
extern "C" void pack_weight_float32(const float* weight, float* panels, int64_t N, int64_t K) {
#pragma omp parallel for
    for (int64_t n = 0; n < N; n += PANEL)
        for (int64_t k = 0; k < K; k++)
            for (int64_t c = 0; c < PANEL; c++)
                panels[n * K + k * PANEL + c] = weight[(n + c) * K + k];
}
