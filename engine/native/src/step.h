// One step of many lanes: tables in, logits and hidden states out.
//
// Letters: T rows of the step, L lanes, R rows read out, Q rows whose hidden state is given out, V vocabulary,
// E hidden_size, P pages, S page_size.

#pragma once

#include <cstdint>
#include <vector>

#include "arena.h"
#include "model.h"

namespace wye {

// Where K and V of all layers lie.
struct Pages {
  std::vector<uint16_t*> layers;  // one [2][P][S * G * D] a layer, K first
  int num_pages = 0;
  int page_size = 0;
};

// What a step is told; every pointer holds as many values as its comment says.
struct StepTables {
  int num_rows = 0, num_lanes = 0, num_readouts = 0, num_hidden = 0;
  const int64_t* token_ids = nullptr;       // [T]
  const int64_t* positions = nullptr;       // [T]
  const int64_t* slots = nullptr;           // [T], where each row's K and V are stored
  const int32_t* query_starts = nullptr;    // [L + 1], rows of each lane
  const int32_t* context_lens = nullptr;    // [L], keys of each lane, its own rows included
  const int32_t* table_starts = nullptr;    // [L + 1], places in block_tables
  const int32_t* block_tables = nullptr;    // [table_starts[L]]
  const uint8_t* const* masks = nullptr;    // [L] of [rows][context] or null for causal; or null for all
  const int64_t* readout_rows = nullptr;    // [R]
  float* logits = nullptr;                  // [R][V]
  const int64_t* hidden_rows = nullptr;     // [Q]
  float* hidden = nullptr;                  // [Q][E], what the final norm makes of those rows
};

// Throws std::invalid_argument naming the first table that points outside of what it may.
void check_tables(const Model& model, const Pages& pages, const StepTables& tables, size_t num_block_tables);

// Runs steps of one model on one pool of pages; keeps the memory that steps need between them.
class Stepper {
 public:
  Stepper(Model& model, Pages pages);
  ~Stepper();
  Stepper(const Stepper&) = delete;
  Stepper& operator=(const Stepper&) = delete;

  // Computes a step whose tables were checked: writes K and V, logits and hidden states.
  void run(const StepTables& tables);

  const Model& model() const { return model_; }
  const Pages& pages() const { return pages_; }

 private:
  struct Plan;
  struct Rows;
  void grow(int num_rows);
  void make_tasks(const StepTables& tables);
  float* cut_task(AttendTask task, float* partial);
  float* make_partials(size_t num_floats);
  Rows rows_of_last(StepTables& tables, const Rows& all);

  Model& model_;
  Pages pages_;
  int capacity_ = 0;
  Arena hidden_, projected_, attended_, angles_, scratch_, partials_;
  // Inputs of products; each thread has its own when rows are few, see `Plan`.
  std::vector<Arena> input_memory_;
  std::vector<Inputs> narrow_;  // of hidden_size or attended() inputs, one a thread
  Inputs gated_;
  std::vector<AttendTask> tasks_;
  std::vector<AttendTask> merges_;
  // What is left of them in the last layer, the rows that are left, and where those that are asked for stand then.
  std::vector<AttendTask> last_tasks_, last_merges_;
  std::vector<int64_t> kept_rows_, readout_places_, hidden_places_;
};

}  // namespace wye
