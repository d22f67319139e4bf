// Tokens chosen, logits edited and log-probabilities reported as plain sorting says, with and without a team.

#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "check.h"
#include "team.h"

// `Lane` is a lane of the sampler here; the steps' lanes are in random_step.h.

namespace wye::sanitize {
namespace {

constexpr double kMargin = 1e-5;  // more than float32 sums of probabilities may be off by

uint64_t mix64(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

uint32_t mix32(uint32_t value) {
  value = (value ^ (value >> 16)) * 0x7feb352du;
  value = (value ^ (value >> 15)) * 0x846ca68bu;
  return value ^ (value >> 16);
}

// -m of `uniform_bits` in engine/sampling/random.py.
float noise_of(const Lane& lane, int64_t token) {
  const uint64_t key = mix64(uint64_t(lane.stream_key) + (uint64_t(lane.position) + 1) * 0x9e3779b97f4a7c15u);
  uint32_t value = (mix32(uint32_t(token)) ^ uint32_t(key)) * 0x7feb352du;
  value = (value ^ (value >> 15) ^ uint32_t(key >> 32)) * 0x846ca68bu;
  return -float((uint64_t{1} << 31) - (value & 0x7fffffffu));
}

// Tokens from the likeliest on; of equals the lower id comes first.
std::vector<int64_t> in_order(const std::vector<float>& row) {
  std::vector<int64_t> order(row.size());
  for (size_t i = 0; i < row.size(); ++i) order[i] = int64_t(i);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return row[a] > row[b]; });
  return order;
}

// How many tokens of the order stay; -1 where rounding decides it.
int num_kept(const Lane& lane, const std::vector<float>& row, const std::vector<int64_t>& order) {
  const double greatest = row[order[0]];
  auto ratio = [&](int i) { return std::exp((row[order[i]] - greatest) / double(lane.temperature)); };
  const int size = int(std::min<int64_t>(lane.top_k, int64_t(order.size())));
  double total = 0, before = 0;
  for (int i = 0; i < size; ++i) total += ratio(i);
  int kept = 0;
  for (int i = 0; i < size; ++i) {
    const double one = ratio(i);
    if (std::fabs(before - lane.top_p * total) < kMargin * total && lane.top_p < 1) return -1;
    if (std::fabs(one - lane.min_p) < kMargin && lane.min_p > 0) return -1;
    if (!(before < lane.top_p * total) || one < lane.min_p) break;
    before += one;
    ++kept;
  }
  return std::max(kept, 1);
}

int64_t plain_choice(const Lane& lane, const std::vector<float>& row) {
  const std::vector<int64_t> order = in_order(row);
  if (!(row[order[0]] > -INFINITY)) return 0;
  if (lane.is_greedy) return order[0];
  const int kept = num_kept(lane, row, order);
  if (kept < 0) return -1;
  double best_score = -INFINITY;
  int64_t best = -1;
  for (int i = 0; i < kept; ++i) {
    const int64_t token = order[i];
    if (!(row[token] > -INFINITY)) continue;
    const double score = exact_score(row[token], noise_of(lane, token), lane.temperature);
    if (score > best_score || (score == best_score && token < best)) best_score = score, best = token;
  }
  return best;
}

// Everything a call to the sampler points to.
struct Bench {
  int64_t vocab_size, num_lanes, history_width = 40;
  std::vector<float> logits;
  std::vector<Lane> lanes;
  std::vector<uint32_t> masks;
  std::vector<int64_t> last_tokens, history;
  std::vector<int32_t> counts;

  Bench(Random& random)
      : vocab_size(random.chance(0.1) ? random.between(60'000, 140'000) : random.between(1, 700)),
        num_lanes(random.between(1, vocab_size > 1000 ? 3 : 9)),
        logits(vocab_size * num_lanes),
        masks(((vocab_size + 31) / 32) * 2),
        last_tokens(num_lanes, -1),
        history(num_lanes * history_width),
        counts(num_lanes * vocab_size) {
    const bool has_ties = random.chance(0.2);
    for (float& logit : logits) logit = has_ties ? float(random.between(-3, 3)) : random.normal() * 3;
    if (random.chance(0.3))
      for (int i = 0; i < 5; ++i)
        logits[random.bits() % logits.size()] = random.pick({NAN, INFINITY, -INFINITY, 3e38f, -3e38f});
    for (uint32_t& word : masks) word = uint32_t(random.bits());
    for (int64_t& token : history) token = random.between(0, int(vocab_size) - 1);
    for (int64_t i = 0; i < num_lanes; ++i) lanes.push_back(random_lane(random, i));
    for (const Lane& lane : lanes)
      for (int64_t i = 0; lane.counts_slot >= 0 && i < lane.history_base + lane.num_output; ++i) {
        int32_t& count = counts[lane.counts_slot * vocab_size + history[lane.history_slot * history_width + i]];
        count = i < lane.history_base ? count | 1 : count + 2;
      }
  }

  Lane random_lane(Random& random, int64_t index) const {
    Lane lane{};
    lane.stream_key = int64_t(random.bits());
    lane.position = random.between(0, 1 << 20);
    lane.row = num_lanes - 1 - index;
    lane.history_slot = lane.counts_slot = random.chance(0.4) ? index : -1;
    lane.history_base = random.between(0, 15);
    lane.num_output = random.between(0, 15);
    lane.top_k = random.chance(0.5) ? vocab_size : random.between(1, int(std::min<int64_t>(vocab_size, 60)));
    lane.top_p = random.chance(0.5) ? INFINITY : 0.05 + 0.9 * random.uniform();
    lane.min_p = random.chance(0.7) ? 0 : 0.3 * random.uniform();
    lane.temperature = float(0.05 + 2 * random.uniform());
    lane.repetition = float(0.5 + random.uniform());
    lane.presence = random.normal();
    lane.frequency = random.normal();
    lane.is_greedy = random.chance(0.3);
    lane.mask = random.chance(0.3) ? random.between(0, 1) : -1;
    return lane;
  }

  Batch batch() { return {logits.data(), lanes.data(), num_lanes, vocab_size, masks.data(), (vocab_size + 31) / 32}; }
  Memory memory() {
    return {last_tokens.data(), counts.data(), history.data(), num_lanes, num_lanes, num_lanes, history_width};
  }
};

float sane(float value) { return std::isnan(value) ? -INFINITY : value == INFINITY ? -kBanned : value; }

// Row of a lane after edits, masks and what is said of broken values.
std::vector<float> plain_row(const Bench& bench, int64_t index, bool is_edited) {
  const Lane& lane = bench.lanes[index];
  std::vector<float> row(bench.logits.begin() + index * bench.vocab_size,
                         bench.logits.begin() + (index + 1) * bench.vocab_size);
  for (int64_t token = 0; token < bench.vocab_size; ++token) {
    float& value = row[token];
    value = sane(value);
    if (is_edited && lane.counts_slot >= 0) {
      const int32_t count = bench.counts[lane.counts_slot * bench.vocab_size + token];
      if (count > 0) {
        value = std::min(value > 0 ? value / lane.repetition : value * lane.repetition, -kBanned);
        value = value - float(count >> 1) * lane.frequency - float((count >> 1) > 0) * lane.presence;
      }
    }
    if (lane.mask < 0) continue;
    const uint32_t word = bench.masks[lane.mask * ((bench.vocab_size + 31) / 32) + token / 32];
    value = word >> (token % 32) & 1 ? std::max(value, kBanned) : -INFINITY;
  }
  return row;
}

void check_choice(Bench& bench, const SamplingForm& form, Team* team, bool is_edited) {
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < bench.num_lanes; ++i)
    expected.push_back(plain_choice(bench.lanes[i], plain_row(bench, i, is_edited)));
  const std::vector<int32_t> counts = bench.counts;
  std::vector<int64_t> tokens(bench.num_lanes, -7);
  if (is_edited) edit_logits(team, form, bench.batch(), bench.memory());
  choose_tokens(team, form, bench.batch(), bench.memory(), tokens.data());
  for (int64_t i = 0; i < bench.num_lanes; ++i) {
    const Lane& lane = bench.lanes[i];
    check(tokens[i] >= 0 && tokens[i] < bench.vocab_size, "a choice is no token");
    check(expected[i] < 0 || tokens[i] == expected[i],
          "lane " + std::to_string(i) + " of " + std::to_string(bench.vocab_size) + " tokens: " +
              std::to_string(tokens[i]) + " instead of " + std::to_string(expected[i]));
    check(bench.last_tokens[lane.row] == tokens[i], "the newest token is remembered");
    if (lane.history_slot < 0) continue;
    const int64_t place = lane.history_slot * bench.history_width + lane.history_base + lane.num_output;
    check(bench.history[place] == tokens[i], "the history is remembered");
    const int64_t count = lane.counts_slot * bench.vocab_size + tokens[i];
    check(bench.counts[count] == counts[count] + 2, "the occurrence is counted");
  }
}

void check_logprob(float found, double expected, float logit) {
  check(std::fabs(found - expected) <= 1e-5 * std::max(1.0, std::fabs(expected)),
        "the log-probability of a token of logit " + std::to_string(logit) + " is " + std::to_string(found) +
            ", expected " + std::to_string(expected));
}

void check_report(Random& random, const SamplingForm& form, Team* team) {
  Bench bench(random);
  const int64_t size = bench.vocab_size, num_rows = bench.num_lanes;
  const int64_t num_top = random.between(0, int(std::min<int64_t>(size, 12)));
  std::vector<int64_t> targets(num_rows), rank(num_rows), top_ids(num_rows * num_top);
  std::vector<float> chosen(num_rows), top_logprobs(num_rows * num_top);
  for (int64_t& target : targets) target = random.between(0, int(size) - 1);
  // Among much greater logits the logarithm of a sum is lost beside the greatest logit, even in float64.
  for (float& logit : bench.logits) logit = std::isinf(logit) ? logit : std::clamp(sane(logit), -1e9f, 1e9f);
  report_logprobs(team, form, {bench.logits.data(), targets.data(), num_rows, size, num_top, chosen.data(), rank.data(),
                               top_ids.data(), top_logprobs.data()});
  for (int64_t i = 0; i < num_rows; ++i) {
    const std::vector<float> row(bench.logits.begin() + i * size, bench.logits.begin() + (i + 1) * size);
    const std::vector<int64_t> order = in_order(row);
    double total = 0;
    for (float value : row) total += std::exp(double(value) - row[order[0]]);
    auto logprob = [&](int64_t token) { return std::max(row[token] - row[order[0]] - std::log(total), -9999.0); };
    const int64_t place = std::find(order.begin(), order.end(), targets[i]) - order.begin();
    check(rank[i] == place + 1, "a rank is wrong");
    if (!(row[order[0]] > -INFINITY)) continue;
    check_logprob(chosen[i], logprob(targets[i]), row[targets[i]]);
    for (int64_t k = 0; k < num_top; ++k) {
      check(top_ids[i * num_top + k] == order[k], "the likeliest tokens are others");
      check_logprob(top_logprobs[i * num_top + k], logprob(order[k]), row[order[k]]);
    }
  }
}

void check_outline(Random& random, const SamplingForm& form, Team* team) {
  Bench bench(random);
  const int64_t size = bench.vocab_size, num_top = random.between(0, int(std::min<int64_t>(size, 12)));
  std::vector<int64_t> places;
  for (int64_t i = 0; i < bench.num_lanes; ++i) {
    if (random.chance(0.7)) places.push_back(i);
  }
  const int64_t num_places = places.size();
  std::vector<int64_t> top_ids(num_places * num_top);
  std::vector<float> top_logprobs(num_places * num_top);
  std::vector<double> log_totals(num_places), entropies(num_places);
  for (float& logit : bench.logits) logit = std::isinf(logit) ? logit : std::clamp(sane(logit), -1e9f, 1e9f);
  outline_rows(team, form, {bench.logits.data(), places.data(), num_places, size, num_top, log_totals.data(),
                            entropies.data(), top_ids.data(), top_logprobs.data()});
  for (int64_t i = 0; i < num_places; ++i) {
    const float* values = bench.logits.data() + places[i] * size;
    const std::vector<float> row(values, values + size);
    const std::vector<int64_t> order = in_order(row);
    for (int64_t k = 0; k < num_top; ++k) {
      check(top_ids[i * num_top + k] == order[k], "the likeliest tokens of an outline are others");
    }
    const float greatest = row[order[0]];
    double total = 0, weighted = 0;
    for (float value : row) {
      const double weight = std::exp(double(value) - greatest);
      total += weight;
      if (weight > 0) weighted += weight * (double(value) - greatest);
    }
    const bool possible = greatest > -INFINITY;
    const double expected = possible ? std::log(total) - weighted / total : 0;
    check(std::fabs(entropies[i] - expected) <= 1e-4 * std::max(1.0, expected), "an entropy is wrong");
    check(possible || log_totals[i] == 0, "the total of nothing is told as 0");
  }
}

}  // namespace

void check_sampling(double seconds) {
  for (const char* name : {"avx2", "avx512"}) {
    const SamplingForm* form = find_sampling_form(name);
    if (form == nullptr) continue;
    Cases cases((std::string(name) == "avx2") ? "draw avx2" : "draw 512", seconds, 20);
    for (int seed; (seed = cases.next()) >= 0;) {
      Random random(seed);
      Team team(random.between(1, 4));
      Team* helper = random.chance(0.5) ? &team : nullptr;
      Bench bench(random);
      check_choice(bench, *form, helper, random.chance(0.5));
      check_report(random, *form, helper);
      check_outline(random, *form, helper);
    }
  }
}

}  // namespace wye::sanitize
