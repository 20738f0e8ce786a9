// y = x W^T + b in bfloat16, on processors whose cores have a matrix unit (Intel's AMX).
//
// The unit holds eight tiles of 1 KiB. One instruction multiplies a tile of 16 rows of x, 32 inputs
// wide, with a tile of 32 inputs and 16 outputs, and adds into a tile of 16 x 16 float32 sums. W is
// laid out once in panels of 32 outputs, in the order in which the tiles are read: for each 32 inputs
// two tiles, in each for every pair of inputs the pairs of 16 outputs. As in linear.cpp a core reads
// one unbroken stream and asks for it ahead of time, and a row's sum does not depend on the others.
#ifdef __AMX_BF16__
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "vec.h"

constexpr int64_t ROWS = 16;       // of a tile
constexpr int64_t DEPTH = 32;      // inputs of a tile
constexpr int64_t OUTPUTS = 32;    // of a panel: two tiles of 16
constexpr int64_t PIECE = DEPTH * OUTPUTS;  // numbers of a panel that are read together: 2 KiB
constexpr int64_t MAX_CHUNK = 256;  // rows of x worked on together, so that they stay in the cache

// Linux gives a process the tiles when it asks for them.
extern "C" int amx_works() {
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

// Eight tiles of 16 rows of 64 bytes. At file scope, for the instruction that reads it does not tell
// the compiler how much it reads: of a local one the compiler might leave parts unwritten.
static const struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes_a_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
} CONFIG;

// Two tiles of sums, side by side, as `count` rows of y and 32 of its outputs.
static void put(const float* sums, const bf16* bias, bf16* y, int64_t count, int64_t N) {
    for (int64_t r = 0; r < count; r++)
        for (int half = 0; half < 2; half++) {
            vec v = load(sums + (half * ROWS + r) * LANES);
            if (bias) v += load(bias + half * LANES);
            store(y + r * N + half * LANES, v);
        }
}

// Up to 32 rows of x (x1 null for up to 16) times a panel of K inputs. Pass `pass` of `passes` over
// this panel asks for its share of the next one; a single pass, for what comes soon.
static void two_tiles_times_panel(const bf16* x0, const bf16* x1, const bf16* panel, int64_t K,
                                  int64_t pass, int64_t passes, float sums[4][ROWS * LANES]) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0, turn = 0; k < K; k += DEPTH, turn++) {
        const bf16* piece = panel + k * OUTPUTS;
        if (turn % passes == pass) {
            const bf16* next = piece + (passes == 1 ? 4 * PIECE : K * OUTPUTS);
            for (int64_t i = 0; i < PIECE; i += 32) __builtin_prefetch(next + i, 0, 2);
        }
        _tile_loadd(6, piece, 64);
        _tile_loadd(7, piece + PIECE / 2, 64);
        _tile_loadd(4, x0 + k, K * sizeof(bf16));
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (x1) {
            _tile_loadd(5, x1 + k, K * sizeof(bf16));
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
}

// x [T, K], panels of W [N, K], bias [N] or null -> y [T, N]; N and K multiples of 32.
extern "C" void linear_bfloat16(const bf16* x, const bf16* panels, const bf16* bias, bf16* y,
                                int64_t T, int64_t N, int64_t K) {
    // A tile is always 16 rows: the last rows are copied to where zeros follow them.
    const int64_t whole = T / ROWS * ROWS;
    std::vector<bf16> tail(T > whole ? ROWS * K : 0, bf16{0});
    std::copy(x + whole * K, x + T * K, tail.begin());
    const auto rows_from = [&](int64_t row) { return row < whole ? x + row * K : tail.data(); };

    const int64_t num_chunks = (T + MAX_CHUNK - 1) / MAX_CHUNK;
    for (int64_t i = 0; i < num_chunks; i++) {  // even shares, cut between tiles
        const int64_t from = T * i / num_chunks / ROWS * ROWS;
        const int64_t to = i + 1 < num_chunks ? T * (i + 1) / num_chunks / ROWS * ROWS : T;
        const int64_t passes = (to - from + 2 * ROWS - 1) / (2 * ROWS);
#pragma omp parallel
        {
            _tile_loadconfig(&CONFIG);
            alignas(64) float sums[4][ROWS * LANES];
#pragma omp for
            for (int64_t n = 0; n < N; n += OUTPUTS)
                for (int64_t pass = 0; pass < passes; pass++) {
                    const int64_t row = from + pass * 2 * ROWS, second = row + ROWS;
                    two_tiles_times_panel(rows_from(row), second < to ? rows_from(second) : nullptr,
                                          panels + n * K, K, pass, passes, sums);
                    const bf16* b = bias ? bias + n : nullptr;
                    put(sums[0], b, y + row * N + n, std::min(to - row, ROWS), N);
                    if (second < to)
                        put(sums[2], b, y + second * N + n, std::min(to - second, ROWS), N);
                }
            _tile_release();
        }
    }
}

// weight [N, K] -> panels [N / 32][K / 32][2][16 pairs of inputs][16 outputs][2].
extern "C" void pack_weight_bfloat16(const bf16* weight, bf16* panels, int64_t N, int64_t K) {
#pragma omp parallel for
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k++) {
            const int64_t tile = (n / OUTPUTS * (K / DEPTH) + k / DEPTH) * 2 + n % OUTPUTS / 16;
            const int64_t pair = tile * 16 + k % DEPTH / 2;
            panels[(pair * 16 + n % 16) * 2 + k % 2] = weight[n * K + k];
        }
}
#endif
