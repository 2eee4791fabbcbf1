#pragma once

#include <nanobind/nanobind.h>

namespace lightir {

// Adds the class that makes hits to the module.
void bind_hits(nanobind::module_& m);

}  // namespace lightir
