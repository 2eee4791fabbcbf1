#include "dense.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "dispatch.hpp"
#include "errors.hpp"
#include "parallel.hpp"

namespace lightir {
namespace {

constexpr size_t tile = 256;         // rows scored at a time; all queries of a group share a tile
constexpr size_t queries_group = 16;
// Copies save time only if at most one row in rows_a_hit is returned: a returned row is read twice.
constexpr size_t rows_a_hit = 200;
constexpr size_t rows_ahead = 4, fetched_bytes = 1024;  // prefetch distance and size for rows scored after their copies

void check_finite(const float* queries, size_t n_queries, size_t dim) {
    for (size_t i = 0; i < n_queries * dim; ++i) {
        if (!std::isfinite(queries[i])) {
            throw InvalidInput("query " + std::to_string(i / dim) + " holds " + std::to_string(queries[i]) +
                               " in column " + std::to_string(i % dim) + "; finite numbers are expected");
        }
    }
}

void score_rows(const Matrix& rows, size_t first, size_t n, const float* query, size_t dim, float* scores) {
    level().dot_rows[static_cast<size_t>(rows.element)](rows.row(first), n, rows.row_bytes(), query, dim, scores);
    if (rows.scales != nullptr) {
        for (size_t i = 0; i < n; ++i) scores[i] *= rows.scales[first + i];
    }
}

// Upper bounds of int8 rows' scores from integer arithmetic, several times as fast as the scores themselves.
class Coarse {
public:
    Coarse() = default;

    // Stays unusable for a query that is all zeros, too wide, or likely to overflow or underflow floats.
    Coarse(const float* query, size_t dim) {
        float most = 0.0f;
        for (size_t j = 0; j < dim; ++j) most = std::max(most, std::fabs(query[j]));
        if (dim > widest_coarse || !(most > 1e-25f && most < 1e25f)) return;
        const size_t padded = (dim + 63) / 64 * 64;
        values_.resize(padded);
        high_.resize(padded);
        low_.resize(padded);
        step_ = most / static_cast<float>(coarse_limit);
        double error = 0.0, magnitude = 0.0, squares = 0.0;
        for (size_t j = 0; j < dim; ++j) {
            const int value = std::clamp(static_cast<int>(std::lrintf(query[j] / step_)), -coarse_limit, coarse_limit);
            const int high = (value + 64) >> 7;  // -64 <= low < 64
            values_[j] = static_cast<int16_t>(value);
            high_[j] = static_cast<int8_t>(high);
            low_[j] = static_cast<int8_t>(value - 128 * high);
            high_lanes_[j / 4 % 16] += high_[j];
            low_lanes_[j / 4 % 16] += low_[j];
            error += std::fabs(static_cast<double>(query[j]) - static_cast<double>(step_) * value);
            magnitude += std::fabs(static_cast<double>(query[j]));
            squares += static_cast<double>(query[j]) * static_cast<double>(query[j]);
        }
        length_ = static_cast<float>(std::sqrt(squares) * 1.001);
        // A row's values are at most 128 in magnitude. The second term bounds the roundings: those of the score (a
        // product, a sum per strip of 32 columns, 5 sums of lanes, the scale) and at most 64 made here.
        const double roundings = static_cast<double>(dim) / n_lanes + 128.0;
        slack_ = static_cast<float>(128.0 * (error + magnitude * roundings * 0x1p-24) * 1.001);
        dim_ = dim;
    }

    bool usable() const { return dim_ > 0; }

    // Returns the number of rows whose scores, as score_rows computes them, may be above the threshold or whose scale is
    // NaN, and writes their positions relative to `first`. If errors are given, the rows are copies, and the bound is for
    // the scores of the original rows (Cauchy-Schwarz inequality).
    size_t rows_above(const Matrix& rows, const float* errors, size_t first, size_t n, float threshold,
                      uint32_t* positions) const {
        const CoarseQuery query{values_.data(), high_.data(), low_.data(), high_lanes_, low_lanes_,
                                dim_,           step_,        slack_,      length_};
        const CoarseRows span{rows.row(first), rows.row_bytes(), rows.scales + first,
                              errors == nullptr ? nullptr : errors + first};
        return level().coarse_above(span, n, query, threshold, positions);
    }

private:
    std::vector<int16_t> values_;
    std::vector<int8_t> high_, low_;
    int32_t high_lanes_[16] = {}, low_lanes_[16] = {};
    float step_ = 0.0f, slack_ = 0.0f, length_ = 0.0f;
    size_t dim_ = 0;
};

// Collects the best rows for one query, tile by tile. int8 rows and copies are bounded first, and only rows with a bound
// above the threshold are scored, which does not change the result.
class Scan {
public:
    // lowest: exclusive lower limit of the scores; NaN for none.
    Scan(const Matrix& rows, const Copies& copies, const float* query, size_t dim, size_t k, float lowest)
        : rows_(rows), bytes_(copies.rows.data == nullptr ? rows : copies.rows), errors_(copies.errors), query_(query),
          dim_(dim), best_(k, lowest) {
        if (bytes_.element == Element::int8) coarse_ = Coarse(query, dim);
    }

    void visit(size_t first, size_t n, Bitmap allowed) {
        uint32_t positions[tile];
        float values[tile];
        const size_t n_found = coarse_.usable()
                                   ? coarse_.rows_above(bytes_, errors_, first, n, best_.threshold(), positions)
                                   : scored_above(first, n, positions, values);
        for (size_t i = 0; i < n_found; ++i) {
            const size_t doc = first + positions[i];
            if (errors_ != nullptr && i + rows_ahead < n_found) fetch(first + positions[i + rows_ahead]);
            if (!allowed(doc)) continue;
            if (coarse_.usable()) score_rows(rows_, doc, 1, query_, dim_, values + i);
            if (std::isnan(values[i])) {
                throw InvalidInput("row " + std::to_string(doc) + " scores NaN: its values or scale are not numbers");
            }
            if (!(values[i] <= best_.threshold())) best_.push(static_cast<uint32_t>(doc), values[i]);
        }
        best_.shrink();
    }

    std::vector<Hit> finish() { return best_.finish(); }

private:
    size_t scored_above(size_t first, size_t n, uint32_t* positions, float* values) const {
        alignas(64) float scores[tile];
        score_rows(rows_, first, n, query_, dim_, scores);
        // take_above_f32 requires a multiple of scan_width entries: the tile is padded, and hits in the padding are dropped.
        std::fill(scores + n, scores + tile, 0.0f);
        size_t n_found = level().take_above_f32(scores, tile, best_.threshold(), positions, values);
        while (n_found > 0 && positions[n_found - 1] >= n) --n_found;
        return n_found;
    }

    // Prefetches a row that is not in a cache because only its copy was read.
    void fetch(size_t doc) const {
        if (doc >= rows_.n_rows) return;
        const uint8_t* row = rows_.row(doc);
        for (size_t byte = 0; byte < std::min(rows_.row_bytes(), fetched_bytes); byte += 64) {
            __builtin_prefetch(row + byte);
        }
    }

    const Matrix& rows_;
    const Matrix& bytes_;  // the copies if there are any, else the rows
    const float* errors_;
    const float* query_;
    size_t dim_;
    Coarse coarse_;
    TopK best_;
};

std::vector<Hit> merge(std::vector<std::vector<Hit>>& parts, size_t k) {
    if (parts.size() == 1) return std::move(parts[0]);
    TopK best(k, std::numeric_limits<float>::quiet_NaN());
    for (const std::vector<Hit>& part : parts) {
        for (const Hit& hit : part) best.push(hit.doc_ord, hit.score);
    }
    return best.finish();
}

}  // namespace

std::vector<std::vector<Hit>> dense_top_k(const Matrix& rows, const float* queries, size_t n_queries, size_t dim,
                                          size_t k, size_t n_threads, Bitmap allowed, const Copies& copies,
                                          const float* floors) {
    check_finite(queries, n_queries, dim);
    std::vector<std::vector<Hit>> hits(n_queries);
    k = std::min(k, rows.n_rows);
    if (k == 0 || rows.n_rows == 0 || n_queries == 0) return hits;
    const Copies none;
    // A group of queries shares each tile of rows. If there are fewer groups than threads, the rows are divided too.
    const size_t n_groups = (n_queries + queries_group - 1) / queries_group;
    const size_t n_tiles = (rows.n_rows + tile - 1) / tile;
    const size_t n_parts = std::min(n_tiles, std::max<size_t>(1, n_threads / n_groups));
    std::vector<std::vector<std::vector<Hit>>> found(n_queries, std::vector<std::vector<Hit>>(n_parts));
    parallel_for(n_groups * n_parts, n_threads, [&](size_t task) {
        const size_t group = task / n_parts, part = task % n_parts;
        const size_t first_query = group * queries_group, last_query = std::min(n_queries, first_query + queries_group);
        std::vector<Scan> scans;
        for (size_t q = first_query; q < last_query; ++q) {
            const bool any = floors == nullptr || floors[q] == -std::numeric_limits<float>::infinity();
            const float lowest = any ? std::numeric_limits<float>::quiet_NaN() : just_below(floors[q]);
            const bool few = !any || k <= rows.n_rows / rows_a_hit;
            scans.emplace_back(rows, few ? copies : none, queries + q * dim, dim, k, lowest);
        }
        for (size_t t = n_tiles * part / n_parts; t < n_tiles * (part + 1) / n_parts; ++t) {
            const size_t n = std::min(tile, rows.n_rows - t * tile);
            for (Scan& scan : scans) scan.visit(t * tile, n, allowed);
        }
        for (size_t q = first_query; q < last_query; ++q) found[q][part] = scans[q - first_query].finish();
    });
    for (size_t q = 0; q < n_queries; ++q) hits[q] = merge(found[q], k);
    return hits;
}

void dense_pair_scores(const Matrix& rows, Span<uint32_t> doc_ords, const float* query, size_t dim, float* scores) {
    check_finite(query, 1, dim);
    for (size_t i = 0; i < doc_ords.size; ++i) {
        if (doc_ords[i] >= rows.n_rows) {
            throw InvalidInput("doc_ord " + std::to_string(doc_ords[i]) + " is outside the " +
                               std::to_string(rows.n_rows) + " rows");
        }
        score_rows(rows, doc_ords[i], 1, query, dim, scores + i);
        if (std::isnan(scores[i])) {
            throw InvalidInput("row " + std::to_string(doc_ords[i]) +
                               " scores NaN: its values or scale are not numbers");
        }
        scores[i] += 0.0f;  // no -0, as in dense_top_k
    }
}

}  // namespace lightir
