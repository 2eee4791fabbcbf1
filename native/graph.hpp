// Checks of a stored graph before usearch, which trusts its links, follows them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "arrays.hpp"

namespace lightir {

// Checks that a search of a graph stays inside its bytes: sizes, levels, entry point, and each node's key, level and
// neighbors. The layout is usearch's version 2: a matrix, a head of 64 bytes, a header, levels, nodes.
//
// stored: the graph. empty: what usearch saves of an empty graph of the same settings; it says the width, the kinds of
// numbers and the numbers of neighbors. n_rows: exclusive upper bound of the keys. Throws DamagedArrays.
void check_graph(Span<uint8_t> stored, Span<uint8_t> empty, size_t n_rows);

}  // namespace lightir
