// Runs on every aarch64 processor.
#include "neon.hpp"

namespace lightir {

extern const Level neon_level = make_level<Neon>("neon");

}  // namespace lightir
