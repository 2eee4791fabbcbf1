#pragma once

#include <stdexcept>
#include <string>

namespace lightir {

// An invalid argument; becomes lightir.errors.InvalidInput in Python.
struct InvalidInput : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// Stored arrays that are inconsistent; becomes lightir.errors.FormatError in Python.
struct DamagedArrays : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace lightir
