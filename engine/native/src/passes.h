// Several operations on rows of numbers in one pass, element by element: what a device program does between two sums,
// maxima or other operations that need a whole row. See engine/native/passes.py for what Python sees.
//
// Letters: B rows, V numbers of a row, S single numbers, K keys, N steps.

#pragma once

#include <cstdint>
#include <vector>

namespace wye {

class Team;
struct NoiseKey;
struct SamplingForm;

// `OPERATIONS` in engine/native/passes.py has the same order.
enum class PassOp : int32_t {
  kCopy, kAdd, kSub, kMul, kDiv, kNeg, kAbs, kSqrt, kLt, kLe, kGt, kGe, kEq, kNe, kAnd, kOr, kXor, kNot, kWhere,
  kUniform, kEnd
};

// One operation. Its operands are registers: first the vectors, then the single numbers, then what earlier steps made;
// kUniform's `a` is the number of a key instead. Truth is 1, untruth 0.
struct PassStep {
  PassOp op;
  int32_t a, b, c;
};
static_assert(sizeof(PassStep) == 16);

constexpr int64_t kPassTile = 512;  // numbers of a register
constexpr int64_t kMostRegisters = 64;

// One pass over a tile: computes the registers behind the inputs.
using PassForm = void (*)(const PassStep* steps, int64_t num_steps, float* const* registers, int64_t num_inputs,
                          int64_t size, const int32_t* hashes, const NoiseKey* keys);

struct PassVector {
  const void* data;  // [B or 1][V] float, or bytes that are 0 or 1
  bool is_shared;    // one row for all
  bool is_bool;
};

struct PassOutput {
  int32_t made_by;  // number of the step
  void* data;       // [B][V] float, or bytes
  bool is_bool;
};

// A draw from softmax(what a step makes) for each row, while that is made.
struct PassDraw {
  int32_t made_by;  // number of the step
  int32_t key;      // number of the key
  int64_t* tokens;  // [B], of -inf alone 0, and -1 where a score is +inf; NaN counts as -inf
};

struct Pass {
  std::vector<PassStep> steps;
  std::vector<PassVector> vectors;
  std::vector<PassOutput> outputs;
  const PassDraw* draw = nullptr;
  const float* scalars = nullptr;   // [B][S]
  const NoiseKey* keys = nullptr;   // [B][K]
  const int32_t* hashes = nullptr;  // [V], `token_hashes` in engine/sampling/random.py
  int64_t num_rows = 0, size = 0, num_scalars = 0, num_keys = 0;

  int64_t num_inputs() const { return int64_t(vectors.size()) + num_scalars; }
};

// Throws std::bad_alloc before anything is written.
void run_pass(Team* team, const SamplingForm& form, const Pass& pass);

}  // namespace wye
