#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "query.hpp"

namespace lightir {

// Adds tokenizers and query encoding to the module.
void bind_query(nanobind::module_& m);

// One text's vectors; of a branch that the encoder lacks there is nothing.
struct QueryOfText {
    std::vector<float> dense;
    SparseQueries sparse;
};

// What a QueryEncoder makes of a text; by_library reads texts that its tokenizer refuses. A text of unknown terms alone
// counts as the empty one. Needs the GIL.
QueryOfText query_of_text(nanobind::handle encoder, nanobind::handle text, const nanobind::callable& by_library,
                          std::optional<uint32_t> unknown);

}  // namespace lightir
