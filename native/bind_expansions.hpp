#pragma once

#include <nanobind/nanobind.h>

namespace lightir {

// Adds the function that averages cached expansions to the module.
void bind_expansions(nanobind::module_& m);

}  // namespace lightir
