// Passes over logits for AVX2 and FMA.

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "sampling_form.h"

namespace {

struct Floats {
  __m256 a, b;
};
struct Ints {
  __m256i a, b;
};
struct Doubles {
  __m256d a, b, c, d;
};

inline Floats all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Ints all_ints(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Ints counting() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Ints load(const int32_t* p) {
  auto* words = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
}
inline Floats load_some(const float* p, int64_t count) {
  float padded[16];
  std::fill(std::copy_n(p, count, padded), padded + 16, -INFINITY);
  return load(padded);
}
inline Ints load_some(const int32_t* p, int64_t count) {
  int32_t padded[16] = {};
  std::copy_n(p, count, padded);
  return load(padded);
}
inline void store(float* p, Floats x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline void store(int32_t* p, Ints x) {
  auto* words = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(words, x.a);
  _mm256_storeu_si256(words + 1, x.b);
}

inline Floats operator*(Floats x, Floats y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Floats operator-(Floats x, Floats y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Floats fma(Floats x, Floats y, Floats z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline Floats larger(Floats x, Floats y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline float maximum(Floats x) {
  __m256 t = _mm256_max_ps(x.a, x.b);
  __m128 u = _mm_max_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
  u = _mm_max_ps(u, _mm_movehl_ps(u, u));
  return _mm_cvtss_f32(_mm_max_ss(u, _mm_movehdup_ps(u)));
}
inline Floats round_even(Floats x) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kMode), _mm256_round_ps(x.b, kMode)};
}
// For results that are normal numbers.
inline Floats times_power_of_two(Floats x, Floats n) {
  auto scale = [](__m256 y, __m256 power) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(y), _mm256_slli_epi32(_mm256_cvtps_epi32(power), 23)));
  };
  return {scale(x.a, n.a), scale(x.b, n.b)};
}
inline Floats choose(uint32_t bits, Floats yes, Floats no) {
  __m256i places = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  auto pick = [&](uint32_t byte, __m256 x, __m256 y) {
    __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int32_t(byte)), places), places);
    return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(set));
  };
  return {pick(bits, yes.a, no.a), pick(bits >> 8, yes.b, no.b)};
}

inline uint32_t bits(__m256 a, __m256 b) {
  return uint32_t(_mm256_movemask_ps(a)) | uint32_t(_mm256_movemask_ps(b)) << 8;
}
inline uint32_t at_least(Floats x, Floats y) {
  return bits(_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ));
}
inline uint32_t above(Floats x, Floats y) {
  return bits(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ));
}
inline uint32_t equal(Floats x, Floats y) {
  return bits(_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ));
}
inline uint32_t less(Ints x, Ints y) {
  return bits(_mm256_castsi256_ps(_mm256_cmpgt_epi32(y.a, x.a)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(y.b, x.b)));
}

inline Ints operator+(Ints x, Ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline Ints operator*(Ints x, Ints y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
inline Ints operator^(Ints x, Ints y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
inline Ints operator|(Ints x, Ints y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
template <int kBits>
inline Ints shifted(Ints x) {
  return {_mm256_srli_epi32(x.a, kBits), _mm256_srli_epi32(x.b, kBits)};
}
inline Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline Ints as_ints(Floats x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }

inline Doubles no_doubles() {
  __m256d zero = _mm256_setzero_pd();
  return {zero, zero, zero, zero};
}
inline Doubles add(Doubles sums, Floats x) {
  return {_mm256_add_pd(sums.a, _mm256_cvtps_pd(_mm256_castps256_ps128(x.a))),
          _mm256_add_pd(sums.b, _mm256_cvtps_pd(_mm256_extractf128_ps(x.a, 1))),
          _mm256_add_pd(sums.c, _mm256_cvtps_pd(_mm256_castps256_ps128(x.b))),
          _mm256_add_pd(sums.d, _mm256_cvtps_pd(_mm256_extractf128_ps(x.b, 1)))};
}
inline double total(Doubles sums) {
  double each[16], sum = 0;
  _mm256_storeu_pd(each, sums.a);
  _mm256_storeu_pd(each + 4, sums.b);
  _mm256_storeu_pd(each + 8, sums.c);
  _mm256_storeu_pd(each + 12, sums.d);
  for (double one : each) sum += one;
  return sum;
}

inline void append(wye::TokenList& list, Floats values, Ints ids, uint32_t wanted) {
  float value_of[16];
  int32_t id_of[16];
  store(value_of, values);
  store(id_of, ids);
  for (; wanted; wanted &= wanted - 1) {
    int i = std::countr_zero(wanted);
    list.values[list.size] = value_of[i];
    list.ids[list.size++] = id_of[i];
  }
}

}  // namespace

#include "passes_body.h"
#include "sampling_body.h"

namespace wye {

extern const SamplingForm kSamplingAvx2 = form_named("avx2");

}  // namespace wye
