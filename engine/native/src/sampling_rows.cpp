#include "sampling_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace wye {
namespace {

constexpr float kLeast = -std::numeric_limits<float>::max();

// Rises as tokens are to come later: falling value, then rising id.
uint64_t place_in_order(float value, int32_t id) {
  uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);  // -0 and 0 are equals
  uint32_t rising = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t(~rising) << 32 | uint32_t(id);
}

float value_at(uint64_t place) {
  uint32_t rising = ~uint32_t(place >> 32);
  return std::bit_cast<float>(rising & 0x80000000u ? rising & 0x7fffffffu : ~rising);
}

}  // namespace

RowScratch::RowScratch(int64_t vocab_size)
    : vocab_size_(vocab_size),
      num_peaks_((vocab_size + kPeakBlock - 1) / kPeakBlock),
      peaks_(new float[num_peaks_]),
      values_(new float[vocab_size + kListPadding]),
      ids_(new int32_t[vocab_size + kListPadding]),
      order_(new uint64_t[vocab_size]),
      list_{values_.get(), ids_.get(), 0} {}

float RowScratch::look(const SamplingForm& form, const float* row) {
  greatest_ = form.peaks(row, vocab_size_, peaks_.get());
  return greatest_;
}

TokenList& RowScratch::list(const SamplingForm& form, const float* row, int64_t top_k, float least) {
  if (top_k < vocab_size_) least = std::max(least, floor_of(form, row, top_k));
  form.list_from(row, vocab_size_, peaks_.get(), std::max(least, kLeast), list_);
  return list_;
}

// A value that at least top_k tokens reach, and not many more. The peaks tell enough for few tokens: where top_k peaks
// reach a value, so do top_k tokens.
float RowScratch::floor_of(const SamplingForm& form, const float* row, int64_t top_k) const {
  bool by_peaks = top_k <= num_peaks_ / 2;
  auto count = [&](float least) {
    return by_peaks ? form.count_from(peaks_.get(), num_peaks_, least) : form.count_from(row, vocab_size_, least);
  };
  if (count(kLeast) < top_k) return kLeast;
  float high = greatest_, step = 1, low = high - step;
  while (count(low) < top_k) {
    high = low;
    step *= 2;
    low = std::max(greatest_ - step, kLeast);
  }
  constexpr int kTries = 40;
  for (int i = 0; i < kTries && count(low) > top_k + top_k / 4; ++i) {
    float middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) break;
    (count(middle) >= top_k ? low : high) = middle;
  }
  return low;
}

void RowScratch::keep_first(int64_t top_k, bool in_order) {
  uint64_t* order = order_.get();
  for (int64_t i = 0; i < list_.size; ++i) order[i] = place_in_order(list_.values[i], list_.ids[i]);
  if (top_k < list_.size) {
    std::nth_element(order, order + top_k, order + list_.size);
    list_.size = top_k;
  }
  if (in_order) std::sort(order, order + list_.size);
  for (int64_t i = 0; i < list_.size; ++i) {
    list_.values[i] = value_at(order[i]);
    list_.ids[i] = int32_t(uint32_t(order[i]));
  }
}

std::vector<RowScratch> make_scratch(const Team* team, int64_t vocab_size) {
  int num_workers = team == nullptr ? 1 : team->size();
  std::vector<RowScratch> scratch;
  scratch.reserve(num_workers);
  for (int i = 0; i < num_workers; ++i) scratch.emplace_back(vocab_size);
  return scratch;
}

void make_sane(float* row, int64_t size) {
  for (float* value = row; value != row + size; ++value) {
    if (std::isnan(*value)) *value = -INFINITY;
    if (*value == INFINITY) *value = -kBanned;
  }
}

}  // namespace wye
