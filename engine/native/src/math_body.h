// Functions of sixteen floats, for the form that includes this after its simd_*.h.

#pragma once

namespace {

// e^x to about 1e-7 of its value, x held within -87 .. 88: x is cut into a whole power of two and a rest below ln(2) / 2, where the
// series converges quickly.
inline Floats exponential(Floats x) {
  x = smaller(larger(x, all(-87.0f)), all(88.0f));
  Floats n = round_even(x * all(1.44269504f));
  Floats rest = fma(n, all(-0.693359375f), x);      // ln(2) in two parts, so that the product is exact
  rest = fma(n, all(2.12194440e-4f), rest);
  Floats p = all(1.0f / 5040);
  p = fma(p, rest, all(1.0f / 720));
  p = fma(p, rest, all(1.0f / 120));
  p = fma(p, rest, all(1.0f / 24));
  p = fma(p, rest, all(1.0f / 6));
  p = fma(p, rest, all(0.5f));
  p = fma(p, rest, all(1.0f));
  p = fma(p, rest, all(1.0f));
  return times_power_of_two(p, n);
}

// 2^x to 3e-6 of its value, exactly 1 at 0, for weights that are rounded to bfloat16 anyway. The coefficients minimise
// the relative error of 1 + f * q(f) over f in -0.5 .. 0.5.
inline Floats power_of_two(Floats x) {
  Floats n = round_even(x), f = x - n;
  Floats q = fma(all(9.5828529e-3f), f, all(5.5906426e-2f));
  q = fma(q, f, all(0.24024099f));
  q = fma(q, f, all(0.69312418f));
  return times_power_of_two(fma(q, f, all(1.0f)), n);
}

inline Floats silu(Floats x) { return x / (all(1.0f) + exponential(zeros() - x)); }

}  // namespace
