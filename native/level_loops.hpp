// The loops of a Level, templates over a small vector type V of the including file:
//   V::width, V::Floats, zero(), load_half(p), load_bfloat16(p), load_int8(p), load_uint8(p), load_float(p), set(x),
//   add(a, b), mul(a, b), magnitude(a), store(p, a), stream(p, a), above_u16(scores, threshold) and
//   above_f32(scores, threshold): bit l is set if entry l of scan_width is above the threshold; V::Offsets,
//   highest_offsets(), lower(lowest, offsets): the lane-wise minimum of 64 offsets, any_below(lowest, first);
//   coarse_dot(row, query) with a CoarseQuery;
//   byte_product(row, query) with a ByteQuery;
//   has_coarse_dots and, if true, coarse_dots(rows, row_bytes, query, products) of four rows;
//   reads_codes and, if true, code_sums(block, n_columns, tables, sums) of a block of codes.
// V is in an unnamed namespace, so the linker cannot merge code of different levels. For the same reason the loops use
// only macros and builtins of the standard library.
#pragma once

#include <cstddef>
#include <cstdint>

#include "half.hpp"
#include "levels.hpp"

namespace lightir {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "add_eight takes impacts from the low end of a number");

template <typename V, Element E>
inline typename V::Floats load(const uint8_t* row, size_t j) {
    if constexpr (E == Element::float16) {
        return V::load_half(reinterpret_cast<const uint16_t*>(row) + j);
    } else if constexpr (E == Element::bfloat16) {
        return V::load_bfloat16(reinterpret_cast<const uint16_t*>(row) + j);
    } else if constexpr (E == Element::float32) {
        return V::load_float(reinterpret_cast<const float*>(row) + j);
    } else {
        return V::load_int8(reinterpret_cast<const int8_t*>(row) + j);
    }
}

template <Element E>
inline float load_one(const uint8_t* row, size_t j) {
    if constexpr (E == Element::float16) {
        return half_to_float(reinterpret_cast<const uint16_t*>(row)[j]);
    } else if constexpr (E == Element::bfloat16) {
        return bfloat16_to_float(reinterpret_cast<const uint16_t*>(row)[j]);
    } else if constexpr (E == Element::float32) {
        return reinterpret_cast<const float*>(row)[j];
    } else {
        return static_cast<float>(reinterpret_cast<const int8_t*>(row)[j]);
    }
}

inline float add_lanes(float* lanes) {
    for (size_t half = n_lanes / 2; half > 0; half /= 2) {
        for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    return lanes[0];
}

template <typename V, Element E>
inline float dot(const uint8_t* row, const float* query, size_t dim) {
    constexpr size_t parts = n_lanes / V::width;
    typename V::Floats sums[parts];
    for (size_t p = 0; p < parts; ++p) sums[p] = V::zero();
    size_t j = 0;
    for (; j + n_lanes <= dim; j += n_lanes) {
        for (size_t p = 0; p < parts; ++p) {
            const size_t at = j + p * V::width;
            sums[p] = V::add(sums[p], V::mul(load<V, E>(row, at), V::load_float(query + at)));
        }
    }
    size_t rest = 0;
    for (; j + (rest + 1) * V::width <= dim; ++rest) {
        const size_t at = j + rest * V::width;
        sums[rest] = V::add(sums[rest], V::mul(load<V, E>(row, at), V::load_float(query + at)));
    }
    alignas(64) float lanes[n_lanes];
    for (size_t p = 0; p < parts; ++p) V::store(lanes + p * V::width, sums[p]);
    for (size_t l = rest * V::width; j + l < dim; ++l) lanes[l] += load_one<E>(row, j + l) * query[j + l];
    return add_lanes(lanes);
}

// Prefetch distance of a scan: the hardware prefetcher stops at each page boundary and restarts after several misses.
constexpr size_t scanned_ahead_bytes = 4096;
constexpr size_t fetched_line = 64;  // bytes

inline size_t rows_ahead(size_t row_bytes) { return scanned_ahead_bytes / (row_bytes + 1) + 1; }

// A macro, because gcc drops calls to functions that only prefetch. Addresses after the last row are prefetched but not read.
#define LIGHTIR_FETCH(from, bytes) \
    for (size_t byte = 0; byte < (bytes); byte += fetched_line) __builtin_prefetch((from) + byte)

// Bytes from a column of a block of codes to the one that is prefetched: whole blocks.
inline size_t codes_ahead(size_t n_columns) {
    const size_t block_bytes = coded_block * n_columns;
    return (scanned_ahead_bytes + block_bytes - 1) / block_bytes * block_bytes;
}

template <typename V, Element E>
void dot_rows(const uint8_t* rows, size_t n_rows, size_t row_bytes, const float* query, size_t dim, float* scores) {
    const size_t ahead = rows_ahead(row_bytes) * row_bytes, used_bytes = n_rows > 1 ? dim * element_bytes(E) : 0;
    for (size_t i = 0; i < n_rows; ++i) {
        const uint8_t* row = rows + i * row_bytes;
        LIGHTIR_FETCH(row + ahead, used_bytes);
        scores[i] = dot<V, E>(row, query, dim);
    }
}

template <typename V>
void coarse_dot_rows(const uint8_t* rows, size_t n_rows, size_t row_bytes, const CoarseQuery& query, float* products) {
    const auto row = [&](size_t i) { return reinterpret_cast<const int8_t*>(rows + i * row_bytes); };
    const size_t ahead = rows_ahead(row_bytes) * row_bytes;
    size_t i = 0;
    if constexpr (V::has_coarse_dots) {
        for (; i + 4 <= n_rows; i += 4) {
            for (size_t r = i; r < i + 4; ++r) {
                LIGHTIR_FETCH(row(r) + ahead, query.dim);
            }
            V::coarse_dots(row(i), row_bytes, query, products + i);
        }
    }
    for (; i < n_rows; ++i) {
        LIGHTIR_FETCH(row(i) + ahead, query.dim);
        products[i] = V::coarse_dot(row(i), query);
    }
}

// Turns products into bounds.
template <typename V>
inline void bound_rows(const CoarseRows& rows, size_t first, size_t n, const Bounding& query, float* products) {
    const typename V::Floats step = V::set(query.step), slack = V::set(query.slack), least = V::set(__FLT_MIN__);
    const typename V::Floats length = V::set(query.length);
    size_t i = 0;
    for (; i + V::width <= n; i += V::width) {
        const typename V::Floats scale = V::load_float(rows.scales + first + i);
        const typename V::Floats score = V::mul(scale, V::mul(V::load_float(products + i), step));
        typename V::Floats bound = V::add(V::add(score, V::mul(V::magnitude(scale), slack)), least);
        if (rows.errors != nullptr) bound = V::add(bound, V::mul(length, V::load_float(rows.errors + first + i)));
        V::store(products + i, bound);
    }
    for (; i < n; ++i) {
        const float scale = rows.scales[first + i];
        products[i] = scale * (products[i] * query.step) + __builtin_fabsf(scale) * query.slack + __FLT_MIN__;
        if (rows.errors != nullptr) products[i] += query.length * rows.errors[first + i];
    }
}

// Bit i is set if bound i of n is above the threshold.
template <typename V>
inline uint64_t mask_above(const float* bounds, size_t n, float threshold) {
    const uint64_t mask = V::above_f32(bounds, threshold);
    return n < scan_width ? mask & ((uint64_t{1} << n) - 1) : mask;
}

// Adds the positions of a mask's rows and returns the number of positions.
inline size_t add_positions(uint64_t mask, size_t first, uint32_t* positions, size_t n_found) {
    for (; mask != 0; mask &= mask - 1) {
        positions[n_found++] = static_cast<uint32_t>(first + static_cast<size_t>(__builtin_ctzll(mask)));
    }
    return n_found;
}

// Processes a few rows at a time: the processor fetches no rows during long stretches of other work.
template <typename V>
size_t coarse_above(const CoarseRows& rows, size_t n_rows, const CoarseQuery& query, float threshold,
                    uint32_t* positions) {
    alignas(64) float bounds[scan_width] = {};
    size_t n_found = 0;
    for (size_t first = 0; first < n_rows; first += scan_width) {
        const size_t n = n_rows - first < scan_width ? n_rows - first : scan_width;
        coarse_dot_rows<V>(rows.data + first * rows.row_bytes, n, rows.row_bytes, query, bounds);
        bound_rows<V>(rows, first, n, query.bounding, bounds);
        n_found = add_positions(mask_above<V>(bounds, n, threshold), first, positions, n_found);
    }
    return n_found;
}

static_assert(coded_block == scan_width, "a block's bounds are tested at once");

// Of a block of rows, the mask of those whose score may be above the threshold: it is at most the estimate plus the root of the
// squared errors. Neither a root nor a comparison of signs is needed, if the gap to the threshold is squared with its sign.
template <typename V>
inline uint64_t block_above(const CodedRows& rows, size_t first, size_t n, const CodedQuery& query, float threshold) {
    alignas(64) uint16_t sums[coded_block];
    alignas(64) float above[coded_block];
    V::code_sums(rows.data + first * rows.n_columns, rows.n_columns, query.tables, sums);
    for (size_t i = 0; i < n; ++i) {
        const float scale = bfloat16_to_float(rows.scales[first + i]), error = bfloat16_to_float(rows.errors[first + i]);
        const float spread = scale * query.deviation;
        const float gap = threshold - scale * (query.base + query.step * static_cast<float>(sums[i]) + query.slack);
        above[i] = error * error + spread * spread - gap * __builtin_fabsf(gap) + __FLT_MIN__;
    }
    return mask_above<V>(above, n, 0.0f);
}

template <typename V>
size_t codes_above(const CodedRows& rows, size_t n_rows, const CodedQuery& query, float threshold, uint32_t* positions) {
    size_t n_found = 0;
    for (size_t first = 0; first < n_rows; first += coded_block) {
        const size_t n = n_rows - first < coded_block ? n_rows - first : coded_block;
        n_found = add_positions(block_above<V>(rows, first, n, query, threshold), first, positions, n_found);
    }
    return n_found;
}

template <typename V>
float sum_of_squares(const float* values, size_t n) {
    return dot<V, Element::float32>(reinterpret_cast<const uint8_t*>(values), values, n);
}

template <typename V>
void scale(const float* values, size_t n, float factor, float* out, bool stream) {
    size_t j = 0;
    if (stream) {  // stores whole vectors at aligned addresses
        while (j < n && reinterpret_cast<uintptr_t>(out + j) % (V::width * sizeof(float)) != 0) {
            out[j] = factor * values[j];
            ++j;
        }
        for (; j + V::width <= n; j += V::width) V::stream(out + j, V::mul(V::load_float(values + j), V::set(factor)));
    }
    for (; j + V::width <= n; j += V::width) V::store(out + j, V::mul(V::load_float(values + j), V::set(factor)));
    for (; j < n; ++j) out[j] = factor * values[j];
}

// A term's postings continue in its next run, so the prefetch does not stop at the end of a run.
constexpr size_t fetched_ahead = 1024;  // postings
constexpr size_t fetch_step = 64;       // postings between two fetches: two lines of offsets

// A macro for the same reason as LIGHTIR_FETCH.
#define LIGHTIR_FETCH_AHEAD(array, i)                                                        \
    for (size_t line = 0; line < fetch_step; line += fetched_line / sizeof(*(array))) {      \
        __builtin_prefetch((array) + (i) + fetched_ahead + line);                            \
    }

// The amount that a posting adds: impact, weight * impact, weight * impact / 256, or weight.
struct Once {
    static constexpr bool reads_impacts = true;
    uint32_t operator()(uint8_t impact) const { return impact; }
};

struct Times {
    static constexpr bool reads_impacts = true;
    uint32_t factor;
    uint32_t operator()(uint8_t impact) const { return factor * impact; }
};

struct Parts {
    static constexpr bool reads_impacts = true;
    uint32_t weight;
    uint32_t operator()(uint8_t impact) const { return (weight * impact + 255) >> 8; }
};

struct Same {
    static constexpr bool reads_impacts = false;
    uint32_t weight;
    uint32_t operator()(uint8_t) const { return weight; }
};

// Eight impacts are read as one number, since loads limit the speed.
template <typename Product>
inline void add_eight(uint16_t* scores, const uint16_t* offsets, const uint8_t* impacts, size_t first,
                      const Product& product) {
    uint64_t eight = 0;
    if constexpr (Product::reads_impacts) __builtin_memcpy(&eight, impacts + first, 8);
    for (size_t l = 0; l < 8; ++l) {
        uint16_t& score = scores[offsets[first + l]];
        score = static_cast<uint16_t>(score + product(static_cast<uint8_t>(eight >> (8 * l))));
    }
}

// Adds only the last n_new of postings first .. first + 8, without a short loop whose end would be mispredicted.
template <typename Product>
inline void add_last(uint16_t* scores, const uint16_t* offsets, const uint8_t* impacts, size_t first, size_t n_new,
                     const Product& product) {
    constexpr uint16_t all = 65535;
    static constexpr uint16_t masks[16] = {0, 0, 0, 0, 0, 0, 0, 0, all, all, all, all, all, all, all, all};
    for (size_t l = 0; l < 8; ++l) {
        uint16_t& score = scores[offsets[first + l]];
        const uint8_t impact = Product::reads_impacts ? impacts[first + l] : uint8_t{0};
        score = static_cast<uint16_t>(score + (product(impact) & masks[n_new + l]));
    }
}

// Adds the postings from number i on.
template <typename Product>
void add_few(uint16_t* scores, const uint16_t* offsets, const uint8_t* impacts, size_t i, size_t n, const Product& product) {
    for (; i + 8 <= n; i += 8) add_eight(scores, offsets, impacts, i, product);
    if (i < n && n >= 8) {
        add_last(scores, offsets, impacts, n - 8, n - i, product);
        return;
    }
    for (; i < n; ++i) {
        const uint8_t impact = Product::reads_impacts ? impacts[i] : uint8_t{0};
        scores[offsets[i]] = static_cast<uint16_t>(scores[offsets[i]] + product(impact));
    }
}

// Stops after the group of fetch_step postings in which the portion ends: adding some postings of the next portion early
// is cheaper than finding the exact end. A posting before the portion is possible only in damaged data and would leave
// values in accumulators that are assumed to be 0.
template <typename V, typename Product>
size_t add_products(uint16_t* scores, const uint16_t* offsets, const uint8_t* impacts, size_t n, Portion portion,
                    const Product& product) {
    typename V::Offsets lowest = V::highest_offsets();
    size_t i = 0;
    for (; i + fetch_step <= n && offsets[i] < portion.end; i += fetch_step) {
        LIGHTIR_FETCH_AHEAD(offsets, i)
        if constexpr (Product::reads_impacts) LIGHTIR_FETCH_AHEAD(impacts, i)
        if (portion.first > 0) lowest = V::lower(lowest, offsets + i);
        for (size_t j = i; j < i + fetch_step; j += 8) add_eight(scores, offsets, impacts, j, product);
    }
    if (portion.first > 0 && V::any_below(lowest, static_cast<uint16_t>(portion.first))) return not_ascending;
    if (i + fetch_step <= n) return i;
    for (size_t j = i; portion.first > 0 && j < n; ++j) {
        if (offsets[j] < portion.first) return not_ascending;
    }
    add_few(scores, offsets, impacts, i, n, product);
    return n;
}

template <typename V>
size_t add_u8_to_u16(uint16_t* scores, const uint16_t* offsets, const uint8_t* impacts, size_t n, Portion portion,
                     float weight) {
    const uint16_t factor = static_cast<uint16_t>(weight);
    return factor == 1 ? add_products<V>(scores, offsets, impacts, n, portion, Once{})
                       : add_products<V>(scores, offsets, impacts, n, portion, Times{factor});
}

template <typename V>
size_t add_256ths_to_u16(uint16_t* scores, const uint16_t* offsets, const uint8_t* impacts, size_t n, Portion portion,
                         uint16_t weight) {
    return add_products<V>(scores, offsets, impacts, n, portion, Parts{weight});
}

template <typename V>
size_t add_same_to_u16(uint16_t* scores, const uint16_t* offsets, size_t n, Portion portion, uint16_t weight) {
    return add_products<V>(scores, offsets, nullptr, n, portion, Same{weight});
}

template <typename V>
inline typename V::Floats load_weights(const uint8_t* impacts) {
    return V::load_uint8(impacts);
}

template <typename V>
inline typename V::Floats load_weights(const float* weights) {
    return V::load_float(weights);
}

template <typename V, typename W>
inline void add_many(float* scores, const uint16_t* offsets, const W* weights, typename V::Floats factor) {
    alignas(64) float products[n_lanes];
    for (size_t l = 0; l < n_lanes; l += V::width) {
        V::store(products + l, V::mul(factor, load_weights<V>(weights + l)));
    }
    for (size_t l = 0; l < n_lanes; ++l) scores[offsets[l]] += products[l];
}

template <typename V, typename W>
void add_to_f32(float* scores, const uint16_t* offsets, const W* weights, size_t n, float weight) {
    const typename V::Floats factor = V::set(weight);
    size_t i = 0;
    for (; i + fetch_step <= n; i += fetch_step) {
        LIGHTIR_FETCH_AHEAD(offsets, i)
        LIGHTIR_FETCH_AHEAD(weights, i)
        for (size_t j = i; j < i + fetch_step; j += n_lanes) add_many<V>(scores, offsets + j, weights + j, factor);
    }
    for (; i + n_lanes <= n; i += n_lanes) add_many<V>(scores, offsets + i, weights + i, factor);
    for (; i < n; ++i) scores[offsets[i]] += weight * static_cast<float>(weights[i]);
}
#undef LIGHTIR_FETCH_AHEAD

enum class Factors { none, scales, given };  // what the rows of a sum are multiplied with

template <Factors F>
inline float row_factor(const RowSum& what, size_t t) {
    if constexpr (F == Factors::given) return what.factors[t];
    if constexpr (F == Factors::scales) return what.scales[what.ids[t]];
    return 1.0f;
}

constexpr size_t long_row_bytes = 4096;  // rows up to this size are prefetched one query ahead, longer rows some strips ahead
constexpr size_t strips_ahead = 4;
constexpr size_t fetched_at_end = 8;  // rows prefetched of a next query that has more rows

// The bytes to prefetch while a strip is summed: `ahead` further on, in the rows of this query or of the next.
struct Fetch {
    const uint32_t* ids;
    size_t n_ids;
    size_t first;

    Fetch(const RowSum& what, size_t first_byte, size_t used_bytes, size_t strip_bytes) {
        first = first_byte + (used_bytes <= long_row_bytes ? used_bytes : strips_ahead * strip_bytes);
        const bool next = first >= used_bytes;
        ids = next ? what.next_ids : what.ids;
        n_ids = next ? what.n_next_ids : what.n_ids;
        first -= next ? used_bytes : 0;
    }
};

#define LIGHTIR_FETCH_ROW(what, fetch, t, bytes)                                                              \
    if ((t) < (fetch).n_ids) {                                                                                \
        const uint8_t* from = (what).table + static_cast<size_t>((fetch).ids[t]) * (what).row_bytes + (fetch).first; \
        for (size_t byte = 0; byte < (bytes); byte += fetched_line) __builtin_prefetch(from + byte, 0, 2);    \
    }

// Sums columns first .. first + parts * width in registers over the query's rows and prefetches the next columns, since
// rows are scattered over a table that exceeds the caches.
template <typename V, Element E, Factors F, size_t parts>
inline void sum_strip(const RowSum& what, size_t first, float* out) {
    constexpr size_t bytes = parts * V::width * element_bytes(E);
    const Fetch fetch(what, first * element_bytes(E), what.dim * element_bytes(E), bytes);
    typename V::Floats sums[parts];
    for (size_t p = 0; p < parts; ++p) {
        sums[p] = what.start == nullptr ? V::zero() : V::load_float(what.start + first + p * V::width);
    }
    for (size_t t = 0; t < what.n_ids; ++t) {
        const uint8_t* row = what.table + static_cast<size_t>(what.ids[t]) * what.row_bytes;
        LIGHTIR_FETCH_ROW(what, fetch, t, bytes)
        if constexpr (F != Factors::none) {
            const typename V::Floats factor = V::set(row_factor<F>(what, t));
            for (size_t p = 0; p < parts; ++p) {
                sums[p] = V::add(sums[p], V::mul(factor, load<V, E>(row, first + p * V::width)));
            }
        } else {
            for (size_t p = 0; p < parts; ++p) sums[p] = V::add(sums[p], load<V, E>(row, first + p * V::width));
        }
    }
    for (size_t t = what.n_ids; t < what.n_ids + fetched_at_end; ++t) {
        LIGHTIR_FETCH_ROW(what, fetch, t, bytes)
    }
    for (size_t p = 0; p < parts; ++p) V::store(out + first + p * V::width, sums[p]);
}
#undef LIGHTIR_FETCH_ROW

template <typename V, Element E, Factors F>
void sum_columns(const RowSum& what, float* out) {
    size_t j = 0;
    for (; j + 12 * V::width <= what.dim; j += 12 * V::width) sum_strip<V, E, F, 12>(what, j, out);
    for (; j + 4 * V::width <= what.dim; j += 4 * V::width) sum_strip<V, E, F, 4>(what, j, out);
    for (; j + V::width <= what.dim; j += V::width) sum_strip<V, E, F, 1>(what, j, out);
    for (; j < what.dim; ++j) {
        float sum = what.start == nullptr ? 0.0f : what.start[j];
        for (size_t t = 0; t < what.n_ids; ++t) {
            const uint8_t* row = what.table + static_cast<size_t>(what.ids[t]) * what.row_bytes;
            sum += row_factor<F>(what, t) * load_one<E>(row, j);
        }
        out[j] = sum;
    }
}

template <typename V, Element E>
void sum_rows(const RowSum& what, float* out) {
    if (what.factors != nullptr) {
        sum_columns<V, E, Factors::given>(what, out);
    } else {
        sum_columns<V, E, E == Element::int8 ? Factors::scales : Factors::none>(what, out);
    }
}

template <typename V>
inline uint64_t above(const uint16_t* scores, uint16_t threshold) {
    return V::above_u16(scores, threshold);
}

template <typename V>
inline uint64_t above(const float* scores, float threshold) {
    return V::above_f32(scores, threshold);
}

template <typename V, typename Score>
size_t take_above(Score* scores, size_t n, Score threshold, uint32_t* positions, float* values) {
    size_t n_taken = 0;
    for (size_t i = 0; i < n; i += scan_width) {
        for (uint64_t mask = above<V>(scores + i, threshold); mask != 0; mask &= mask - 1) {
            const size_t at = i + static_cast<size_t>(__builtin_ctzll(mask));
            positions[n_taken] = static_cast<uint32_t>(at);
            values[n_taken++] = static_cast<float>(scores[at]);
        }
        for (size_t l = 0; l < scan_width; l += fetched_line / sizeof(Score)) V::clear_line(scores + i + l);
    }
    return n_taken;
}

template <typename V>
void byte_products(const uint8_t* rows, size_t row_bytes, const uint32_t* positions, size_t n, const ByteQuery& query,
                   float* products) {
    for (size_t i = 0; i < n; ++i) {
        const int8_t* row = reinterpret_cast<const int8_t*>(rows + positions[i] * row_bytes);
        products[i] = static_cast<float>(V::byte_product(row, query));
    }
}

template <typename V>
constexpr auto codes_above_of() -> decltype(Level::codes_above) {
    if constexpr (V::reads_codes) return codes_above<V>;
    else return nullptr;
}

template <typename V>
constexpr Level make_level(const char* name) {
    return Level{
        name,
        take_above<V, uint16_t>,
        take_above<V, float>,
        {dot_rows<V, Element::float16>, dot_rows<V, Element::float32>, dot_rows<V, Element::int8>},
        coarse_above<V>,
        codes_above_of<V>(),
        byte_products<V>,
        {sum_rows<V, Element::float16>, sum_rows<V, Element::float32>, sum_rows<V, Element::int8>,
         sum_rows<V, Element::bfloat16>},
        sum_of_squares<V>,
        scale<V>,
        add_u8_to_u16<V>,
        add_256ths_to_u16<V>,
        add_same_to_u16<V>,
        add_to_f32<V, uint8_t>,
        add_to_f32<V, float>,
        V::text_masks,
    };
}

}  // namespace
}  // namespace lightir

#undef LIGHTIR_FETCH
