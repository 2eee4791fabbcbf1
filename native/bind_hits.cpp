// Python's objects of search results, made from arrays: in Python each hit takes longer than its passage.
#include "bind_hits.hpp"

#include <nanobind/stl/string.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "python_arrays.hpp"
#include "python_record.hpp"

namespace lightir {
namespace {

// A branch's scores of n documents.
struct Column {
    // given: (name, weight, scores, normalized, ranks).
    explicit Column(const nb::tuple& given, size_t n)
        : name(given[0]), weight(given[1]), by_words(nb::cast<std::string>(given[0]) == "tokens"),
          scores_(given[2], "scores", 1), normalized_(given[3], "normalized", 1), ranks_(given[4], "ranks", 1),
          scores(scores_.span<float>()), normalized(normalized_.span<double>()), ranks(ranks_.span<int64_t>()) {
        same_length("documents and a branch's scores", n, scores.size);
        same_length("documents and a branch's normalized scores", n, normalized.size);
        same_length("documents and a branch's ranks", n, ranks.size);
    }
    nb::object name, weight;
    bool by_words;

private:
    Array scores_, normalized_, ranks_;

public:
    Span<float> scores;
    Span<double> normalized;
    Span<int64_t> ranks;
};

class HitMaker {
public:
    // hit, branch: the classes Hit and BranchScore.
    HitMaker(nb::handle hit, nb::handle branch) : hit_(hit), branch_(branch) {}

    // documents: n (doc_id, title, metadata). passages: n (snippet, highlights). columns: see Column. pending, named: n
    // bools each, or None for none.
    nb::list make(const nb::list& documents, const nb::list& passages, nb::handle scores, const nb::list& columns,
                  nb::handle pending, nb::handle named) const {
        const size_t n = documents.size();
        const Array sums(scores, "scores", 1);
        const Span<double> totals = sums.span<double>();
        same_length("documents and passages", n, passages.size());
        same_length("documents and scores", n, totals.size);
        std::vector<std::unique_ptr<Column>> branches;
        for (nb::handle column : columns) branches.push_back(std::make_unique<Column>(nb::cast<nb::tuple>(column), n));
        const Flags is_pending(pending, n), is_named(named, n);
        const nb::tuple no_terms;
        nb::list hits;
        for (size_t i = 0; i < n; ++i) {
            const auto document = nb::cast<nb::tuple>(documents[i]), passage = nb::cast<nb::tuple>(passages[i]);
            same_length("a document's fields and id, title, metadata", document.size(), 3);
            same_length("a passage's fields and snippet, highlights", passage.size(), 2);
            const nb::object doc_id = document[0], title = document[1], metadata = document[2];
            const nb::object snippet = passage[0], highlights = passage[1];
            const nb::dict parts = parts_of(branches, i, is_pending[i]);
            hits.append(hit_(doc_id, nb::float_(totals[i]), title, snippet, metadata, parts, no_terms, highlights,
                             nb::bool_(false), nb::bool_(is_pending[i]), nb::none(), nb::bool_(is_named[i])));
        }
        return hits;
    }

private:
    // Bools of n documents.
    class Flags {
    public:
        Flags(nb::handle given, size_t n) : values_(n, false) {
            if (given.is_none()) return;
            const auto flags = nb::cast<nb::list>(given);
            same_length("documents and flags", n, flags.size());
            for (size_t i = 0; i < n; ++i) values_[i] = nb::cast<bool>(flags[i]);
        }
        bool operator[](size_t i) const { return values_[i]; }

    private:
        std::vector<bool> values_;
    };

    nb::dict parts_of(const std::vector<std::unique_ptr<Column>>& columns, size_t i, bool is_pending) const {
        nb::dict parts;
        for (const std::unique_ptr<Column>& column : columns) {
            const float score = column->scores[i];
            const double normalized = column->normalized[i];
            const int64_t rank = column->ranks[i];
            if (is_pending && !column->by_words) {
                parts[column->name] = branch_(nb::none(), nb::none(), nb::none(), column->weight);
            } else if (!std::isnan(score)) {
                const nb::object known = std::isnan(normalized) ? nb::object(nb::none()) : nb::float_(normalized);
                const nb::object place = rank == 0 ? nb::object(nb::none()) : nb::int_(rank);
                parts[column->name] = branch_(nb::float_(static_cast<double>(score)), known, place, column->weight);
            }
        }
        return parts;
    }

    Record hit_, branch_;
};

}  // namespace

void bind_hits(nb::module_& m) {
    nb::class_<HitMaker>(m, "HitMaker")
        .def(nb::init<nb::handle, nb::handle>())
        .def("make", &HitMaker::make, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none());
}

}  // namespace lightir
