#include <algorithm>
#include <cmath>

#include "sampling.h"
#include "sampling_rows.h"

namespace wye {
namespace {

constexpr float kLeastLogprob = -9999.0f;  // LEAST_LOGPROB in engine/sampling/logprobs.py

float logprob(float value, double log_total) {
  double found = double(value) - log_total;
  return found > kLeastLogprob ? float(found) : kLeastLogprob;  // NaN too
}

// 1 for the likeliest. Greater values come before a token, and of its equals the lower ids.
int64_t rank_of(const SamplingForm& form, const float* row, int64_t size, int64_t token) {
  float value = row[token];
  if (!(value > -INFINITY)) return token + form.count_above(row + token, size - token, -INFINITY) + 1;
  return form.count_from(row, token, value) + form.count_above(row + token, size - token, value) + 1;
}

// Writes the num_top likeliest of a row. `list`: as many, in order, or all that are possible.
void write_top(const float* row, int64_t num_top, const TokenList& list, double log_total, int64_t* ids,
               float* logprobs) {
  int64_t num_found = std::min(num_top, list.size);
  for (int64_t i = 0; i < num_found; ++i) {
    ids[i] = list.ids[i];
    logprobs[i] = logprob(list.values[i], log_total);
  }
  for (int64_t id = 0; num_found < num_top; ++id) {  // what is impossible comes last
    if (row[id] > -INFINITY) continue;
    ids[num_found] = id;
    logprobs[num_found++] = kLeastLogprob;
  }
}

// The greatest value of a row, which has no +inf after.
float look_at(const SamplingForm& form, float* row, int64_t size, RowScratch& scratch) {
  float greatest = scratch.look(form, row);
  if (greatest < INFINITY) return greatest;
  make_sane(row, size);
  return scratch.look(form, row);
}

// The num_top likeliest of a row that was looked at.
TokenList likeliest(const SamplingForm& form, const float* row, int64_t num_top, bool possible, RowScratch& scratch) {
  if (!possible) return {};
  scratch.list(form, row, num_top, -INFINITY);
  scratch.keep_first(num_top, true);
  return scratch.listed();
}

void report_row(const SamplingForm& form, const Report& report, int64_t index, RowScratch& scratch) {
  int64_t size = report.vocab_size, num_top = report.num_top, target = report.targets[index];
  float* row = report.logits + index * size;
  float greatest = look_at(form, row, size, scratch);
  bool possible = greatest > -INFINITY;
  double log_total = possible ? greatest + std::log(form.sum_exp(row, size, greatest, 1.0f)) : 0.0;
  report.chosen[index] = logprob(row[target], log_total);
  report.rank[index] = rank_of(form, row, size, target);
  if (num_top == 0) return;
  TokenList top = likeliest(form, row, num_top, possible, scratch);
  write_top(row, num_top, top, log_total, report.top_ids + index * num_top, report.top_logprobs + index * num_top);
}

void outline_row(const SamplingForm& form, const Outline& outline, int64_t index, RowScratch& scratch) {
  int64_t size = outline.vocab_size, num_top = outline.num_top;
  float* row = outline.logits + outline.places[index] * size;
  float greatest = look_at(form, row, size, scratch);
  bool possible = greatest > -INFINITY;
  double log_total = 0, entropy = 0;
  if (possible) {
    Moments sums = form.moments(row, size, greatest);
    log_total = greatest + std::log(sums.total);
    entropy = std::max(0.0, std::log(sums.total) - sums.weighted / sums.total);
  }
  outline.log_totals[index] = log_total;
  outline.entropies[index] = entropy;
  if (num_top == 0) return;
  TokenList top = likeliest(form, row, num_top, possible, scratch);
  write_top(row, num_top, top, log_total, outline.top_ids + index * num_top, outline.top_logprobs + index * num_top);
}

}  // namespace

void report_logprobs(Team* team, const SamplingForm& form, const Report& report) {
  team = worth_calling(team, report.num_rows, 3 * report.num_rows * report.vocab_size);
  std::vector<RowScratch> scratch = make_scratch(team, report.vocab_size);
  spread(team, int(report.num_rows), [&](int i, int worker) { report_row(form, report, i, scratch[worker]); });
}

void outline_rows(Team* team, const SamplingForm& form, const Outline& outline) {
  team = worth_calling(team, outline.num_places, 3 * outline.num_places * outline.vocab_size);
  std::vector<RowScratch> scratch = make_scratch(team, outline.vocab_size);
  spread(team, int(outline.num_places), [&](int i, int worker) { outline_row(form, outline, i, scratch[worker]); });
}

}  // namespace wye
