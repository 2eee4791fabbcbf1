#pragma once

#include <nanobind/nanobind.h>

namespace lightir {

// Adds the means of cached expansions to the module.
void bind_expansions(nanobind::module_& m);

}  // namespace lightir
