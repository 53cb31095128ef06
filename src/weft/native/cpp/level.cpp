// Chooses the kernels for the machine it runs on. AMX is never used: some virtual machines
// report it and then fault.
#include <cstring>
#include <initializer_list>

#include "kernels.h"

namespace portable { extern const Kernels table; }
#if defined(__x86_64__)
namespace avx2 { extern const Kernels table; }
namespace avx512 { extern const Kernels table; }

static bool has_avx2() {
    __builtin_cpu_init();  // this runs while the library is being loaded
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
static bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

const Kernels* kernels_named(const char* level) {
#if defined(__x86_64__)
    if (!std::strcmp(level, "avx512")) return has_avx512() ? &avx512::table : nullptr;
    if (!std::strcmp(level, "avx2")) return has_avx2() ? &avx2::table : nullptr;
#endif
    return std::strcmp(level, "portable") ? nullptr : &portable::table;
}

const Kernels* best_kernels() {
    for (const char* level : {"avx512", "avx2"})
        if (const Kernels* found = kernels_named(level)) return found;
    return &portable::table;
}
