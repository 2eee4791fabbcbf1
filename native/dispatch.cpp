#include "dispatch.hpp"

#include <atomic>
#include <cstdlib>

#include "errors.hpp"

#ifdef LIGHTIR_X86
#include <cpuid.h>
#endif

namespace lightir {
namespace {

std::vector<const Level*> find_levels() {
    std::vector<const Level*> found{&scalar_level};
#ifdef LIGHTIR_X86
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned f16c_bit = 1u << 29;  // older compilers' __builtin_cpu_supports does not know "f16c"
    const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & f16c_bit) != 0;
    __builtin_cpu_init();
    if (!f16c || !__builtin_cpu_supports("avx2")) return found;
    found.push_back(&avx2_level);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni")) {
        found.push_back(&avx512_level);
    }
#endif
    return found;
}

const std::vector<const Level*>& levels() {
    static const std::vector<const Level*> found = find_levels();
    return found;
}

std::atomic<const Level*>& chosen() {
    static std::atomic<const Level*> level{levels().back()};
    return level;
}

}  // namespace

const Level& level() { return *chosen().load(std::memory_order_relaxed); }

std::vector<std::string> available_levels() {
    std::vector<std::string> names;
    for (const Level* one : levels()) names.emplace_back(one->name);
    return names;
}

void use_level(const std::string& name) {
    std::string known;
    for (const Level* one : levels()) {
        if (name == one->name) {
            chosen().store(one, std::memory_order_relaxed);
            return;
        }
        known += (known.empty() ? "" : ", ") + std::string(one->name);
    }
    throw InvalidInput("kernel level '" + name + "' cannot be used here; this processor has: " + known);
}

void use_level_from_environment() {
    const char* name = std::getenv("LIGHTIR_KERNEL");
    if (name != nullptr && *name != '\0') use_level(name);
}

}  // namespace lightir
