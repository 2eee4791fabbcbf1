#pragma once

#include <nanobind/nanobind.h>

namespace lightir {

// Adds searches of single queries over all branches to the module.
void bind_hybrid(nanobind::module_& m);

}  // namespace lightir
