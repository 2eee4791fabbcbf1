#pragma once

#include <nanobind/nanobind.h>

namespace lightir {

// Adds the functions and classes of query encoding to the module.
void bind_query(nanobind::module_& m);

}  // namespace lightir
