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

// Whether this processor multiplies tiles of bfloat16 (AMX), the system lets this process do so, this build knows how,
// and LIGHTIR_KERNEL names no lower level.
bool has_bfloat16_tiles();

}  // namespace lightir
