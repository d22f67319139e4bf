// One pass over a tile, written so that the compiler makes vectors of it for each form that includes this.

namespace {

// `out` may be an operand: each number is made of those in its own place.
template <class Body>
inline void fill(float* out, int64_t size, Body&& body) {
#pragma GCC ivdep
  for (int64_t i = 0; i < size; ++i) out[i] = body(i);
}

inline float truth(bool holds) { return holds ? 1.0f : 0.0f; }

// `fill_noise` in engine/sampling/random.py, and the number in (0, 1) made of it.
void uniform(float* __restrict out, int64_t size, const int32_t* __restrict hashes, wye::NoiseKey key) {
  constexpr float kScale = 0x1p-31f * (1 - 0x1p-24f);
  for (int64_t i = 0; i < size; ++i) {
    uint32_t x = (uint32_t(hashes[i]) ^ key.low) * 0x7feb352du;
    x = (x ^ (x >> 15) ^ key.high) * 0x846ca68bu;
    out[i] = float(int32_t(x | 0x80000000u)) * -kScale;
  }
}

void pass(const wye::PassStep* steps, int64_t num_steps, float* const* registers, int64_t num_inputs, int64_t size,
          const int32_t* hashes, const wye::NoiseKey* keys) {
  using wye::PassOp;
  for (int64_t step = 0; step < num_steps; ++step) {
    auto [op, first, second, third] = steps[step];
    float* out = registers[num_inputs + step];
    if (op == PassOp::kUniform) {
      uniform(out, size, hashes, keys[first]);
      continue;
    }
    const float *a = registers[first], *b = registers[second], *c = registers[third];
    switch (op) {
      case PassOp::kCopy: fill(out, size, [=](int64_t i) { return a[i]; }); break;
      case PassOp::kAdd: fill(out, size, [=](int64_t i) { return a[i] + b[i]; }); break;
      case PassOp::kSub: fill(out, size, [=](int64_t i) { return a[i] - b[i]; }); break;
      case PassOp::kMul: fill(out, size, [=](int64_t i) { return a[i] * b[i]; }); break;
      case PassOp::kDiv: fill(out, size, [=](int64_t i) { return a[i] / b[i]; }); break;
      case PassOp::kNeg: fill(out, size, [=](int64_t i) { return -a[i]; }); break;
      case PassOp::kAbs: fill(out, size, [=](int64_t i) { return std::fabs(a[i]); }); break;
      case PassOp::kSqrt: fill(out, size, [=](int64_t i) { return std::sqrt(a[i]); }); break;
      case PassOp::kLt: fill(out, size, [=](int64_t i) { return truth(a[i] < b[i]); }); break;
      case PassOp::kLe: fill(out, size, [=](int64_t i) { return truth(a[i] <= b[i]); }); break;
      case PassOp::kGt: fill(out, size, [=](int64_t i) { return truth(a[i] > b[i]); }); break;
      case PassOp::kGe: fill(out, size, [=](int64_t i) { return truth(a[i] >= b[i]); }); break;
      case PassOp::kEq: fill(out, size, [=](int64_t i) { return truth(a[i] == b[i]); }); break;
      case PassOp::kNe: fill(out, size, [=](int64_t i) { return truth(a[i] != b[i]); }); break;
      case PassOp::kAnd: fill(out, size, [=](int64_t i) { return a[i] * b[i]; }); break;
      case PassOp::kOr: fill(out, size, [=](int64_t i) { return truth(a[i] + b[i] > 0); }); break;
      case PassOp::kXor: fill(out, size, [=](int64_t i) { return truth(a[i] != b[i]); }); break;
      case PassOp::kNot: fill(out, size, [=](int64_t i) { return 1.0f - a[i]; }); break;
      case PassOp::kWhere: fill(out, size, [=](int64_t i) { return a[i] != 0 ? b[i] : c[i]; }); break;
      case PassOp::kUniform:
      case PassOp::kEnd: break;
    }
  }
}

}  // namespace
