// Lanes on scattered pages, and tables of random steps for them, each in memory of exactly its size.

#pragma once

#include <cstdint>
#include <vector>

#include "check.h"
#include "step.h"

namespace wye::sanitize {

struct Lane {
  std::vector<int64_t> token_ids;
  std::vector<int32_t> pages;
  int num_computed = 0;
};

// A step's tables and the memory they point to.
struct Tables {
  std::vector<int64_t> token_ids, positions, slots, readout_rows, hidden_rows;
  std::vector<int32_t> query_starts, context_lens, table_starts, block_tables;
  std::vector<std::vector<uint8_t>> masks;  // empty: causal
  std::vector<const uint8_t*> mask_places;
  std::vector<float> logits, hidden;

  // Refers to these tables, and to new memory for logits and hidden states.
  StepTables view(const Dimensions& dims);
};

class Lanes {
 public:
  // `longest` tokens at most a lane; pages are taken in random order, some stay free.
  Lanes(Random& random, int vocab_size, int page_size, int longest);

  int num_pages() const { return num_pages_; }
  bool is_done() const;
  // Takes the next tokens of some lanes, at least one token, into a step; masks with a chance of one in six.
  Tables next_step(Random& random);

 private:
  void add_rows(Tables& tables, Lane& lane, int num_rows, Random& random, bool has_mask) const;

  int page_size_, num_pages_;
  std::vector<Lane> lanes_;
};

}  // namespace wye::sanitize
