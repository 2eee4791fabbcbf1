#include "pair_index.hpp"

#include <algorithm>

#include "errors.hpp"

namespace lightir {
namespace {

constexpr uint32_t no_row = 0xffffffffu;
constexpr size_t found_ahead = 16;  // pairs whose slots are fetched before the first of them is read

}  // namespace

PairIndex::PairIndex(Span<uint32_t> pairs) : pairs_(pairs) {
    if (size() >= no_row / 2) throw InvalidInput("more than 2,147,483,646 pairs");
    size_t n_slots = 2;
    while (n_slots < 2 * size()) {
        n_slots *= 2;
        --shift_;
    }
    slots_.assign(n_slots, no_row);
    for (uint32_t row = 0; row < size(); ++row) {
        size_t at = slot(pairs_[2 * row], pairs_[2 * row + 1]);
        while (slots_[at] != no_row) at = (at + 1) & (n_slots - 1);
        slots_[at] = row;
    }
    has_longer_ = size() > 0 && pairs_[2 * (size() - 1)] >= longer_run;  // pairs ascend
}

// A multiplicative hash (Knuth, volume 3, section 6.4) of both terms: its upper bits.
size_t PairIndex::slot(uint32_t first, uint32_t second) const {
    constexpr uint64_t multiplier = 0x9e3779b97f4a7c15u;
    uint64_t key = (static_cast<uint64_t>(first) << 32 | second) * multiplier;
    key = (key ^ key >> 32) * multiplier;
    return static_cast<size_t>(key >> shift_);
}

uint32_t PairIndex::row_at(size_t at, uint32_t first, uint32_t second) const {
    for (;; at = (at + 1) & (slots_.size() - 1)) {
        const uint32_t row = slots_[at];
        if (row == no_row || (pairs_[2 * size_t{row}] == first && pairs_[2 * size_t{row} + 1] == second)) return row;
    }
}

void PairIndex::find(Span<uint32_t> terms, std::vector<uint32_t>& rows) const {
    size_t slots[found_ahead];
    for (size_t begin = 0; begin + 1 < terms.size; begin += found_ahead) {
        const size_t n = std::min(found_ahead, terms.size - 1 - begin);
        for (size_t i = 0; i < n; ++i) {
            slots[i] = slot(terms[begin + i], terms[begin + i + 1]);
            __builtin_prefetch(&slots_[slots[i]]);
        }
        for (size_t i = 0; i < n; ++i) {
            const uint32_t row = slots_[slots[i]];
            if (row != no_row) __builtin_prefetch(pairs_.data + 2 * size_t{row});
        }
        for (size_t i = 0; i < n; ++i) {
            const uint32_t row = row_at(slots[i], terms[begin + i], terms[begin + i + 1]);
            if (row == no_row) continue;
            rows.push_back(row);
            if (has_longer_) add_longer(row, terms.data + begin + i + 2, terms.data + terms.size, rows);
        }
    }
}

// Appends the rows of the runs that continue a pair by the terms that follow it.
void PairIndex::add_longer(uint32_t row, const uint32_t* next, const uint32_t* end, std::vector<uint32_t>& rows) const {
    for (; next != end; ++next) {
        const uint32_t first = longer_run + row;
        row = row_at(slot(first, *next), first, *next);
        if (row == no_row) return;
        rows.push_back(row);
    }
}

}  // namespace lightir
