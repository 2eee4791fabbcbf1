#include "fusion.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "errors.hpp"

namespace lightir {

namespace {

constexpr uint32_t nobody = 0xffffffffu;

// Numbers documents in the order in which they come; open addressing over at least twice as many slots.
class Candidates {
public:
    explicit Candidates(size_t most) {
        size_t n_slots = 16;
        while (n_slots < 2 * most) n_slots *= 2;
        slots_.assign(n_slots, nobody);
        doc_ords_.reserve(most);
    }

    uint32_t add(uint32_t doc_ord) {
        size_t slot = (doc_ord * 0x9e3779b1u) & (slots_.size() - 1);
        while (slots_[slot] != nobody) {
            if (doc_ords_[slots_[slot]] == doc_ord) return slots_[slot];
            slot = (slot + 1) & (slots_.size() - 1);
        }
        slots_[slot] = static_cast<uint32_t>(doc_ords_.size());
        doc_ords_.push_back(doc_ord);
        return slots_[slot];
    }

    const std::vector<uint32_t>& doc_ords() const { return doc_ords_; }

private:
    std::vector<uint32_t> slots_;
    std::vector<uint32_t> doc_ords_;
};

// What a branch says of scores, measured by its list alone. Sums run in the list's order, so they have one value.
class Normalizer {
public:
    Normalizer(Span<float> listed, Scale scale, double rrf_k) : scale_(scale), rrf_k_(rrf_k), n_(listed.size) {
        if (n_ == 0) return;
        const auto [low, high] = std::minmax_element(listed.begin(), listed.end());
        least_ = *low, most_ = *high;
        if (scale != Scale::z_score && scale != Scale::dbsf) return;
        double total = 0, squares = 0;
        for (const float score : listed) total += static_cast<double>(score);
        mean_ = total / static_cast<double>(n_);
        for (const float score : listed) {
            const double off = static_cast<double>(score) - mean_;
            squares += off * off;
        }
        deviation_ = std::sqrt(squares / static_cast<double>(n_ - 1));
    }

    double operator()(float score, int64_t rank) const {
        if (n_ == 0) return 0.0;
        const double s = static_cast<double>(score);
        const bool flat = least_ == most_;
        switch (scale_) {
            case Scale::none: return s;
            case Scale::reciprocal: return rank > 0 ? 1.0 / (rrf_k_ + static_cast<double>(rank)) : 0.0;
            case Scale::min_max:
                if (flat) return s >= most_ ? 1.0 : 0.0;
                return std::min(std::max((s - least_) / (most_ - least_), 0.0), 1.0);
            case Scale::z_score: return flat ? (s >= most_ ? 0.0 : -1.0) : (s - mean_) / deviation_;
            case Scale::dbsf:
                if (flat) return s >= most_ ? 0.5 : 0.0;
                return std::max(0.5 + (s - mean_) / deviation_ / 6.0, 0.0);
        }
        return 0.0;
    }

private:
    Scale scale_;
    double rrf_k_;
    size_t n_;
    double least_ = 0, most_ = 0, mean_ = 0, deviation_ = 1;
};

// One branch's raw scores and ranks of the candidates that it lists.
void fill(const FusedBranch& branch, const std::vector<uint32_t>& numbers, const std::vector<uint32_t>& doc_ords,
          FusedColumn& column) {
    const size_t n = doc_ords.size();
    column.scores.assign(n, 0.0f);
    column.ranks.assign(n, 0);
    for (size_t i = 0; i < numbers.size(); ++i) {
        if (column.ranks[numbers[i]] != 0) throw InvalidInput("a branch lists a document twice");
        column.scores[numbers[i]] = branch.scores[i];
        column.ranks[numbers[i]] = static_cast<int64_t>(i) + 1;
    }
}

// The raw scores of the others.
void fill_outside(const FusedBranch& branch, const std::vector<uint32_t>& doc_ords, FusedColumn& column) {
    std::vector<uint32_t> outside, at;
    for (size_t i = 0; i < doc_ords.size(); ++i) {
        if (column.ranks[i] == 0) {
            outside.push_back(doc_ords[i]);
            at.push_back(static_cast<uint32_t>(i));
        }
    }
    std::vector<float> scores(outside.size());
    branch.scorer->score({outside.data(), outside.size()}, scores.data());
    for (size_t i = 0; i < at.size(); ++i) column.scores[at[i]] = scores[i];
}

template <typename T>
std::vector<T> taken(const std::vector<T>& values, const std::vector<uint32_t>& order) {
    std::vector<T> out;
    out.reserve(order.size());
    for (const uint32_t i : order) out.push_back(values[i]);
    return out;
}

// The places of the k best sums, and of those that tie with the last of them if asked.
std::vector<uint32_t> best(const std::vector<double>& sums, const std::vector<uint32_t>& doc_ords, size_t k, bool ties) {
    std::vector<uint32_t> order(sums.size());
    std::iota(order.begin(), order.end(), 0u);
    const auto before = [&](uint32_t a, uint32_t b) {
        return sums[a] != sums[b] ? sums[a] > sums[b] : doc_ords[a] < doc_ords[b];
    };
    if (k < order.size()) {
        const auto end = order.begin() + static_cast<std::ptrdiff_t>(k);
        if (k > 0) std::nth_element(order.begin(), end - 1, order.end(), before);
        auto last = end;
        if (ties && k > 0) {
            const double least = sums[*(end - 1)];
            last = std::partition(end, order.end(), [&](uint32_t i) { return sums[i] == least; });
        }
        order.erase(last, order.end());
    }
    std::sort(order.begin(), order.end(), before);
    return order;
}

}  // namespace

FusedTop fuse(const std::vector<FusedBranch>& branches, Scale scale, double rrf_k, size_t k, bool ties) {
    size_t most = 0;
    for (const FusedBranch& branch : branches) most += branch.doc_ords.size;
    Candidates candidates(most);
    std::vector<std::vector<uint32_t>> numbers(branches.size());
    for (size_t b = 0; b < branches.size(); ++b) {
        numbers[b].reserve(branches[b].doc_ords.size);
        for (const uint32_t doc_ord : branches[b].doc_ords) numbers[b].push_back(candidates.add(doc_ord));
    }
    const std::vector<uint32_t>& doc_ords = candidates.doc_ords();
    FusedTop out;
    out.columns.resize(branches.size());
    std::vector<double> sums(doc_ords.size(), 0.0);
    for (size_t b = 0; b < branches.size(); ++b) {
        FusedColumn& column = out.columns[b];
        fill(branches[b], numbers[b], doc_ords, column);
        if (scale != Scale::reciprocal) fill_outside(branches[b], doc_ords, column);
        const Normalizer normalized(branches[b].scores, scale, rrf_k);
        column.normalized.resize(doc_ords.size());
        for (size_t i = 0; i < doc_ords.size(); ++i) {
            column.normalized[i] = normalized(column.scores[i], column.ranks[i]);
            sums[i] += branches[b].weight * column.normalized[i];
        }
    }
    const std::vector<uint32_t> order = best(sums, doc_ords, k, ties);
    for (FusedColumn& column : out.columns) {
        column = {taken(column.scores, order), taken(column.normalized, order), taken(column.ranks, order)};
    }
    out.doc_ords = taken(doc_ords, order);
    out.scores = taken(sums, order);
    // Ranks alone made the sums, so only the scores of the best are asked for.
    for (size_t b = 0; scale == Scale::reciprocal && b < branches.size(); ++b) {
        fill_outside(branches[b], out.doc_ords, out.columns[b]);
    }
    return out;
}

}  // namespace lightir
