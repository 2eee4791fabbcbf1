#pragma once

#include <cstdint>
#include <vector>

#include "arrays.hpp"
#include "top_k.hpp"

namespace lightir {

// int8 copies of float rows: row i is scales[i] * its copy plus a residual of length at most errors[i].
struct Copies {
    Matrix rows;  // data is null if there are no copies
    const float* errors = nullptr;
};

// 2-bit codes of rows in blocks (CodedRows). With y row i less the center, rotated (rotation.hpp), and u the numbers of its
// codes, a query's product with y is that of the rotated query with scales[i] * u, plus or minus errors[i] times the query's
// length, but with a probability below 1e-9 (codes.cpp). Byte j of a row has the codes of columns j, j + n_columns,
// j + 2 n_columns and j + 3 n_columns, lowest bits first.
struct Codes {
    const uint8_t* data = nullptr;  // (blocks, n_columns, coded_block); null if there are no codes
    size_t n_columns = 0;           // width / 4, rounded up
    const uint16_t* scales = nullptr;  // (n_rows,) bfloat16
    const uint16_t* errors = nullptr;  // (n_rows,) bfloat16
    const float* center = nullptr;  // (width,)
};

// Smaller forms of rows, which a scan reads first to skip rows that cannot be among the best.
struct Sketches {
    Copies copies;
    Codes codes;
};

// For each of the n_queries rows of dim floats, the k allowed rows with the largest inner product with their first
// dim columns. A NaN score is InvalidInput. Sketches make the scan faster; copies do not change the result, and codes
// leave out a row of it with a probability below 1e-9.
// floors (n_queries,) are the queries' minimum scores, or null.
std::vector<std::vector<Hit>> dense_top_k(const Matrix& rows, const float* queries, size_t n_queries, size_t dim,
                                          size_t k, size_t n_threads, Bitmap allowed, const Sketches& sketches = {},
                                          const float* floors = nullptr);

// Throws InvalidInput if a number of the queries is not finite.
void check_finite(const float* queries, size_t n_queries, size_t dim);

// scores[i] = inner product of the query with row doc_ords[i], bit-identical to that of dense_top_k.
void dense_pair_scores(const Matrix& rows, Span<uint32_t> doc_ords, const float* query, size_t dim, float* scores);

}  // namespace lightir
