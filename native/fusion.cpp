#include "fusion.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>

#include "errors.hpp"

namespace lightir {

namespace {

constexpr uint32_t nobody = 0xffffffffu;

// Numbers documents in the order of their insertion, by open addressing with a load factor of at most 0.5.
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

// Normalizes a branch's scores by the statistics of its list, or by the two scores of Scale::absolute. Sums follow the
// list's order, which makes them deterministic.
class Normalizer {
public:
    Normalizer(Span<float> listed, Scale scale, double rrf_k, double zero = 0.0, double one = 1.0)
        : scale_(scale), rrf_k_(rrf_k), n_(listed.size), low_(zero), high_(one) {
        if (n_ == 0) return;
        const auto [low, high] = std::minmax_element(listed.begin(), listed.end());
        least_ = *low, most_ = *high;
        nothing_ = scale == Scale::max ? std::min(least_, 0.0) : least_;
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

    // Bounds of the normalized score of a document outside the list; in a complete list no other document scores higher.
    double most_outside(bool complete) const { return normalized(complete ? least_ : infinity, 0); }
    double least_outside() const { return normalized(-infinity, 0); }

    double operator()(float score, int64_t rank) const { return normalized(static_cast<double>(score), rank); }

private:
    static constexpr double infinity = std::numeric_limits<double>::infinity();

    // Monotonic in s, roundings included.
    double normalized(double s, int64_t rank) const {
        if (n_ == 0) return 0.0;
        const bool flat = least_ == most_;
        switch (scale_) {
            case Scale::none: return s;
            case Scale::absolute: return high_ > low_ ? std::max((s - low_) / (high_ - low_), 0.0) : 0.0;
            case Scale::reciprocal: return rank > 0 ? 1.0 / (rrf_k_ + static_cast<double>(rank)) : 0.0;
            case Scale::max:
            case Scale::min_max:
                if (nothing_ == most_) return s >= most_ ? 1.0 : 0.0;
                return std::min(std::max((s - nothing_) / (most_ - nothing_), 0.0), 1.0);
            case Scale::z_score: return flat ? (s >= most_ ? 0.0 : -1.0) : (s - mean_) / deviation_;
            case Scale::dbsf:
                if (flat) return s >= most_ ? 0.5 : 0.0;
                return std::max(0.5 + (s - mean_) / deviation_ / 6.0, 0.0);
        }
        return 0.0;
    }

    Scale scale_;
    double rrf_k_;
    size_t n_;
    double low_, high_;
    double least_ = 0, most_ = 0, mean_ = 0, deviation_ = 1;
    double nothing_ = 0;  // the score that is normalized to 0
};

template <typename T>
std::vector<T> some_of(const std::vector<T>& values, const std::vector<uint32_t>& order) {
    std::vector<T> out;
    out.reserve(order.size());
    for (const uint32_t i : order) out.push_back(values[i]);
    return out;
}

// The k-th best of the values added, or minus infinity if there are fewer.
class Threshold {
public:
    explicit Threshold(size_t k) : k_(k) {}

    void add(double value) {
        if (best_.size() == k_ && value <= best_.top()) return;
        best_.push(value);
        if (best_.size() > k_) best_.pop();
    }

    double value() const { return best_.size() < k_ ? -std::numeric_limits<double>::infinity() : best_.top(); }

private:
    size_t k_;  // at least 1
    std::priority_queue<double, std::vector<double>, std::greater<double>> best_;
};

// One branch's contribution to the candidates' sums. A branch is open if the normalized score of a document outside its
// list depends on the score. It is not with rank fusion, or with min-max below the lowest score of a complete list.
class Part {
public:
    Part(const FusedBranch& branch, const std::vector<uint32_t>& numbers, const std::vector<uint32_t>& known,
         const std::vector<uint32_t>& doc_ords, Scale scale, double rrf_k)
        : branch_(branch), doc_ords_(doc_ords), normalized_(branch.scores, scale, rrf_k, branch.low, branch.high),
          most_outside_(normalized_.most_outside(branch.complete)),
          open_(most_outside_ != normalized_.least_outside()) {
        const size_t n = doc_ords.size();
        column_.scores.assign(n, 0.0f);
        column_.ranks.assign(n, 0);
        column_.normalized.assign(n, open_ ? 0.0 : most_outside_);
        scored_.assign(n, false);
        for (size_t i = 0; i < known.size(); ++i) {
            if (known[i] != nobody) set_score(known[i], branch.known->scores[i]);
        }
        for (size_t i = 0; i < numbers.size(); ++i) {
            if (numbers[i] == nobody) continue;
            if (column_.ranks[numbers[i]] != 0) throw InvalidInput("a branch lists a document twice");
            const int64_t rank = static_cast<int64_t>(i) + 1;
            scored_[numbers[i]] = true;
            column_.scores[numbers[i]] = branch.scores[i];
            column_.ranks[numbers[i]] = rank;
            column_.normalized[numbers[i]] = normalized_(branch.scores[i], rank);
        }
    }

    // Whether the contribution to candidate i depends on a score that is not known yet.
    bool asks(size_t i) const { return open_ && !scored_[i]; }

    // Whether the contribution to documents outside the list depends on their scores.
    bool open() const { return open_; }

    double weighted(size_t i) const { return branch_.weight * column_.normalized[i]; }

    // Upper bound of weighted(i) before score() is called.
    double most(size_t i) const {
        if (!asks(i)) return weighted(i);
        if (branch_.weight < 0.0) return std::numeric_limits<double>::infinity();
        return branch_.weight == 0.0 ? 0.0 : branch_.weight * most_outside_;
    }

    // Computes the missing scores of candidates and, if the branch is open, normalizes them.
    void score(const std::vector<uint32_t>& numbers) {
        std::vector<uint32_t> outside, at;
        for (const uint32_t i : numbers) {
            if (scored_[i]) continue;
            outside.push_back(doc_ords_[i]);
            at.push_back(i);
        }
        std::vector<float> scores(outside.size());
        branch_.scorer->score({outside.data(), outside.size()}, scores.data());
        for (size_t i = 0; i < at.size(); ++i) set_score(at[i], scores[i]);
    }

    // Returns the column of the given candidates. Those of an open branch must have been scored.
    FusedColumn taken(const std::vector<uint32_t>& numbers) {
        if (!open_) score(numbers);
        return {some_of(column_.scores, numbers), some_of(column_.normalized, numbers),
                some_of(column_.ranks, numbers)};
    }

private:
    // Sets the score of a document outside the list.
    void set_score(uint32_t i, float score) {
        scored_[i] = true;
        column_.scores[i] = score;
        if (open_) column_.normalized[i] = normalized_(score, 0);
    }

    const FusedBranch& branch_;
    const std::vector<uint32_t>& doc_ords_;
    Normalizer normalized_;
    double most_outside_;
    bool open_;
    std::vector<bool> scored_;  // whether the score is listed, known or computed
    FusedColumn column_;
};

// The candidates' sums: exact for every candidate that can be among the k best, otherwise an upper bound that is below the
// k-th best sum.
struct Sums {
    std::vector<double> values;
    double least = 0.0;  // the k-th best sum, or minus infinity
};

Sums sums_of(std::vector<Part>& parts, size_t n_candidates, size_t k) {
    Sums out{std::vector<double>(n_candidates, 0.0)};
    std::vector<double>& sums = out.values;
    if (k == 0) return out;
    const auto sum = [&](uint32_t i) {
        double total = 0.0;
        for (const Part& part : parts) total += part.weighted(i);
        return total;
    };
    Threshold threshold(k);
    std::vector<uint32_t> open;
    for (uint32_t i = 0; i < n_candidates; ++i) {
        if (std::none_of(parts.begin(), parts.end(), [i](const Part& part) { return part.asks(i); })) {
            threshold.add(sums[i] = sum(i));
            continue;
        }
        for (const Part& part : parts) sums[i] += part.most(i);
        open.push_back(i);
    }
    const auto lower = [&](uint32_t a, uint32_t b) { return sums[a] < sums[b]; };
    std::make_heap(open.begin(), open.end(), lower);
    const auto promising = [&] { return !open.empty() && sums[open.front()] >= threshold.value(); };
    for (size_t size = 16; promising(); size *= 2) {
        std::vector<uint32_t> some;
        while (some.size() < size && promising()) {
            std::pop_heap(open.begin(), open.end(), lower);
            some.push_back(open.back());
            open.pop_back();
        }
        for (Part& part : parts) {
            if (part.open()) part.score(some);
        }
        for (const uint32_t i : some) threshold.add(sums[i] = sum(i));
    }
    out.least = threshold.value();
    return out;
}

// Returns the numbers of the k best candidates and, if ties is set, of those that tie with the last. At least
// min(k, sums.size()) sums are `least` or more.
std::vector<uint32_t> best(const std::vector<double>& sums, double least, const std::vector<uint32_t>& doc_ords, size_t k,
                           bool ties) {
    std::vector<uint32_t> order;
    if (k == 0) return order;
    for (uint32_t i = 0; i < sums.size(); ++i) {
        if (sums[i] >= least) order.push_back(i);
    }
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
        return sums[a] != sums[b] ? sums[a] > sums[b] : doc_ords[a] < doc_ords[b];
    });
    if (!ties && k < order.size()) order.resize(k);
    return order;
}

}  // namespace

std::vector<double> normalized(Span<float> scores, Span<float> listed, Span<int64_t> ranks, Scale scale, double rrf_k) {
    const Normalizer normalizer(listed, scale, rrf_k);
    std::vector<double> out(scores.size);
    for (size_t i = 0; i < scores.size; ++i) out[i] = normalizer(scores[i], ranks[i]);
    return out;
}

FusedTop fuse(const std::vector<FusedBranch>& branches, const FusionOptions& options) {
    size_t most = options.also.size;
    for (const FusedBranch& branch : branches) most += branch.doc_ords.size;
    Candidates candidates(most);
    const auto number_of = [&](uint32_t doc_ord) {
        return is_pending(options.pending, doc_ord) ? nobody : candidates.add(doc_ord);
    };
    std::vector<std::vector<uint32_t>> numbers(branches.size());
    for (size_t b = 0; b < branches.size(); ++b) {
        numbers[b].reserve(branches[b].doc_ords.size);
        for (const uint32_t doc_ord : branches[b].doc_ords) numbers[b].push_back(number_of(doc_ord));
    }
    for (const uint32_t doc_ord : options.also) number_of(doc_ord);
    std::vector<std::vector<uint32_t>> known(branches.size());
    for (size_t b = 0; b < branches.size(); ++b) {
        if (branches[b].known == nullptr) continue;
        for (const uint32_t doc_ord : branches[b].known->doc_ords) known[b].push_back(number_of(doc_ord));
    }
    const std::vector<uint32_t>& doc_ords = candidates.doc_ords();
    std::vector<Part> parts;
    parts.reserve(branches.size());
    for (size_t b = 0; b < branches.size(); ++b) {
        parts.emplace_back(branches[b], numbers[b], known[b], doc_ords, options.scale, options.rrf_k);
    }
    const Sums sums = sums_of(parts, doc_ords.size(), options.k);
    const std::vector<uint32_t> order = best(sums.values, sums.least, doc_ords, options.k, options.ties);
    FusedTop out{some_of(doc_ords, order), some_of(sums.values, order), {}};
    if (!options.columns) return out;
    for (Part& part : parts) out.columns.push_back(part.taken(order));
    return out;
}

}  // namespace lightir
