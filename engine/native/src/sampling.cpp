#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "sampling_rows.h"
#include "team.h"

namespace wye {
namespace {

constexpr int64_t kPartTokens = 1 << 16;  // longer rows are looked through in parts; a multiple of a mask's word

NoiseKey key_of(const Lane& lane) { return position_key(lane.stream_key, lane.position); }

bool keeps_all(const Lane& lane, int64_t vocab_size) {
  return lane.top_k >= vocab_size && lane.top_p >= 1.0 && lane.min_p <= 0.0;
}

// Part of a lane's row that one thread looks through.
struct Part {
  int64_t lane, begin, size;
};

// Nothing of a lane whose token is there already.
std::vector<Part> cut(const Batch& batch, const int64_t* tokens) {
  std::vector<Part> parts;
  parts.reserve(batch.num_lanes);
  for (int64_t lane = 0; lane < batch.num_lanes; ++lane) {
    if (tokens[lane] >= 0) continue;
    bool whole = !batch.lanes[lane].is_greedy && !keeps_all(batch.lanes[lane], batch.vocab_size);
    int64_t step = whole ? batch.vocab_size : kPartTokens;
    for (int64_t begin = 0; begin < batch.vocab_size; begin += step) {
      parts.push_back({lane, begin, std::min(step, batch.vocab_size - begin)});
    }
  }
  return parts;
}

// The least value that min_p and top_p surely leave out nothing at or above of what they keep, with room for rounding.
float floor_of_likely(const Lane& lane, float greatest, double least_ratio) {
  double floor = greatest + double(lane.temperature) * std::log(least_ratio);
  return float(floor - 1e-3 - 1e-6 * std::abs(floor));
}

// Draws from what top_k, top_p and min_p keep: from few tokens that surely hold all of them at first, and again from
// what comes before the token drawn until that one is kept. A token is not kept only if none behind it is either.
Best draw_part(const SamplingForm& form, const float* row, int64_t size, const Lane& lane, RowScratch& scratch) {
  float greatest = scratch.look(form, row);
  if (std::isinf(greatest)) return {greatest, greatest, -1};
  float scale = 1.0f / lane.temperature;
  bool has_top_k = lane.top_k < size, has_top_p = lane.top_p < 1.0;
  double total = 0;  // of the probabilities that top_p counts in, where the likeliest has 1
  float least = -INFINITY;
  if (has_top_p && !has_top_k) {
    total = form.sum_exp(row, size, greatest, scale);
    // Together, the last token kept and all behind it have more than 1 - top_p.
    least = floor_of_likely(lane, greatest, (1.0 - lane.top_p) * total / double(size));
  }
  if (lane.min_p > 0 && !(has_top_k && has_top_p)) least = std::max(least, floor_of_likely(lane, greatest, lane.min_p));
  TokenList& list = scratch.list(form, row, lane.top_k, least);
  if (lane.top_k < list.size) scratch.keep_first(lane.top_k, false);
  if (has_top_p && has_top_k) total = form.sum_exp(list.values, list.size, greatest, scale);
  for (NoiseKey key = key_of(lane);;) {
    Best best{-INFINITY, -INFINITY, -1};
    form.draw(list.values, list.ids, 0, list.size, key, lane.temperature, best);
    if (best.id < 0) return form.greatest(row, size);  // logits so low that no score is above -inf
    form.keep_before(list, best.value, best.id);
    if (list.size == 0) return best;
    if (lane.min_p > 0 && std::exp((best.value - greatest) / lane.temperature) < lane.min_p) continue;
    if (has_top_p && !(form.sum_exp(list.values, list.size, greatest, scale) < lane.top_p * total)) continue;
    return best;
  }
}

Best choose_in(const SamplingForm& form, const Batch& batch, const Part& part, RowScratch* scratch) {
  const Lane& lane = batch.lanes[part.lane];
  float* row = batch.logits + part.lane * batch.vocab_size;
  if (lane.is_greedy) {
    Best best = form.greatest(row + part.begin, part.size);
    if (best.id >= 0) best.id += part.begin;
    return best;
  }
  if (!keeps_all(lane, batch.vocab_size)) return draw_part(form, row, part.size, lane, *scratch);
  Best best{-INFINITY, -INFINITY, -1};
  form.draw(row + part.begin, nullptr, part.begin, part.size, key_of(lane), lane.temperature, best);
  return best;
}

void mask_part(const SamplingForm& form, const Batch& batch, const Part& part) {
  int32_t mask = batch.lanes[part.lane].mask;
  if (mask < 0) return;
  const uint32_t* words = batch.masks + mask * batch.num_words;
  form.mask(batch.logits + part.lane * batch.vocab_size + part.begin, part.size, words + part.begin / 32);
}

void remember(const Batch& batch, const Memory& memory, const int64_t* tokens) {
  for (int64_t i = 0; i < batch.num_lanes; ++i) {
    const Lane& lane = batch.lanes[i];
    memory.last_tokens[lane.row] = tokens[i];
    if (lane.counts_slot >= 0) memory.counts[lane.counts_slot * batch.vocab_size + tokens[i]] += 2;
    if (lane.history_slot < 0) continue;
    memory.history[lane.history_slot * memory.history_width + lane.history_base + lane.num_output] = tokens[i];
  }
}

// Repetition penalty (arXiv 1909.05858), then presence and frequency penalties. Only tokens of the history are touched;
// each gets a value made of the one it had before any was written, because the history may hold it twice.
void penalize(float* row, const Lane& lane, const int64_t* ids, const int32_t* counts, float* values) {
  int64_t length = lane.history_base + lane.num_output;
  for (int64_t i = 0; i < length; ++i) {
    float value = row[ids[i]];
    int32_t count = counts[ids[i]], in_output = count >> 1;
    if (count > 0) value = std::min(value > 0 ? value / lane.repetition : value * lane.repetition, -kBanned);
    values[i] = value - float(in_output) * lane.frequency - float(in_output > 0) * lane.presence;
  }
  for (int64_t i = 0; i < length; ++i) row[ids[i]] = values[i];
}

}  // namespace

void edit_logits(Team* team, const SamplingForm& form, const Batch& batch, const Memory& memory) {
  int64_t size = batch.vocab_size;
  int64_t longest = 0;
  for (int64_t i = 0; i < batch.num_lanes; ++i) {
    const Lane& lane = batch.lanes[i];
    if (lane.counts_slot >= 0) longest = std::max(longest, lane.history_base + lane.num_output);
  }
  team = worth_calling(team, batch.num_lanes, batch.num_lanes * size);
  int num_workers = team == nullptr ? 1 : team->size();
  std::unique_ptr<float[]> values(new float[longest * num_workers]);
  spread(team, int(batch.num_lanes), [&](int i, int worker) {
    const Lane& lane = batch.lanes[i];
    float* row = batch.logits + i * size;
    if (!form.is_sane(row, size)) make_sane(row, size);
    if (lane.counts_slot < 0) return;
    const int64_t* ids = memory.history + lane.history_slot * memory.history_width;
    penalize(row, lane, ids, memory.counts + lane.counts_slot * size, values.get() + worker * longest);
  });
}

void choose_tokens(Team* team, const SamplingForm& form, const Batch& batch, const Memory& memory, int64_t* tokens) {
  std::vector<Part> parts = cut(batch, tokens);
  std::vector<Best> found(parts.size());
  int64_t num_tokens = 0;
  bool any_truncated = false;
  for (const Part& part : parts) {
    const Lane& lane = batch.lanes[part.lane];
    num_tokens += part.size * (lane.is_greedy ? 1 : 2);  // noise takes about as long as the memory does
    any_truncated |= !lane.is_greedy && !keeps_all(lane, batch.vocab_size);
  }
  team = worth_calling(team, int64_t(parts.size()), num_tokens);
  std::vector<RowScratch> scratch;
  if (any_truncated) scratch = make_scratch(team, batch.vocab_size);
  auto scratch_of = [&](int worker) { return scratch.empty() ? nullptr : &scratch[worker]; };
  spread(team, int(parts.size()), [&](int i, int worker) {
    mask_part(form, batch, parts[i]);
    found[i] = choose_in(form, batch, parts[i], scratch_of(worker));
  });

  std::vector<Best> best(batch.num_lanes, {-INFINITY, -INFINITY, -1});
  for (size_t i = 0; i < parts.size(); ++i) {
    Best& one = best[parts[i].lane];
    if (found[i].score > one.score) one = found[i];  // of equals the earlier part has the lower id
  }
  for (int64_t i = 0; i < batch.num_lanes; ++i) {
    if (tokens[i] >= 0) continue;
    if (best[i].score == INFINITY) {  // only a broken model gives that
      make_sane(batch.logits + i * batch.vocab_size, batch.vocab_size);
      best[i] = choose_in(form, batch, {i, 0, batch.vocab_size}, scratch_of(0));
    }
    tokens[i] = std::max<int64_t>(best[i].id, 0);
  }
  remember(batch, memory, tokens);
}

}  // namespace wye
