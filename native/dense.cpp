#include "dense.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "dispatch.hpp"
#include "errors.hpp"
#include "parallel.hpp"
#include "rotation.hpp"

namespace lightir {
namespace {

constexpr size_t tile = 256;         // rows scored at a time; all queries of a group share a tile
constexpr size_t queries_group = 16;
// Sketches save time only if at most one row in rows_a_hit is returned: a returned row is read twice.
constexpr size_t rows_a_hit = 200;
constexpr size_t rows_ahead = 4, fetched_bytes = 1024;  // prefetch distance and size for rows scored after their copies
// If too many of `tried` rows pass their codes, which costs more than it saves, the next rows are scanned without codes: at
// first as many, then twice as many each time. A row that passes costs as much as `passing` bytes a column in a scan.
constexpr size_t passing = 8, tried = 1024, most_rested = 65536;
static_assert(tile % coded_block == 0, "tiles start at blocks of codes");
constexpr size_t most_waiting = 32;  // rows that passed and are scored together, when they have arrived in a cache

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
        const CoarseQuery query{values_.data(), high_.data(), low_.data(),           high_lanes_,
                                low_lanes_,     dim_,         {step_, slack_, length_}};
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

// Estimates of rows' scores from their codes. Each half of a byte has a table of what its two codes add, in steps. A number
// between two steps is rounded up with the probability of its distance from the lower one, so that the sum's error has mean 0
// and is sub-Gaussian, with a standard deviation of at most half a step a table (Hoeffding, 1963).
class Coded {
public:
    Coded() = default;

    // Stays unusable at a level that reads no codes, and for a query like those of Coarse.
    Coded(const Codes& codes, size_t width, const float* query, size_t dim)
        : codes_(codes), weights_(codes_a_byte * codes.n_columns) {
        double squares = 0.0;
        for (size_t j = 0; j < dim; ++j) {
            const double value = query[j];
            weights_[j] = value;
            center_ += value * codes.center[j];
            squares += value * value;
        }
        length_ = std::sqrt(squares);
        if (level().codes_above == nullptr || width > widest_coarse || !(length_ > 1e-25 && length_ < 1e25)) return;
        for (double& weight : weights_) weight /= length_;
        Rotation(width).apply(weights_.data());
        fill_tables();
        if (query_.deviation > std::sqrt(3.0) * least_error) tables_.clear();  // codes.cpp says why
    }

    bool usable() const { return !tables_.empty(); }

    // Like Coarse::rows_above; `first` is a multiple of coded_block.
    size_t rows_above(size_t first, size_t n, float threshold, uint32_t* positions) const {
        const CodedRows span{codes_.data + first * codes_.n_columns, codes_.n_columns, codes_.scales + first,
                             codes_.errors + first};
        CodedQuery query = query_;
        query.tables = tables_.data();
        const double rest = (static_cast<double>(threshold) - center_) / length_;
        return level().codes_above(span, n, query, just_below(static_cast<float>(rest)), positions);
    }

private:
    // The weights of the two codes of a half byte; halves 2 j and 2 j + 1 are those of column j.
    double first_of(size_t half) const { return weights_[half / 2 + half % 2 * 2 * codes_.n_columns]; }
    double second_of(size_t half) const { return weights_[half / 2 + (half % 2 * 2 + 1) * codes_.n_columns]; }
    // The largest magnitude of what a half byte adds.
    double reach(size_t half) const { return 3.0 * (std::fabs(first_of(half)) + std::fabs(second_of(half))); }

    void fill_tables() {
        const size_t n_tables = 2 * codes_.n_columns;
        const double limit = static_cast<double>(std::min<size_t>(127, 65535 / n_tables));
        double widest = 0.0, base = 0.0;
        for (size_t half = 0; half < n_tables; ++half) {
            widest = std::max(widest, reach(half));
            base -= reach(half);
        }
        const double step = 2.0 * widest / (limit - 1.0);
        tables_.resize(16 * n_tables);
        uint64_t state = 0;
        for (size_t half = 0; half < n_tables; ++half) {
            const double dither = static_cast<double>(splitmix(state) >> 11) * 0x1p-53;
            for (size_t code = 0; code < 16; ++code) {
                const double first = first_of(half) * (2.0 * static_cast<double>(code % 4) - 3.0);
                const double second = second_of(half) * (2.0 * static_cast<double>(code / 4) - 3.0);
                tables_[16 * half + code] = static_cast<uint8_t>((first + second + reach(half)) / step + dither);
            }
        }
        const double deviation = code_deviations * step * std::sqrt(static_cast<double>(n_tables)) / 2.0;
        const double slack = -base * 2e-6;  // roundings of products
        query_ = {nullptr, static_cast<float>(base), static_cast<float>(step), static_cast<float>(slack),
                  static_cast<float>(deviation)};
    }

    Codes codes_;
    std::vector<double> weights_;  // the rotated query, of length 1
    std::vector<uint8_t> tables_;
    CodedQuery query_{};
    double length_ = 0.0, center_ = 0.0;  // of the query; product of the query and the center
};

// Decides whether codes are read, by how many rows passed them. The first rows are scanned without codes, since they all
// would pass.
class Trial {
public:
    explicit Trial(size_t element_bytes) : element_bytes_(element_bytes) {}

    // Whether to read the codes of the next n rows.
    bool pays(size_t n) {
        const bool pays = resting_ == 0;
        resting_ -= std::min(resting_, n);
        return pays;
    }

    void passed(size_t n_found, size_t n) {
        n_found_ += n_found;
        n_rows_ += n;
        if (n_rows_ < tried) return;
        const bool failed = n_found_ * passing > n_rows_ * element_bytes_;
        if (failed) resting_ = next_;
        next_ = failed ? std::min(2 * next_, most_rested) : tried;
        n_found_ = n_rows_ = 0;
    }

private:
    size_t element_bytes_, resting_ = tried, next_ = tried, n_found_ = 0, n_rows_ = 0;
};

// Collects the best rows for one query, tile by tile. Codes, int8 rows and copies are bounded first, and only rows with a
// bound above the threshold are scored.
class Scan {
public:
    // lowest: exclusive lower limit of the scores; NaN for none.
    Scan(const Matrix& rows, const Sketches& sketches, const float* query, size_t dim, size_t k, float lowest)
        : rows_(rows), bytes_(sketches.copies.rows.data == nullptr ? rows : sketches.copies.rows),
          errors_(sketches.copies.errors), query_(query), dim_(dim), spare_(1 + k / 16),
          trial_(element_bytes(rows.element)), best_(k, lowest) {
        if (bytes_.element == Element::int8) coarse_ = Coarse(query, dim);
        if (sketches.codes.data != nullptr) coded_ = Coded(sketches.codes, rows.width, query, dim);
    }

    void visit(size_t first, size_t n, Bitmap allowed) {
        if (coded_.usable() && trial_.pays(n)) {
            visit_codes(first, n, allowed);
            return;
        }
        score_waiting();
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
            take(doc, values[i]);
        }
        best_.shrink(spare_);
    }

    std::vector<Hit> finish() {
        score_waiting();
        return best_.finish();
    }

private:
    // Rows that pass wait until some more have passed: meanwhile they are fetched.
    void visit_codes(size_t first, size_t n, Bitmap allowed) {
        uint32_t positions[tile];
        const size_t n_found = coded_.rows_above(first, n, best_.threshold(), positions);
        trial_.passed(n_found, n);
        for (size_t i = 0; i < n_found; ++i) {
            const size_t doc = first + positions[i];
            if (!allowed(doc)) continue;
            fetch(doc);
            waiting_.push_back(doc);
        }
        if (waiting_.size() >= most_waiting) score_waiting();
    }

    void score_waiting() {
        const bool bounded = coarse_.usable() && errors_ == nullptr;  // not by copies, which would be read too
        for (const size_t doc : waiting_) {
            uint32_t position = 0;
            if (bounded && coarse_.rows_above(rows_, nullptr, doc, 1, best_.threshold(), &position) == 0) continue;
            float score = 0.0f;
            score_rows(rows_, doc, 1, query_, dim_, &score);
            take(doc, score);
        }
        waiting_.clear();
        best_.shrink(spare_);
    }

    void take(size_t doc, float score) {
        if (std::isnan(score)) {
            throw InvalidInput("row " + std::to_string(doc) + " scores NaN: its values or scale are not numbers");
        }
        if (!(score <= best_.threshold())) best_.push(static_cast<uint32_t>(doc), score);
    }

    size_t scored_above(size_t first, size_t n, uint32_t* positions, float* values) const {
        alignas(64) float scores[tile];
        score_rows(rows_, first, n, query_, dim_, scores);
        // take_above_f32 requires a multiple of scan_width entries: the tile is padded, and hits in the padding are dropped.
        std::fill(scores + n, scores + tile, 0.0f);
        size_t n_found = level().take_above_f32(scores, tile, best_.threshold(), positions, values);
        while (n_found > 0 && positions[n_found - 1] >= n) --n_found;
        return n_found;
    }

    // Prefetches a row that is not in a cache because only its sketch was read. Always inlined, because gcc drops calls to
    // functions that only prefetch.
    [[gnu::always_inline]] void fetch(size_t doc) const {
        if (doc >= rows_.n_rows) return;
        const uint8_t* row = rows_.row(doc);
        for (size_t byte = 0; byte < std::min(rows_.row_bytes(), fetched_bytes); byte += 64) {
            __builtin_prefetch(row + byte);
        }
    }

    const Matrix& rows_;
    const Matrix bytes_;  // the copies if there are any, else the rows
    const float* errors_;
    const float* query_;
    size_t dim_;
    size_t spare_;  // documents collected before the threshold is raised
    Coarse coarse_;
    Coded coded_;
    Trial trial_;
    std::vector<size_t> waiting_;  // rows that passed their codes, ascending
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

void check_finite(const float* queries, size_t n_queries, size_t dim) {
    for (size_t i = 0; i < n_queries * dim; ++i) {
        if (!std::isfinite(queries[i])) {
            throw InvalidInput("query " + std::to_string(i / dim) + " holds " + std::to_string(queries[i]) +
                               " in column " + std::to_string(i % dim) + "; finite numbers are expected");
        }
    }
}

std::vector<std::vector<Hit>> dense_top_k(const Matrix& rows, const float* queries, size_t n_queries, size_t dim,
                                          size_t k, size_t n_threads, Bitmap allowed, const Sketches& sketches,
                                          const float* floors) {
    check_finite(queries, n_queries, dim);
    std::vector<std::vector<Hit>> hits(n_queries);
    k = std::min(k, rows.n_rows);
    if (k == 0 || rows.n_rows == 0 || n_queries == 0) return hits;
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
            const Sketches read = any && k > rows.n_rows / rows_a_hit ? Sketches{} : sketches;
            scans.emplace_back(rows, read, queries + q * dim, dim, k, lowest);
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
