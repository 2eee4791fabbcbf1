#pragma once

#include <nanobind/nanobind.h>

namespace lightir {

// Adds the class that builds graphs to the module.
void bind_graph(nanobind::module_& m);

}  // namespace lightir
