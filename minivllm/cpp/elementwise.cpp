// The small operators between the matrices, one pass over memory each.
#include <cmath>

#include "vec.h"

constexpr int64_t FEW_ROWS = 16;  // up to here a second thread costs more than it brings

// x [T, E], weight [E] -> out [T, E]: x / sqrt(mean of its squares + eps) * weight.
template <typename T>
static void rms_norm(const T* x, const T* weight, T* out, int64_t rows, int64_t E, float eps) {
#pragma omp parallel for if (rows > FEW_ROWS)
    for (int64_t r = 0; r < rows; r++) {
        vec squares = {};
        for (int64_t i = 0; i < E; i += LANES) {
            const vec v = load(x + r * E + i);
            squares += v * v;
        }
        const float scale = 1.0f / std::sqrt(sum(squares) / E + eps);
        for (int64_t i = 0; i < E; i += LANES)
            store(out + r * E + i, load(x + r * E + i) * scale * load(weight + i));
    }
}

// gate_up [T, 2 I] -> out [T, I]: gate / (1 + e^-gate) * up. e is only asked for powers below 0.
template <typename T>
static void silu_and_mul(const T* gate_up, T* out, int64_t rows, int64_t I) {
#pragma omp parallel for if (rows > FEW_ROWS / 2)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < I; i += LANES) {
            const vec gate = load(gate_up + r * 2 * I + i), up = load(gate_up + (r * 2 + 1) * I + i);
            const vec small = exp(gate > 0.0f ? -gate : gate);
            const vec sigmoid = (gate > 0.0f ? vec{} + 1.0f : small) / (1.0f + small);
            store(out + r * I + i, gate * sigmoid * up);
        }
}

// x [T, heads, D], its rows `stride` apart; cos and sin [T, D] -> out [T, heads, D], the pairs
// (i, i + D / 2) rotated. sin is negative in its first half (rope_table in model.py).
template <typename T>
static void apply_rope(const T* x, const T* cos, const T* sin, T* out, int64_t rows, int64_t stride,
                       int64_t heads, int64_t D) {
#pragma omp parallel for if (rows > FEW_ROWS)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
            const T* from = x + r * stride + h * D;
            T* to = out + (r * heads + h) * D;
            for (int64_t i = 0; i < D; i += LANES) {
                const vec partner = load(from + (i < D / 2 ? i + D / 2 : i - D / 2));
                store(to + i, load(from + i) * load(cos + r * D + i) + partner * load(sin + r * D + i));
            }
        }
}

#define EXPORT(T, name)                                                                            \
    extern "C" void rms_norm_##name(const T* x, const T* weight, T* out, int64_t rows, int64_t E,  \
                                    float eps) {                                                   \
        rms_norm(x, weight, out, rows, E, eps);                                                    \
    }                                                                                              \
    extern "C" void silu_and_mul_##name(const T* gate_up, T* out, int64_t rows, int64_t I) {       \
        silu_and_mul(gate_up, out, rows, I);                                                       \
    }                                                                                              \
    extern "C" void apply_rope_##name(const T* x, const T* cos, const T* sin, T* out,              \
                                      int64_t rows, int64_t stride, int64_t heads, int64_t D) {    \
        apply_rope(x, cos, sin, out, rows, stride, heads, D);                                      \
    }
EXPORT(float, float32)
EXPORT(bf16, bfloat16)
