#pragma once

#include <nanobind/nanobind.h>

namespace lightir {

// Adds the documents of segments, their search and normalization to the module.
void bind_search(nanobind::module_& m);

}  // namespace lightir
