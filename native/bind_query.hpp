#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "query.hpp"

namespace lightir {

// Adds tokenizers and query encoding to the module.
void bind_query(nanobind::module_& m);

// The vectors of n texts; those of a branch that the encoder lacks are empty.
struct TextVectors {
    size_t n_texts = 0, dim = 0;
    std::vector<float> dense;  // (n_texts, dim)
    SparseQueries sparse;
};

// Returns a QueryEncoder's vectors of a tuple of texts. by_library reads texts that its tokenizer refuses. A text of unknown
// terms alone counts as the empty one. Needs the GIL.
TextVectors vectors_of_texts(nanobind::handle encoder, const nanobind::tuple& texts, size_t n_threads,
                             const nanobind::callable& by_library, std::optional<uint32_t> unknown);

}  // namespace lightir
