#pragma once

#include <string>
#include <vector>

#include "levels.hpp"

namespace lightir {

// The level in use: the highest that this processor supports, or the one that LIGHTIR_KERNEL names.
const Level& level();

// Names of the levels that this processor can run, lowest first.
std::vector<std::string> available_levels();

// Selects the named level; InvalidInput if the name is unknown or the processor does not support it.
void use_level(const std::string& name);

// Selects the level that the environment variable LIGHTIR_KERNEL names, if it is set and not empty.
void use_level_from_environment();

}  // namespace lightir
