// Helpers of the unit tests: counted expectations, and spans of vectors.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "dispatch.hpp"

namespace lightir {

inline int n_passed = 0, n_failed = 0;

inline void expect(bool holds, const std::string& what) {
    ++(holds ? n_passed : n_failed);
    if (!holds) std::printf("FAILED at level %s: %s\n", level().name, what.c_str());
}

template <typename Error>
void expect_throws(const std::function<void()>& act, const std::string& what) {
    bool thrown = false;
    try {
        act();
    } catch (const Error&) {
        thrown = true;
    }
    expect(thrown, what);
}

template <typename T>
Span<T> span(const std::vector<T>& values) {
    return {values.data(), values.size()};
}

// Returns the exit status for main.
inline int outcome() {
    std::printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace lightir
