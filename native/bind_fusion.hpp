#pragma once

#include <nanobind/nanobind.h>

namespace lightir {

// Adds segments' documents and fusion to the module.
void bind_fusion(nanobind::module_& m);

}  // namespace lightir
