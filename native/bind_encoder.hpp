#pragma once

#include <nanobind/nanobind.h>

namespace lightir {

// Adds the class that encodes texts by an encoder of the BERT family to the module.
void bind_encoder(nanobind::module_& m);

}  // namespace lightir
