// The pairs of adjacent terms, and longer runs of terms, that have table rows of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arrays.hpp"

namespace lightir {

constexpr uint32_t longer_run = 1u << 31;

// Finds pairs in a borrowed (n, 2) array of distinct pairs by a hash table of their row numbers. A pair whose first item is
// longer_run + j continues pair j by one more term.
class PairIndex {
public:
    explicit PairIndex(Span<uint32_t> pairs);

    size_t size() const { return pairs_.size / 2; }

    // Appends the rows of a text's pairs and longer runs, in the order of their first terms, shorter ones first.
    void find(Span<uint32_t> terms, std::vector<uint32_t>& rows) const;

private:
    size_t slot(uint32_t first, uint32_t second) const;
    uint32_t row_at(size_t slot, uint32_t first, uint32_t second) const;
    void add_longer(uint32_t row, const uint32_t* next, const uint32_t* end, std::vector<uint32_t>& rows) const;

    Span<uint32_t> pairs_;
    std::vector<uint32_t> slots_;  // row numbers, or no_row; at most half of the slots have a row
    unsigned shift_ = 63;
    bool has_longer_ = false;
};

}  // namespace lightir
