// The hot loops, once per instruction set ("dispatch level"). All levels return the same bits: sums have the same order and
// the same roundings; only the number of lanes per instruction differs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "text_masks.hpp"

namespace lightir {

enum class Element : uint8_t { float16 = 0, float32 = 1, int8 = 2, bfloat16 = 3 };

constexpr size_t element_bytes(Element element) {
    return element == Element::float32 ? 4 : element == Element::int8 ? 1 : 2;
}

// Number of partial sums of a dot product: lane l sums the products at l, l + 32, ...; a fixed tree adds the lanes.
constexpr size_t n_lanes = 32;

// Number of accumulators that a scan tests at once; the length of a scan is a multiple of it.
constexpr size_t scan_width = 64;

// A query rounded to 15 bits, for upper bounds of int8 rows' scores: values[j] = 128 * high[j] + low[j], all padded with
// zeros to a multiple of 64. Sums of widest_coarse columns fit 32 bits, lane by lane.
constexpr size_t widest_coarse = 8192;
constexpr int coarse_limit = 127 * 128;  // maximum of |values|

// How a rounded query bounds scores. A row's bound is scale * step * product, with at most 64 roundings, plus
// |scale| * slack + length * error.
struct Bounding {
    float step;    // the query is approximately step * values
    float slack;   // upper bound of the error of a row's score, for scale 1
    float length;  // upper bound of the query's length
};

struct CoarseQuery {
    const int16_t* values;
    const int8_t* high;
    const int8_t* low;
    const int32_t* high_lanes;  // (16,) lane l: sum of high[j] over j with j / 4 % 16 == l
    const int32_t* low_lanes;
    size_t dim;
    Bounding bounding;
};

// A query as int8, for exact products with int8 rows: padded with zeros to a multiple of 64, at most 65,536 columns.
struct ByteQuery {
    const int8_t* values;
    size_t dim;
    int32_t sum;  // of the values
};

// 2-bit codes of rows, in blocks of coded_block rows: byte r of column j has four codes of row r. A code u is the number 2 u - 3.
constexpr size_t coded_block = 64;
constexpr size_t codes_a_byte = 4;

struct CodedRows {
    const uint8_t* data;  // the block of the first row
    size_t n_columns;
    const uint16_t *scales, *errors;  // bfloat16
};

constexpr double code_deviations = 6.5;  // standard deviations by which a score may differ from its estimate
constexpr double least_error = 2.0;      // of a row, relative to its scale

// A query of length 1 for codes. A row's product is base plus the step times the sum of what its columns add: a number for the
// lower half of a byte and one for its upper half. `deviation` bounds the error of that sum, and errors are added squared.
struct CodedQuery {
    const uint8_t* tables;  // (n_columns, 2, 16) numbers of at most 127, whose sums fit 16 bits
    float base, step, slack, deviation;
};

// int8 rows, with an error per row if they are copies.
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
    const uint32_t* next_ids;  // the rows of the next query, to prefetch
    size_t n_next_ids;
    size_t dim;
    const float* factors = nullptr;  // (n_ids,) factors to use instead of the scales, or null
    const float* start = nullptr;    // (dim,) values to add the rows to, or null for zeros
};

// Accumulators first .. end of a block.
struct Portion {
    size_t first, end;
};

constexpr size_t not_ascending = SIZE_MAX;

struct Level {
    const char* name;

    // Writes the ascending positions and the values of all entries above the threshold, sets every entry to 0 and returns
    // the number of hits; n is a multiple of scan_width.
    size_t (*take_above_u16)(uint16_t* scores, size_t n, uint16_t threshold, uint32_t* positions, float* values);
    // The same for floats. The test is "not at or below", so NaN scores pass, and a NaN threshold lets all scores pass.
    size_t (*take_above_f32)(float* scores, size_t n, float threshold, uint32_t* positions, float* values);

    // scores[i] = rows[i][:dim] . query[:dim], before any row scale; indexed by Element.
    void (*dot_rows[3])(const uint8_t* rows, size_t n_rows, size_t row_bytes, const float* query, size_t dim, float* scores);
    // Writes the ascending positions of rows whose score may be above the threshold and returns their number. Rows with a
    // NaN scale pass, and a NaN threshold lets all rows pass. The product of a row is row . values.
    size_t (*coarse_above)(const CoarseRows& rows, size_t n_rows, const CoarseQuery& query, float threshold,
                           uint32_t* positions);
    // The same for codes of rows; null if reading codes takes as long as reading rows.
    size_t (*codes_above)(const CodedRows& rows, size_t n_rows, const CodedQuery& query, float threshold,
                          uint32_t* positions);
    // products[i] = int8 row positions[i] . values, which is an integer.
    void (*byte_products)(const uint8_t* rows, size_t row_bytes, const uint32_t* positions, size_t n, const ByteQuery& query,
                          float* products);
    // out[j] = start[j] + sum over ids of factor * row[j], in the order of the ids; indexed by Element.
    void (*sum_rows[4])(const RowSum& what, float* out);
    // Sum of squares, with the same lanes and tree as a dot product.
    float (*sum_of_squares)(const float* values, size_t n);
    // out[j] = factor * values[j]. Optionally bypasses the caches, which requires a fence before another thread reads.
    void (*scale)(const float* values, size_t n, float factor, float* out, bool stream);
    // scores[offsets[i]] += weight * impacts[i] for the postings of a portion and possibly for some after it; offsets
    // ascend. Returns the number of postings added, or not_ascending if one is before the portion.
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

    // Returns the masks of block_bytes bytes of text, of which block_bytes_read can be read.
    TextMasks (*text_masks)(const char* bytes, const Beginnings& beginnings);
};

extern const Level scalar_level;
#ifdef LIGHTIR_X86
extern const Level avx2_level;
extern const Level avx512_level;
#endif
#ifdef LIGHTIR_ARM64
extern const Level neon_level;
extern const Level dotprod_level;
#endif

}  // namespace lightir
