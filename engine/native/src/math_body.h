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

inline Floats silu(Floats x) { return x / (all(1.0f) + exponential(zeros() - x)); }

}  // namespace
