// What choosing tokens needs of a processor: passes over one row of logits, a table for each instruction set.
//
// In every pass a NaN is passed over and counts as -inf. All forms give the same bits.

#pragma once

#include <cstdint>

#include "passes.h"

namespace wye {

constexpr int64_t kPeakBlock = 64;    // tokens under one peak
constexpr int64_t kListPadding = 16;  // entries that a pass may write behind a list's end

// A position's 64-bit key in halves.
struct NoiseKey {
  uint32_t low, high;
};

// The best token so far; the lowest id among equals. id -1: none.
struct Best {
  double score;
  float value;
  int64_t id;
};

// Some tokens of a row. `values` and `ids` have room for all the row's tokens and kListPadding more.
struct TokenList {
  float* values;
  int32_t* ids;
  int64_t size;
};

// Sums over a row, with x = value - greatest of the row.
struct Moments {
  double total;     // of exp(x)
  double weighted;  // of exp(x) x
};

struct SamplingForm {
  const char* name;

  // The greatest value and its lowest index; {-inf, -1} if there is none above -inf.
  Best (*greatest)(const float* row, int64_t size);

  // Writes the greatest value under each peak and returns the greatest of all.
  float (*peaks)(const float* row, int64_t size, float* peaks);

  int64_t (*count_from)(const float* row, int64_t size, float least);   // value >= least
  int64_t (*count_above)(const float* row, int64_t size, float value);  // value > value

  // Sum of exp((value - greatest) * scale), with no value above `greatest`; terms below 1e-37 may be off by as much.
  double (*sum_exp)(const float* row, int64_t size, float greatest, float scale);

  // No value is above `greatest`, which is finite; terms below 1e-35 may be off by as much.
  Moments (*moments)(const float* row, int64_t size, float greatest);

  // Lists the tokens with at least `least`, by rising id.
  void (*list_from)(const float* row, int64_t size, const float* peaks, float least, TokenList& list);

  // Leaves in a list what comes before a token: greater values, and of equals the lower ids.
  void (*keep_before)(TokenList& list, float value, int64_t id);

  // Looks for tokens that score better than `best`: row[i] stands for the token first + i, or for ids[i] if not null.
  void (*draw)(const float* row, const int32_t* ids, int64_t first, int64_t size, NoiseKey key, float temperature,
               Best& best);

  // The same at temperature 1, with hashes[i] of the token first + i: `token_hashes` in engine/sampling/random.py.
  void (*draw_hashed)(const float* row, const int32_t* hashes, int64_t first, int64_t size, NoiseKey key, Best& best);

  // Excludes (-inf) the tokens whose bit is 0 and raises the others to at least kBanned.
  void (*mask)(float* row, int64_t size, const uint32_t* bits);

  // Whether no value is NaN or +inf.
  bool (*is_sane)(const float* row, int64_t size);

  // Operations of device programs.
  PassForm pass;
};

// The key of a position in a random stream: `position_keys` in engine/sampling/random.py.
NoiseKey position_key(int64_t stream_key, int64_t position);

constexpr float kBanned = -1e9f;  // far below any logit, yet finite after every later step

extern const SamplingForm kSamplingAvx2;
extern const SamplingForm kSamplingAvx512;

// The form of a name, or the best for an empty one. Null: this build or processor has none.
// Names of forms that differ from avx512 only in what they multiply (avx512bf16, amx) mean avx512.
const SamplingForm* find_sampling_form(const char* name);

// Score in float64 of one token: logit / temperature plus its Gumbel noise. `noise` is -m of `uniform_bits` in
// engine/sampling/random.py, as float32.
double exact_score(float logit, float noise, float temperature);

// No token whose upper bound of the score is less can score better than this one or as much.
float least_bound(double score);

}  // namespace wye
