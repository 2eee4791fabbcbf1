// The hot loops, once for each instruction set ("dispatch level"). All levels give the same bits: sums run in the
// same order with the same roundings, only the number of lanes that one instruction holds differs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lightir {

enum class Element : uint8_t { float16 = 0, float32 = 1, int8 = 2, bfloat16 = 3 };

constexpr size_t element_bytes(Element element) {
    return element == Element::float32 ? 4 : element == Element::int8 ? 1 : 2;
}

// Partial sums that a dot product keeps: lane l sums the products at l, l + 32, ...; a fixed tree adds the lanes.
constexpr size_t n_lanes = 32;

// The scans look at this many accumulators at once; their lengths are multiples of it.
constexpr size_t scan_width = 64;

// A query rounded to 15 bits, for upper bounds of int8 rows' scores: values[j] = 128 * high[j] + low[j], all padded with
// zeros to a multiple of 64. Sums of widest_coarse columns fit 32 bits, lane by lane.
constexpr size_t widest_coarse = 8192;
constexpr int coarse_limit = 127 * 128;  // of |values|

struct CoarseQuery {
    const int16_t* values;
    const int8_t* high;
    const int8_t* low;
    const int32_t* high_lanes;  // (16,) lane l: sum of high[j] over j with j / 4 % 16 == l
    const int32_t* low_lanes;
    size_t dim;
    float step;    // the query is about step * values
    float slack;   // what a row of scale 1 can score above that
    float length;  // of the query, at least
};

// Rows in int8, and if they are copies the errors of each.
struct CoarseRows {
    const uint8_t* data;
    size_t row_bytes;
    const float* scales;
    const float* errors;  // or null
};

struct RowSum {
    const uint8_t* table;  // rows of row_bytes
    size_t row_bytes;
    const float* scales;     // (rows,) of int8 tables, else null
    const uint32_t* ids;     // the rows to sum, in order
    size_t n_ids;
    const uint32_t* next_ids;  // the rows of the query after this one, to prefetch
    size_t n_next_ids;
    size_t dim;
};

// Accumulators first .. end of a block.
struct Portion {
    size_t first, end;
};

constexpr size_t not_ascending = SIZE_MAX;

struct Level {
    const char* name;

    // Positions and values of all entries above the threshold, ascending; every entry read is set to 0. Returns how
    // many; n is a multiple of scan_width.
    size_t (*take_above_u16)(uint16_t* scores, size_t n, uint16_t threshold, uint32_t* positions, float* values);
    // The same for floats: "not at or below", so that NaN scores come out, and a NaN threshold lets everything pass.
    size_t (*take_above_f32)(float* scores, size_t n, float threshold, uint32_t* positions, float* values);

    // scores[i] = rows[i][:dim] . query[:dim], before any row scale; indexed by Element.
    void (*dot_rows[3])(const uint8_t* rows, size_t n_rows, size_t row_bytes, const float* query, size_t dim, float* scores);
    // The positions, ascending, of rows whose score may be above the threshold, and how many; NaN scales are among them,
    // and a NaN threshold lets all pass. A row's bound is scale * step * (row . values), but for rounding 64 times at
    // most, and |scale| * slack + length * error.
    size_t (*coarse_above)(const CoarseRows& rows, size_t n_rows, const CoarseQuery& query, float threshold,
                           uint32_t* positions);
    // out[j] = sum over ids of weight * scale * row[j], in the order of the ids; indexed by Element.
    void (*sum_rows[4])(const RowSum& what, float* out);
    // Sum of squares, with the lanes and the tree of a dot product.
    float (*sum_of_squares)(const float* values, size_t n);
    // out[j] = factor * values[j]; past the caches if asked, which takes a fence before another thread may read.
    void (*scale)(const float* values, size_t n, float factor, float* out, bool stream);
    // scores[offsets[i]] += weight * impacts[i] for the postings of a portion, and perhaps for some behind it; offsets
    // ascend. Returns how many it were, or not_ascending if one lies before the portion.
    size_t (*add_u8_to_u16)(uint16_t* scores, const uint16_t* offsets, const uint8_t* impacts, size_t n, Portion portion,
                            float weight);
    // scores[offsets[i]] += weight * impacts[i] / 256, rounded up.
    size_t (*add_256ths_to_u16)(uint16_t* scores, const uint16_t* offsets, const uint8_t* impacts, size_t n,
                                Portion portion, uint16_t weight);
    // scores[offsets[i]] += weight.
    size_t (*add_same_to_u16)(uint16_t* scores, const uint16_t* offsets, size_t n, Portion portion, uint16_t weight);
    // scores[offsets[i]] += weight * impacts[i] in ascending i; the offsets of one call differ.
    void (*add_u8_to_f32)(float* scores, const uint16_t* offsets, const uint8_t* impacts, size_t n, float weight);
    void (*add_f32_to_f32)(float* scores, const uint16_t* offsets, const float* weights, size_t n, float weight);
};

extern const Level scalar_level;
#ifdef LIGHTIR_X86
extern const Level avx2_level;
extern const Level avx512_level;
#endif

}  // namespace lightir
