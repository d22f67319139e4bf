// Passes over logits for AVX-512 F, BW, VL, DQ.

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "sampling_form.h"

namespace {

struct Floats {
  __m512 v;
};
struct Ints {
  __m512i v;
};
struct Doubles {
  __m512d low, high;
};

inline __mmask16 first(int64_t count) { return __mmask16((1u << count) - 1); }

inline Floats all(float x) { return {_mm512_set1_ps(x)}; }
inline Ints all_ints(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Ints counting() { return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }
inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Ints load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline Floats load_some(const float* p, int64_t count) {
  return {_mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), first(count), p)};
}
inline Ints load_some(const int32_t* p, int64_t count) { return {_mm512_maskz_loadu_epi32(first(count), p)}; }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x.v); }
inline void store(int32_t* p, Ints x) { _mm512_storeu_si512(p, x.v); }

inline Floats operator*(Floats x, Floats y) { return {_mm512_mul_ps(x.v, y.v)}; }
inline Floats operator-(Floats x, Floats y) { return {_mm512_sub_ps(x.v, y.v)}; }
inline Floats fma(Floats x, Floats y, Floats z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
inline Floats larger(Floats x, Floats y) { return {_mm512_max_ps(x.v, y.v)}; }
inline float maximum(Floats x) { return _mm512_reduce_max_ps(x.v); }
inline Floats round_even(Floats x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Floats times_power_of_two(Floats x, Floats n) { return {_mm512_scalef_ps(x.v, n.v)}; }
inline Floats choose(uint32_t bits, Floats yes, Floats no) {
  return {_mm512_mask_blend_ps(__mmask16(bits), no.v, yes.v)};
}

inline uint32_t at_least(Floats x, Floats y) { return _mm512_cmp_ps_mask(x.v, y.v, _CMP_GE_OQ); }
inline uint32_t above(Floats x, Floats y) { return _mm512_cmp_ps_mask(x.v, y.v, _CMP_GT_OQ); }
inline uint32_t equal(Floats x, Floats y) { return _mm512_cmp_ps_mask(x.v, y.v, _CMP_EQ_OQ); }
inline uint32_t less(Ints x, Ints y) { return _mm512_cmplt_epi32_mask(x.v, y.v); }

inline Ints operator+(Ints x, Ints y) { return {_mm512_add_epi32(x.v, y.v)}; }
inline Ints operator*(Ints x, Ints y) { return {_mm512_mullo_epi32(x.v, y.v)}; }
inline Ints operator^(Ints x, Ints y) { return {_mm512_xor_si512(x.v, y.v)}; }
inline Ints operator|(Ints x, Ints y) { return {_mm512_or_si512(x.v, y.v)}; }
template <int kBits>
inline Ints shifted(Ints x) {
  return {_mm512_srli_epi32(x.v, kBits)};
}
inline Floats to_floats(Ints x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline Ints as_ints(Floats x) { return {_mm512_castps_si512(x.v)}; }

inline Doubles no_doubles() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
inline Doubles add(Doubles sums, Floats x) {
  return {_mm512_add_pd(sums.low, _mm512_cvtps_pd(_mm512_castps512_ps256(x.v))),
          _mm512_add_pd(sums.high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1)))};
}
inline double total(Doubles sums) {
  double each[16], sum = 0;
  _mm512_storeu_pd(each, sums.low);
  _mm512_storeu_pd(each + 8, sums.high);
  for (double one : each) sum += one;
  return sum;
}

// Writes whole registers: storing only what is wanted is slow on some processors.
inline void append(wye::TokenList& list, Floats values, Ints ids, uint32_t wanted) {
  store(list.values + list.size, Floats{_mm512_maskz_compress_ps(__mmask16(wanted), values.v)});
  store(list.ids + list.size, Ints{_mm512_maskz_compress_epi32(__mmask16(wanted), ids.v)});
  list.size += std::popcount(wanted);
}

}  // namespace

#include "passes_body.h"
#include "sampling_body.h"

namespace wye {

extern const SamplingForm kSamplingAvx512 = form_named("avx512");

}  // namespace wye
