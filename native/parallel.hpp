#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace lightir {

constexpr size_t most_threads = 1024;  // per call, whatever the caller asks for

// Runs task(0) .. task(n_tasks - 1), each once, on at most n_threads threads, and rethrows the first exception. If the
// system cannot start a thread, those that run do all tasks.
template <typename Task>
void parallel_for(size_t n_tasks, size_t n_threads, const Task& task) {
    n_threads = std::min({n_threads, n_tasks, most_threads});
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
    helpers.reserve(n_threads - 1);  // so that emplace_back throws only before it starts a thread
    try {
        while (helpers.size() + 1 < n_threads) helpers.emplace_back(work);
    } catch (const std::system_error&) {  // limit of processes or memory
    } catch (const std::bad_alloc&) {
    }
    work();
    for (std::thread& helper : helpers) helper.join();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace lightir
