// Which forms this build has and this processor can run.

#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "form.h"

namespace wye {

const Form& form_avx2();
const Form& form_avx512();
const Form& form_avx512vnni();
const Form& form_avx512bf16();
const Form& form_amx();

namespace {

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool has_avx512vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }

bool has_avx512bf16() {
  unsigned a, b, c, d;
  return has_avx512vnni() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5));
}

// Tiles must be asked for: the kernel makes room for them in a thread's state only then (x86/xstate.rst, XFEATURE 18).
bool has_amx() {
#if defined(__linux__)
  unsigned a, b, c, d;
  if (!has_avx512bf16() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool bf16 = d & (1u << 22), tile = d & (1u << 24), int8 = d & (1u << 25);
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return bf16 && tile && int8 && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

struct Candidate {
  bool (*runs)();
  const Form& (*form)();
};

// Best first. The build says what its compiler could not make.
constexpr Candidate kCandidates[] = {
#ifndef WYE_NO_AMX
    {has_amx, form_amx},
#endif
#ifndef WYE_NO_AVX512BF16
    {has_avx512bf16, form_avx512bf16},
#endif
#ifndef WYE_NO_AVX512VNNI
    {has_avx512vnni, form_avx512vnni},
#endif
#ifndef WYE_NO_AVX512
    {has_avx512, form_avx512},
#endif
#ifndef WYE_NO_AVX2
    {has_avx2, form_avx2},
#endif
};

struct Available {
  const Form* forms[sizeof kCandidates / sizeof kCandidates[0] + 1] = {};
  Available() {
    __builtin_cpu_init();
    int count = 0;
    for (const Candidate& candidate : kCandidates)
      if (candidate.runs()) forms[count++] = &candidate.form();
  }
};

}  // namespace

const Form* const* available_forms() {
  static const Available available;
  return available.forms;
}

}  // namespace wye
