#include "dispatch.hpp"

#include <atomic>
#include <cstdlib>

#include "errors.hpp"

#ifdef LIGHTIR_X86
#include <cpuid.h>
#endif
#ifdef LIGHTIR_TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif
#ifdef LIGHTIR_ARM64
#ifdef __APPLE__
#include <sys/sysctl.h>
#else
#include <sys/auxv.h>
#endif
#endif

namespace lightir {
namespace {

#ifdef LIGHTIR_X86
// Whether all bits of a mask are set.
bool has(unsigned bits, unsigned mask) { return (bits & mask) == mask; }

// The vector registers that the system saves when it switches threads (XCR0); 0 if it saves none.
unsigned saved_registers(unsigned leaf1_ecx) {
    constexpr unsigned osxsave = 1u << 27;
    if (!has(leaf1_ecx, osxsave)) return 0;
    unsigned low = 0, high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}
#endif

#ifdef LIGHTIR_ARM64
bool has_dot_products() {
#ifdef __APPLE__
    int value = 0;
    size_t size = sizeof(value);
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &value, &size, nullptr, 0) == 0 && value != 0;
#else
    constexpr unsigned long asimddp = 1ul << 20;  // HWCAP_ASIMDDP of Linux
    return (getauxval(AT_HWCAP) & asimddp) != 0;
#endif
}
#endif

// By cpuid and xgetbv: __builtin_cpu_supports needs a table of the compiler's runtime, which is empty where only parts of
// that runtime are linked, and then says no to everything.
std::vector<const Level*> find_levels() {
    std::vector<const Level*> found{&scalar_level};
#ifdef LIGHTIR_X86
    constexpr unsigned avx = 1u << 28, f16c = 1u << 29;                    // leaf 1, ecx
    constexpr unsigned avx2 = 1u << 5;                                     // leaf 7, ebx
    constexpr unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
    constexpr unsigned vnni = 1u << 11;                                    // leaf 7, ecx
    constexpr unsigned ymm = 0x6, zmm = 0xe6;                              // XCR0
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) return found;
    const unsigned saved = saved_registers(c);
    const bool halves = has(c, avx | f16c);
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
    if (!halves || !has(b, avx2) || !has(saved, ymm)) return found;
    found.push_back(&avx2_level);
    if (has(b, avx512) && has(c, vnni) && has(saved, zmm)) found.push_back(&avx512_level);
#endif
#ifdef LIGHTIR_ARM64
    found.push_back(&neon_level);
    if (has_dot_products()) found.push_back(&dotprod_level);
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

#ifdef LIGHTIR_TILES
static bool find_tiles() {
    constexpr unsigned amx = 1u << 22 | 1u << 24 | 1u << 25;  // leaf 7, edx: AMX-BF16, AMX-TILE, AMX-INT8
    constexpr unsigned avx512_bf16 = 1u << 5;      // leaf 7.1, eax
    constexpr unsigned tile_registers = 0x60000;   // XCR0
    constexpr long ask_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM of arch_prctl, for the whole process
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (levels().back() != &avx512_level || __get_cpuid(1, &a, &b, &c, &d) == 0 || !has(saved_registers(c), tile_registers)) return false;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || !has(d, amx)) return false;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0 || !has(a, avx512_bf16)) return false;
    return syscall(SYS_arch_prctl, ask_permission, tile_data) == 0;
}

bool has_bfloat16_tiles() {
    static const bool found = find_tiles();
    return found && &level() == &avx512_level;
}
#else
bool has_bfloat16_tiles() { return false; }
#endif

void use_level_from_environment() {
    const char* name = std::getenv("LIGHTIR_KERNEL");
    if (name != nullptr && *name != '\0') use_level(name);
}

}  // namespace lightir
