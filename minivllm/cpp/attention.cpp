// Attention over K and V where they lie: the kernel follows the block table, nothing is gathered.
//
// The work is cut into tiles of up to 16 rows, a row being one query head of one token, all of one
// request and one KV head, so that they read the same K and V. A row walks over its positions by
// sixteens with the online softmax: largest score so far, sum of weights, weighted sum of V. It adds
// in the order of the positions, so its result depends on nothing but its own request.
//
// Legend: R requests, MB most blocks of a request, BS block_size, H / KH query / KV heads,
// G = H / KH, D head_dim.
#include <algorithm>
#include <cmath>
#include <vector>

#include "vec.h"

constexpr int MAX_ROWS = 16;

template <typename T>
struct Step {
    const T *q, *k_cache, *v_cache;  // [tokens, H, D], rows q_stride apart; [N, BS, KH, D] twice
    T* out;                          // [tokens, H, D]
    const int32_t *query_start_loc, *seq_lens, *block_tables;  // [R + 1], [R], [R, MB]
    int64_t q_stride, R, MB, BS, H, KH;
    float scale;
};

struct Tile {
    int64_t request, kv_head, first, rows;  // rows first .. first + rows - 1 of num_queries * G
};

// Where K and V of 16 positions from `from` on begin; beyond `last` that of `last` again, which is
// read and given the weight 0: nothing outside the request is ever touched. (Within it, a V that is
// infinite makes NaN of the rows of its tile that may not see it yet.)
template <typename T>
static void locate(const Step<T>& s, const Tile& tile, int64_t from, int64_t last, int64_t D,
                   int64_t offsets[LANES]) {
    from = std::min(from, last);
    const int32_t* block = s.block_tables + tile.request * s.MB + from / s.BS;
    int64_t place = from % s.BS;
    for (int i = 0; i < LANES; i++) {
        offsets[i] = ((*block * s.BS + place) * s.KH + tile.kv_head) * D;
        if (from + i >= last) continue;
        if (++place == s.BS) place = 0, block++;
    }
}

// The numbers at `from` as float32: those themselves, or converted into `room`, once for all rows.
template <int VECS>
static const float* as_floats(const float* from, float*) {
    return from;
}
template <int VECS>
static const float* as_floats(const bf16* from, float* room) {
    for (int d = 0; d < VECS; d++) store(room + d * LANES, load(from + d * LANES));
    return room;
}

// Ask memory for the D numbers at `from`, a line at a time, without waiting for them.
template <int64_t D, typename T>
static void fetch(const T* from) {
    for (int64_t d = 0; d < D; d += 64 / sizeof(T)) __builtin_prefetch(from + d, 0, 2);
}

template <typename T, int VECS>
static void attend(const Step<T>& s, const Tile& tile) {
    constexpr int64_t D = VECS * LANES;
    const int64_t G = s.H / s.KH;
    const int64_t start = s.query_start_loc[tile.request];
    const int64_t first_position =
        s.seq_lens[tile.request] - (s.query_start_loc[tile.request + 1] - start);
    const int64_t last = first_position + (tile.first + tile.rows - 1) / G;

    vec q[MAX_ROWS][VECS], acc[MAX_ROWS][VECS] = {}, weight_sum[MAX_ROWS] = {};
    float top[MAX_ROWS];
    int64_t position[MAX_ROWS], place[MAX_ROWS];  // of the row's query; of its head, in the token
    for (int r = 0; r < tile.rows; r++) {
        const int64_t query = (tile.first + r) / G;
        position[r] = first_position + query;
        place[r] = (tile.kv_head * G + (tile.first + r) % G) * D;
        top[r] = -INFINITY;
        for (int d = 0; d < VECS; d++)
            q[r][d] = load(s.q + (start + query) * s.q_stride + place[r] + d * LANES) * s.scale;
    }

    int64_t here[LANES], next[LANES];
    float room[2][LANES][D];
    const float *k[LANES], *v[LANES];
    locate(s, tile, 0, last, D, here);
    for (int64_t from = 0; from <= last; from += LANES) {
        locate(s, tile, from + LANES, last, D, next);
        for (int i = 0; i < LANES; i++) {
            k[i] = as_floats<VECS>(s.k_cache + here[i], room[0][i]);
            v[i] = as_floats<VECS>(s.v_cache + here[i], room[1][i]);
        }
        for (int r = 0; r < tile.rows; r++) {
            const int64_t visible = std::min<int64_t>(position[r] + 1 - from, LANES);
            if (visible <= 0) continue;
            vec products[LANES];
            for (int i = 0; i < LANES; i++) {
                if (r == 0) fetch<D>(s.k_cache + next[i]);
                products[i] = q[r][0] * load(k[i]);
                for (int d = 1; d < VECS; d++) products[i] += q[r][d] * load(k[i] + d * LANES);
            }
            vec scores = sums(products);
            for (int i = visible; i < LANES; i++) scores[i] = -INFINITY;

            const float new_top = std::max(top[r], largest(scores));
            const float rescale = new_top == top[r] ? 1.0f : std::exp(top[r] - new_top);
            vec weights = exp(scores - new_top);
            for (int i = visible; i < LANES; i++) weights[i] = 0.0f;
            top[r] = new_top;
            weight_sum[r] = weight_sum[r] * rescale + weights;
            vec sum_v[VECS];
            for (int d = 0; d < VECS; d++) sum_v[d] = acc[r][d] * rescale;
            for (int i = 0; i < LANES; i++) {
                if (r == tile.rows - 1) fetch<D>(s.v_cache + next[i]);
                for (int d = 0; d < VECS; d++) sum_v[d] += weights[i] * load(v[i] + d * LANES);
            }
            for (int d = 0; d < VECS; d++) acc[r][d] = sum_v[d];
        }
        std::copy(next, next + LANES, here);
    }

    for (int r = 0; r < tile.rows; r++) {
        T* out = s.out + (start + (tile.first + r) / G) * s.H * D + place[r];
        const float one_over = 1.0f / sum(weight_sum[r]);
        for (int d = 0; d < VECS; d++) store(out + d * LANES, acc[r][d] * one_over);
    }
}

template <typename T>
static void paged_attention(const Step<T>& s, int64_t D) {
    std::vector<Tile> tiles;
    for (int64_t r = 0; r < s.R; r++) {
        const int64_t num_rows = (s.query_start_loc[r + 1] - s.query_start_loc[r]) * s.H / s.KH;
        for (int64_t h = 0; h < s.KH; h++)
            for (int64_t first = 0; first < num_rows; first += MAX_ROWS)
                tiles.push_back({r, h, first, std::min<int64_t>(num_rows - first, MAX_ROWS)});
    }
    // One compiled function for each head size, so that the sums stay in registers.
    typedef void (*Attend)(const Step<T>&, const Tile&);
    static const Attend BY_SIZE[] = {nullptr,      attend<T, 1>, attend<T, 2>, attend<T, 3>, attend<T, 4>,
                                     attend<T, 5>, attend<T, 6>, attend<T, 7>, attend<T, 8>};
    const Attend attend_tile = BY_SIZE[D / LANES];
#pragma omp parallel for schedule(dynamic, s.R >= 8 ? s.KH : 1)
    for (size_t i = 0; i < tiles.size(); i++) attend_tile(s, tiles[i]);
}

// k and v [tokens, KH * D], rows `stride` apart, into their slots; a slot of -1 stores nothing.
template <typename T>
static void write_kv(const T* k, const T* v, T* k_cache, T* v_cache, const int64_t* slots,
                     int64_t tokens, int64_t k_stride, int64_t v_stride, int64_t size) {
    for (int64_t t = 0; t < tokens; t++) {
        if (slots[t] < 0) continue;
        std::copy(k + t * k_stride, k + t * k_stride + size, k_cache + slots[t] * size);
        std::copy(v + t * v_stride, v + t * v_stride + size, v_cache + slots[t] * size);
    }
}

#define EXPORT(T, name)                                                                            \
    extern "C" void paged_attention_##name(                                                        \
        const T* q, const T* k_cache, const T* v_cache, T* out, const int32_t* query_start_loc,    \
        const int32_t* seq_lens, const int32_t* block_tables, int64_t q_stride, int64_t R,         \
        int64_t MB, int64_t BS, int64_t H, int64_t KH, int64_t D, float scale) {                   \
        paged_attention<T>({q, k_cache, v_cache, out, query_start_loc, seq_lens, block_tables,     \
                            q_stride, R, MB, BS, H, KH, scale}, D);                                \
    }                                                                                              \
    extern "C" void write_kv_##name(const T* k, const T* v, T* k_cache, T* v_cache,                \
                                    const int64_t* slots, int64_t tokens, int64_t k_stride,        \
                                    int64_t v_stride, int64_t size) {                              \
        write_kv(k, v, k_cache, v_cache, slots, tokens, k_stride, v_stride, size);                 \
    }
EXPORT(float, float32)
EXPORT(bf16, bfloat16)
