// Approximate search of dense rows over segments that have graphs.
#pragma once

#include <cstddef>
#include <vector>

#include "segments.hpp"

namespace lightir {

// Returns each query's k best documents, found by the segments' graphs, and by scans of segments without one.
//
// A graph is asked for a few more than its segment's share of the k best, and for more as long as all that it was asked for
// belong to them. A walk keeps `candidates` nodes, a quarter more than the graph is asked for if that is more, and in
// proportion more if a part of the documents is allowed. Where it costs no less than a scan (`rows_a_candidate` rows per node), or
// finds fewer allowed documents than it is asked for, the segment is scanned. The best candidates of all graphs, four times the larger
// of k and `candidates`, get their exact scores; the result is sorted by these: score down, then doc_ord up.
std::vector<std::vector<Hit>> graphs_top_k(const FirstOrds& firsts, const std::vector<DenseSegment>& segments,
                                           const WalkCosts& costs, const float* queries, size_t n_queries, size_t dim,
                                           size_t k, size_t n_threads, const std::vector<Bitmap>& allowed);

}  // namespace lightir
