// Which level of instructions this processor has. Compiled for the oldest processor of its family.

extern "C" __attribute__((visibility("default"))) const char* kvchat_level(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vnni");
  // Every processor with AVX2 has F16C, which older compilers do not know by name here.
  return has_avx2 && has_avx512 ? "avx512" : has_avx2 ? "avx2" : "";
#elif defined(__aarch64__)
  return "neon";
#else
  return "";
#endif
}
