// Which levels of instructions this processor has. Compiled for the oldest processor of its family.

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace {

#if defined(__x86_64__)

// Older compilers do not know this feature by name.
bool has_avx_vnni() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}

const char* levels() {
  __builtin_cpu_init();
  // Every processor with AVX2 has F16C, which older compilers do not know by name here.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return "";
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vnni");
  if (has_avx_vnni()) return has_avx512 ? "avx2 avxvnni avx512" : "avx2 avxvnni";
  return has_avx512 ? "avx2 avx512" : "avx2";
}

#elif defined(__aarch64__) && defined(__linux__)

const char* levels() { return getauxval(AT_HWCAP) >> 20 & 1 ? "neon dotprod" : "neon"; }

#elif defined(__aarch64__) && defined(__APPLE__)

const char* levels() { return "neon dotprod"; }

#elif defined(__aarch64__)

const char* levels() { return "neon"; }

#else

const char* levels() { return ""; }

#endif

}  // namespace

// Their names, with a blank between two.
extern "C" __attribute__((visibility("default"))) const char* kvchat_levels(void) { return levels(); }
