#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "query.hpp"

namespace lightir {

// Adds tokenizers and query encoding to the module.
void bind_query(nanobind::module_& m);

// The vectors of n texts; empty for a branch that the encoder does not have.
struct TextVectors {
    size_t n_texts = 0, dim = 0;
    std::vector<float> dense;  // (n_texts, dim)
    SparseQueries sparse;
};

// Returns a QueryEncoder's vectors of a tuple of texts. by_library tokenizes the texts that the encoder's tokenizer refuses.
// A text with only unknown terms is treated as empty. Requires the GIL.
TextVectors vectors_of_texts(nanobind::handle encoder, const nanobind::tuple& texts, size_t n_threads,
                             const nanobind::callable& by_library, std::optional<uint32_t> unknown);

}  // namespace lightir
