// Sixteen floats in two registers (AVX2, FMA).

#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

struct Floats {
  __m256 a, b;
};
struct Ints {
  __m256i a, b;
};

inline Floats zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Floats all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Floats x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline Floats operator+(Floats x, Floats y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Floats operator-(Floats x, Floats y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Floats operator*(Floats x, Floats y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Floats operator/(Floats x, Floats y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Floats fma(Floats x, Floats y, Floats z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline Floats larger(Floats x, Floats y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Floats smaller(Floats x, Floats y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Floats absolute(Floats x) {
  __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline Floats round_even(Floats x) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kMode), _mm256_round_ps(x.b, kMode)};
}
// Takes x where the bit is set, else y.
inline Floats choose(uint32_t bits, Floats x, Floats y) {
  __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  auto pick = [&](uint32_t byte, __m256 yes, __m256 no) {
    __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int32_t(byte)), lanes), lanes);
    return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(set));
  };
  return {pick(bits & 0xff, x.a, y.a), pick((bits >> 8) & 0xff, x.b, y.b)};
}
inline float sum(Floats x) {
  __m256 t = _mm256_add_ps(x.a, x.b);
  __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
  u = _mm_add_ps(u, _mm_movehl_ps(u, u));
  return _mm_cvtss_f32(_mm_add_ss(u, _mm_shuffle_ps(u, u, 1)));
}
inline float maximum(Floats x) {
  __m256 t = _mm256_max_ps(x.a, x.b);
  __m128 u = _mm_max_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
  u = _mm_max_ps(u, _mm_movehl_ps(u, u));
  return _mm_cvtss_f32(_mm_max_ss(u, _mm_shuffle_ps(u, u, 1)));
}

// The Walsh-Hadamard transform of the sixteen, not normalised: sums where a bit is clear, differences where it is set.
inline Floats hadamard(Floats x) {
  auto within = [](__m256 y) {
    auto step = [&y](__m256 swapped, __m256 signs) { y = _mm256_fmadd_ps(y, signs, swapped); };
    step(_mm256_permute2f128_ps(y, y, 0x01), _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1));
    step(_mm256_permute_ps(y, 0x4e), _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1));
    step(_mm256_permute_ps(y, 0xb1), _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1));
    return y;
  };
  return {within(_mm256_add_ps(x.a, x.b)), within(_mm256_sub_ps(x.a, x.b))};
}

inline Ints all_ints(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline Ints operator+(Ints x, Ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline int32_t sum(Ints x) {
  __m256i t = _mm256_add_epi32(x.a, x.b);
  __m128i u = _mm_add_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
  u = _mm_add_epi32(u, _mm_shuffle_epi32(u, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(u, _mm_shuffle_epi32(u, 0xb1)));
}
// Rounds to the nearest, ties to even.
inline Ints to_ints(Floats x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline void store_int8(int8_t* p, Ints x) {
  __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

// x * 2^n for whole n, nothing below -126: the exponent field, made by hand.
inline Floats times_power_of_two(Floats x, Floats n) {
  n = larger(n, all(-127.0f));
  auto power = [](__m256 e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(e), _mm256_set1_epi32(127)), 23));
  };
  return {_mm256_mul_ps(x.a, power(n.a)), _mm256_mul_ps(x.b, power(n.b))};
}

// bfloat16 is the upper half of a float32.
inline Floats load_bf16(const uint16_t* p) {
  auto half = [](const uint16_t* q) {
    __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  };
  return {half(p), half(p + 8)};
}
inline void store_bf16(uint16_t* p, Floats x) {
  auto round = [](__m256 y) {
    __m256i bits = _mm256_castps_si256(y);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256 nan = _mm256_cmp_ps(y, y, _CMP_UNORD_Q);  // rounding must not carry a NaN into infinity
    rounded = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
    return _mm256_srli_epi32(rounded, 16);
  };
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(round(x.a), round(x.b)), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}

// Inputs are floats, rounded to bfloat16.
using Input = float;
inline void store_inputs(Input* p, Floats x) {
  uint16_t rounded[16];
  store_bf16(rounded, x);
  store(p, load_bf16(rounded));
}

// What is multiplied at once, one half of a pair after the other: 16 weights, or one input in every place. A
// pair's weights are loaded twice and products are written out, so that six rows' sums stay in registers: compilers keep
// the pair, overwrite the input, copy sums about, and move some of them to memory and back.
constexpr int kPairSteps = 2;
template <int kStep>
inline Floats load_weights(const uint16_t* p) {
  auto half = [](const uint16_t* q) {
    if constexpr (kStep == 0) {
      __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
      return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    } else {
      __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(int32_t(0xffff0000))), high;
      asm("vandps %2, %1, %0" : "=x"(high) : "x"(mask), "m"(*reinterpret_cast<const __m256*>(q)));
      return high;
    }
  };
  return {half(p), half(p + 16)};
}
template <int kStep>
inline __m256 all_inputs(const Input* p) { return _mm256_broadcast_ss(p + kStep); }
inline void add_product(__m256& sum, __m256 weights, __m256 input) {
  asm("vfmadd231ps %1, %2, %0" : "+x"(sum) : "x"(weights), "x"(input));
}
inline Floats dot(Floats sum, Floats weights, __m256 input) {
  add_product(sum.a, weights.a, input);
  add_product(sum.b, weights.b, input);
  return sum;
}

// Weights have 128 added in memory; it is taken off as they are loaded, since this instruction set only multiplies
// unsigned by signed bytes with saturation: |input| times the weight with the input's sign stays within 16 bits.
constexpr bool kOffsetWeights = false;

struct Quads {
  __m256i a, b;
};
inline Quads load_quads(const uint8_t* p) {
  __m256i offset = _mm256_set1_epi8(int8_t(0x80));
  return {_mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), offset),
          _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32)), offset)};
}
inline Quads all_quads(const uint8_t* p) {
  __m256i quad = _mm256_set1_epi32(*reinterpret_cast<const int32_t*>(p));
  return {quad, quad};
}
inline Ints dot(Ints sum, Quads w, Quads x) {
  __m256i size = _mm256_abs_epi8(x.a), ones = _mm256_set1_epi16(1);
  __m256i low = _mm256_madd_epi16(_mm256_maddubs_epi16(size, _mm256_sign_epi8(w.a, x.a)), ones);
  __m256i high = _mm256_madd_epi16(_mm256_maddubs_epi16(size, _mm256_sign_epi8(w.b, x.b)), ones);
  return {_mm256_add_epi32(sum.a, low), _mm256_add_epi32(sum.b, high)};
}

// Most rows of accumulators that fit the 16 registers beside weights, for a number of tiles.
constexpr int max_rows_bf16(int tiles) { return tiles == 1 ? 6 : tiles == 2 ? 2 : 1; }
constexpr int max_rows_int8(int tiles) { return tiles == 1 ? 3 : 1; }
// Most tiles that go through attention together: weights of one tile, split for some rows at once, cost less than an
// input split again for every group of rows.
constexpr int attend_tiles(int rows) { return rows < 3 ? 4 : 1; }

}  // namespace
