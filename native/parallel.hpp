#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace lightir {

// Runs task(0) .. task(n_tasks - 1), each once, on at most n_threads threads, and rethrows the first exception.
template <typename Task>
void parallel_for(size_t n_tasks, size_t n_threads, const Task& task) {
    n_threads = std::min(n_threads, n_tasks);
    if (n_threads <= 1) {
        for (size_t i = 0; i < n_tasks; ++i) task(i);
        return;
    }
    std::atomic<size_t> next{0};
    std::exception_ptr failure;
    std::mutex failure_lock;
    const auto work = [&] {
        try {
            for (size_t i = next++; i < n_tasks; i = next++) task(i);
        } catch (...) {
            const std::lock_guard<std::mutex> guard(failure_lock);
            if (!failure) failure = std::current_exception();
            next = n_tasks;
        }
    };
    std::vector<std::thread> helpers;
    for (size_t t = 1; t < n_threads; ++t) helpers.emplace_back(work);
    work();
    for (std::thread& helper : helpers) helper.join();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace lightir
