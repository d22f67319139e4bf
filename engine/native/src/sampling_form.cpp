#include "sampling_form.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

namespace wye {
namespace {

constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;

uint64_t mix64(uint64_t value) {  // SplitMix64's finaliser
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

const SamplingForm* avx512() {
#ifndef WYE_NO_AVX512
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return &kSamplingAvx512;
  }
#endif
  return nullptr;
}

const SamplingForm* avx2() {
#ifndef WYE_NO_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &kSamplingAvx2;
#endif
  return nullptr;
}

}  // namespace

const SamplingForm* find_sampling_form(const char* name) {
  std::string_view wanted = name;
  if (wanted == "avx2") return avx2();
  if (wanted.starts_with("avx512") || wanted == "amx") return avx512();
  if (!wanted.empty()) return nullptr;
  const SamplingForm* best = avx512();
  return best != nullptr ? best : avx2();
}

NoiseKey position_key(int64_t stream_key, int64_t position) {
  uint64_t key = mix64(uint64_t(stream_key) + (uint64_t(position) + 1) * kGamma);
  return {uint32_t(key), uint32_t(key >> 32)};
}

double exact_score(float logit, float noise, float temperature) {
  constexpr double kUniformScale = 0x1p-31 * (1 - 0x1p-24);
  return double(logit) / double(temperature) - std::log(-std::log1p(double(noise) * kUniformScale));
}

float least_bound(double score) {
  constexpr float kMost = std::numeric_limits<float>::max();
  if (std::isinf(score)) return score > 0 ? std::numeric_limits<float>::infinity() : -kMost;
  double slack = std::abs(score) * 1e-6 + 1e-3;  // float32 rounding of the bound
  return float(std::max(score - slack, -double(kMost)));
}

}  // namespace wye
