// What choosing tokens and reporting log-probabilities share: work spread over rows, memory to do it in, top-k.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sampling_form.h"
#include "team.h"

namespace wye {

// Memory for one row at a time, allocated once and written to only where it is used. Throws std::bad_alloc.
class RowScratch {
 public:
  explicit RowScratch(int64_t vocab_size);

  // The greatest value, with the row's peaks noted for what follows.
  float look(const SamplingForm& form, const float* row);

  // Lists at least the top_k greatest of a row that was looked at, hardly more, and none below `least`; all that are
  // above -inf if those are fewer.
  TokenList& list(const SamplingForm& form, const float* row, int64_t top_k, float least);

  const TokenList& listed() const { return list_; }

  // Leaves the first top_k of a list, in any order or from the likeliest on; of equals the lower id comes first.
  void keep_first(int64_t top_k, bool in_order);

 private:
  float floor_of(const SamplingForm& form, const float* row, int64_t top_k) const;

  int64_t vocab_size_, num_peaks_;
  float greatest_ = 0;
  std::unique_ptr<float[]> peaks_, values_;
  std::unique_ptr<int32_t[]> ids_;
  std::unique_ptr<uint64_t[]> order_;
  TokenList list_;
};

// One for each thread of a team; for one thread if there is none.
std::vector<RowScratch> make_scratch(const Team* team, int64_t vocab_size);

// Replaces +inf by a large number and NaN by -inf.
void make_sane(float* row, int64_t size);

// The team, or null where calling it would take longer than the work. `num_tokens`: how many all chunks look at.
inline Team* worth_calling(Team* team, int64_t num_chunks, int64_t num_tokens) {
  return num_chunks > 1 && num_tokens >= 1 << 18 ? team : nullptr;
}

// Runs body(chunk, worker) for all chunks; in the caller's thread without a team.
template <class Body>
void spread(Team* team, int num_chunks, Body&& body) {
  if (team != nullptr) {
    team->for_each(num_chunks, body);
  } else {
    for (int chunk = 0; chunk < num_chunks; ++chunk) body(chunk, 0);
  }
}

}  // namespace wye
