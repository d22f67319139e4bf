// Chooses one token a lane: the likeliest, or a draw from softmax(logits / temperature) or from a part of it.
//
// Says the same as engine/sampling (draw.py, truncation.py, processors.py), which explain the method. A lane's choice
// depends on nothing but its own logits and parameters: not on its neighbours, nor on threads, nor on the form.
//
// Letters: L lanes, V vocabulary, W words of a bit mask, K alternatives.

#pragma once

#include <cstdint>

#include "sampling_form.h"

namespace wye {

class Team;

// One lane's parameters; `LANE` in engine/native/sampling.py lays it out alike.
struct Lane {
  int64_t stream_key;    // names the random stream
  int64_t position;      // of the token about to be chosen
  int64_t row;           // in last_tokens, distinct
  int64_t num_output;    // tokens chosen before this one
  int64_t top_k;         // 1..V
  int64_t counts_slot;   // row of counts, or -1 without penalties
  int64_t history_slot;  // row of history, or -1 where nothing is written down
  int64_t history_base;  // places in the history before the first output token
  double top_p;          // positive; infinite for all
  double min_p;          // 0..1
  float temperature;     // positive
  float repetition, presence, frequency;
  int32_t is_greedy;
  int32_t mask;          // row of masks, or -1
};
static_assert(sizeof(Lane) == 104);

// What the tokens of running sequences are remembered in.
struct Memory {
  int64_t* last_tokens;   // [num_rows]
  int32_t* counts;        // [num_counts][V]: twice the occurrences in the output, plus 1 if in a penalized prompt
  int64_t* history;       // [num_histories][history_width] token ids
  int64_t num_rows, num_counts, num_histories, history_width;
};

struct Batch {
  float* logits;          // [L][V], may be changed
  const Lane* lanes;      // [L]
  int64_t num_lanes, vocab_size;
  const uint32_t* masks;  // [*][W], bit i of word w allows token 32 w + i
  int64_t num_words;
};

// Makes NaN -inf and +inf a large number in all lanes, then applies the penalties of those that have some.
// Throws std::bad_alloc before anything has changed.
void edit_logits(Team* team, const SamplingForm& form, const Batch& batch, const Memory& memory);

// Excludes what masks exclude, chooses tokens [L] and remembers them: newest token, counts, history.
// Where a token is given already, instead of a negative number, it is remembered and nothing is looked at.
// NaN counts as -inf, +inf as a large number. Throws std::bad_alloc before anything is remembered.
void choose_tokens(Team* team, const SamplingForm& form, const Batch& batch, const Memory& memory, int64_t* tokens);

// Log-probabilities of one token of each of L rows and of the K likeliest.
struct Report {
  float* logits;           // [L][V]; +inf may be replaced
  const int64_t* targets;  // [L]
  int64_t num_rows, vocab_size, num_top;
  float* chosen;           // [L]
  int64_t* rank;           // [L], 1 for the likeliest; of equals the lower id comes first
  int64_t* top_ids;        // [L][K]
  float* top_logprobs;     // [L][K]
};

// Throws std::bad_alloc.
void report_logprobs(Team* team, const SamplingForm& form, const Report& report);

// The distributions of D of R rows.
struct Outline {
  float* logits;          // [R][V]; +inf and NaN may be replaced
  const int64_t* places;  // [D] rows
  int64_t num_places, vocab_size, num_top;
  double* log_totals;     // [D], logarithm of the sum of exp(logit); 0 where nothing is possible
  double* entropies;      // [D], in nats; 0 where nothing is possible
  int64_t* top_ids;       // [D][K], likeliest first; of equals the lower id comes first
  float* top_logprobs;    // [D][K]
};

// Throws std::bad_alloc.
void outline_rows(Team* team, const SamplingForm& form, const Outline& outline);

}  // namespace wye
