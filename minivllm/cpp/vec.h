// Sixteen numbers at a time, in GCC's and clang's own vector type: one AVX-512 register, two of
// AVX2, four of NEON. Sums are always float32; bfloat16 is only how numbers are stored.
#pragma once
#include <cstdint>
#include <cstring>

constexpr int LANES = 16;
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

struct bf16 {
    uint16_t bits;  // the upper half of a float32
};

inline vec load(const float* from) {
    vec v;
    memcpy(&v, from, sizeof v);
    return v;
}

inline vec load(const bf16* from) {
    halves h;
    memcpy(&h, from, sizeof h);
    return (vec)(__builtin_convertvector(h, words) << 16);
}

inline void store(float* to, vec v) { memcpy(to, &v, sizeof v); }

inline void store(bf16* to, vec v) {  // to the nearest, a tie to even, as torch rounds
    const words w = (words)v;
    const words rounded = (w + 0x7fff + ((w >> 16) & 1)) >> 16;
    const words is_nan = (words)(v != v);
    const halves h = __builtin_convertvector((rounded & ~is_nan) | (is_nan & 0x7fc0), halves);
    memcpy(to, &h, sizeof h);
}

inline vec max(vec a, vec b) { return a > b ? a : b; }

// e to the power of each x <= 0, to about 1e-7 of its value: e^x = 2^n e^r with n whole and |r| at
// most ln(2) / 2, where eight terms of the series do. Below -86 it stays at e^-86; NaN stays NaN.
inline vec exp(vec x) {
    const float MAGIC = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    x = x < -86.0f ? vec{} - 86.0f : x;
    const vec shifted = x * 1.44269504f + MAGIC;
    const vec n = shifted - MAGIC;
    const vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return (vec)((words)p + ((words)shifted << 23));  // n, added to the exponent's bits
}

// Lane i of the result: the sum of the lanes of v[i]. A tree of 15 additions for all 16 sums.
// HALVE(a, b, ...) adds the two halves of each group of lanes, a's groups beside b's.
#define HALVE(a, b, low, high) \
    (__builtin_shufflevector(a, b, low) + __builtin_shufflevector(a, b, high))
#define LOW_8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define HIGH_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define LOW_4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define HIGH_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define LOW_2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define HIGH_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define LOW_1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define HIGH_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
inline vec sums(vec v[LANES]) {
    for (int i = 0; i < 8; i++) v[i] = HALVE(v[i], v[i + 8], LOW_8, HIGH_8);
    for (int i = 0; i < 4; i++) v[i] = HALVE(v[i], v[i + 4], LOW_4, HIGH_4);
    for (int i = 0; i < 2; i++) v[i] = HALVE(v[i], v[i + 2], LOW_2, HIGH_2);
    return HALVE(v[0], v[1], LOW_1, HIGH_1);
}

inline float sum(vec v) {
    v = HALVE(v, v, LOW_8, HIGH_8);
    v = HALVE(v, v, LOW_4, HIGH_4);
    v = HALVE(v, v, LOW_2, HIGH_2);
    return v[0] + v[1];
}

inline float largest(vec v) {
    v = max(v, __builtin_shufflevector(v, v, HIGH_8));
    v = max(v, __builtin_shufflevector(v, v, HIGH_4));
    v = max(v, __builtin_shufflevector(v, v, HIGH_2));
    return v[0] > v[1] ? v[0] : v[1];
}
