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

void report_top(const Report& report, int64_t index, const TokenList& list, double log_total) {
  const float* row = report.logits + index * report.vocab_size;
  int64_t* ids = report.top_ids + index * report.num_top;
  float* logprobs = report.top_logprobs + index * report.num_top;
  int64_t num_found = std::min(report.num_top, list.size);
  for (int64_t i = 0; i < num_found; ++i) {
    ids[i] = list.ids[i];
    logprobs[i] = logprob(list.values[i], log_total);
  }
  for (int64_t id = 0; num_found < report.num_top; ++id) {  // what is impossible comes last
    if (row[id] > -INFINITY) continue;
    ids[num_found] = id;
    logprobs[num_found++] = kLeastLogprob;
  }
}

void report_row(const SamplingForm& form, const Report& report, int64_t index, RowScratch& scratch) {
  int64_t size = report.vocab_size;
  float* row = report.logits + index * size;
  float greatest = scratch.look(form, row);
  if (greatest == INFINITY) {
    make_sane(row, size);
    greatest = scratch.look(form, row);
  }
  bool possible = greatest > -INFINITY;
  double log_total = possible ? greatest + std::log(form.sum_exp(row, size, greatest, 1.0f)) : 0.0;
  int64_t target = report.targets[index];
  report.chosen[index] = logprob(row[target], log_total);
  report.rank[index] = rank_of(form, row, size, target);
  if (report.num_top == 0) return;
  TokenList nothing{};
  if (possible) {
    scratch.list(form, row, report.num_top, -INFINITY);
    scratch.keep_first(report.num_top, true);
  }
  report_top(report, index, possible ? scratch.listed() : nothing, log_total);
}

}  // namespace

void report_logprobs(Team* team, const SamplingForm& form, const Report& report) {
  team = worth_calling(team, report.num_rows, 3 * report.num_rows * report.vocab_size);
  std::vector<RowScratch> scratch = make_scratch(team, report.vocab_size);
  spread(team, int(report.num_rows), [&](int i, int worker) { report_row(form, report, i, scratch[worker]); });
}

}  // namespace wye
