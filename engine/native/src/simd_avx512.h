// Sixteen floats in one register (AVX-512 F, BW, VL, DQ).

#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

struct Floats {
  __m512 v;
};
struct Ints {
  __m512i v;
};

inline Floats zeros() { return {_mm512_setzero_ps()}; }
inline Floats all(float x) { return {_mm512_set1_ps(x)}; }
inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats larger(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats smaller(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats absolute(Floats a) { return {_mm512_abs_ps(a.v)}; }
inline Floats round_even(Floats a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Floats times_power_of_two(Floats a, Floats n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// Takes a where the bit is set, else b.
inline Floats choose(uint32_t bits, Floats a, Floats b) { return {_mm512_mask_blend_ps(__mmask16(bits), b.v, a.v)}; }
inline float sum(Floats a) { return _mm512_reduce_add_ps(a.v); }
inline float maximum(Floats a) { return _mm512_reduce_max_ps(a.v); }

// The Walsh-Hadamard transform of the sixteen, not normalised: sums where a bit is clear, differences where it is set.
inline Floats hadamard(Floats a) {
  auto step = [](__m512 swapped, __m512 x, __mmask16 negative) {
    return _mm512_mask_sub_ps(_mm512_add_ps(swapped, x), negative, swapped, x);
  };
  __m512 x = a.v;
  x = step(_mm512_shuffle_f32x4(x, x, 0x4e), x, 0xff00);
  x = step(_mm512_shuffle_f32x4(x, x, 0xb1), x, 0xf0f0);
  x = step(_mm512_permute_ps(x, 0x4e), x, 0xcccc);
  x = step(_mm512_permute_ps(x, 0xb1), x, 0xaaaa);
  return {x};
}

inline Ints all_ints(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Floats to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline int32_t sum(Ints a) { return _mm512_reduce_add_epi32(a.v); }
inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
// Rounds to the nearest, ties to even.
inline Ints to_ints(Floats a) { return {_mm512_cvtps_epi32(a.v)}; }
inline void store_int8(int8_t* p, Ints a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a.v)); }

// bfloat16 is the upper half of a float32.
inline Floats load_bf16(const uint16_t* p) {
  __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}

#if defined(__AVX512BF16__)
inline void store_bf16(uint16_t* p, Floats a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a.v)));
}

// Inputs stay pairs of bfloat16.
using Input = uint16_t;
inline void store_inputs(Input* p, Floats x) { store_bf16(p, x); }

// What is multiplied at once, all of a pair: 16 pairs of weights, or one pair of inputs in every place.
constexpr int kPairSteps = 1;
struct Pairs {
  __m512bh v;
};
template <int>
inline Pairs load_weights(const uint16_t* p) { return {reinterpret_cast<__m512bh>(_mm512_loadu_si512(p))}; }
template <int>
inline Pairs all_inputs(const Input* p) {
  return {reinterpret_cast<__m512bh>(_mm512_set1_epi32(*reinterpret_cast<const int32_t*>(p)))};
}
inline Floats dot(Floats sum, Pairs weights, Pairs inputs) { return {_mm512_dpbf16_ps(sum.v, weights.v, inputs.v)}; }
#else
inline void store_bf16(uint16_t* p, Floats a) {
  __m512i bits = _mm512_castps_si512(a.v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);  // rounding must not carry a NaN into infinity
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

// Inputs are floats, rounded to bfloat16.
using Input = float;
inline void store_inputs(Input* p, Floats x) {
  uint16_t rounded[16];
  store_bf16(rounded, x);
  store(p, load_bf16(rounded));
}

// What is multiplied at once, one half of a pair after the other: 16 weights, or one input in every place.
constexpr int kPairSteps = 2;
template <int kStep>
inline Floats load_weights(const uint16_t* p) {
  __m512i pairs = _mm512_loadu_si512(p);
  if (kStep == 0) return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))};
  return {_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int32_t(0xffff0000))))};
}
template <int kStep>
inline Floats all_inputs(const Input* p) { return {_mm512_set1_ps(p[kStep])}; }
inline Floats dot(Floats sum, Floats weights, Floats inputs) { return fma(weights, inputs, sum); }
#endif

#if defined(__AVX512VNNI__)
constexpr bool kOffsetWeights = true;  // weights enter as unsigned numbers with 128 added

struct Quads {
  __m512i v;
};
inline Quads load_quads(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Quads all_quads(const uint8_t* p) { return {_mm512_set1_epi32(*reinterpret_cast<const int32_t*>(p))}; }
inline Ints dot(Ints sum, Quads weights, Quads inputs) { return {_mm512_dpbusd_epi32(sum.v, weights.v, inputs.v)}; }
#else
constexpr bool kOffsetWeights = false;

// Even and odd bytes widened to 16 bits: no intermediate sum can overflow.
struct Quads {
  __m512i even, odd;
};
inline Quads widen(__m512i bytes) {
  return {_mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8), _mm512_srai_epi16(bytes, 8)};
}
inline Quads load_quads(const uint8_t* p) {
  return widen(_mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(int8_t(0x80))));
}
inline Quads all_quads(const uint8_t* p) { return widen(_mm512_set1_epi32(*reinterpret_cast<const int32_t*>(p))); }
inline Ints dot(Ints sum, Quads weights, Quads inputs) {
  __m512i products = _mm512_add_epi32(_mm512_madd_epi16(weights.even, inputs.even),
                                      _mm512_madd_epi16(weights.odd, inputs.odd));
  return {_mm512_add_epi32(sum.v, products)};
}
#endif

// Most rows of accumulators that fit the 32 registers beside weights, for a number of tiles.
constexpr int max_rows_bf16(int tiles) { return tiles == 1 ? 12 : 24 / tiles; }
constexpr int max_rows_int8(int tiles) { return tiles == 1 ? 8 : 12 / tiles; }
// Most tiles that go through attention together.
constexpr int attend_tiles(int) { return 4; }

}  // namespace
