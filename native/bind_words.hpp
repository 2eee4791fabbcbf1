#pragma once

#include <nanobind/nanobind.h>

namespace lightir {

// Adds words, near terms and passages to the module.
void bind_words(nanobind::module_& m);

}  // namespace lightir
