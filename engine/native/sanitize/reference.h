// A decoder's step in plain loops and float64, rounded where the native step rounds: what its results are held against.
//
// Letters: T rows of the step, R rows read out, Q rows whose hidden state is given out, V vocabulary, E hidden_size,
// N outputs and K inputs of a product.

#pragma once

#include <cstdint>
#include <vector>

#include "step.h"
#include "tiny_model.h"

namespace wye::sanitize {

// Weights [N][K] that a product multiplies with, rounded for int8.
class PlainMatrix {
 public:
  PlainMatrix(const std::vector<uint16_t>& weights, int num_outputs, int num_inputs, bool is_int8);

  std::vector<double> times(const std::vector<double>& inputs) const;

 private:
  std::vector<double> times_int8(const std::vector<double>& inputs) const;

  int num_outputs_, num_inputs_, num_blocks_;
  bool is_int8_;
  std::vector<double> values_;  // [N][K], or [N][blocks][64] whole numbers
  std::vector<double> scales_;  // [N][blocks]
};

class PlainModel {
 public:
  PlainModel(const TinyModel& tiny, bool is_int8, int num_slots, int page_size);

  // What a step gives out.
  struct Results {
    std::vector<double> logits, hidden;  // [R][V], [Q][E]
  };

  // Stores K and V and returns logits and hidden states.
  Results step(const StepTables& tables);

 private:
  struct Layer {
    PlainMatrix qkv, output, gate_up, down;
    std::vector<double> keys, values;  // [slots][G][D]
  };
  std::vector<double> project(const StepTables& tables, int index, const std::vector<double>& hidden, int row);
  std::vector<double> attend(const StepTables& tables, int index, int lane, int row,
                             const std::vector<double>& queries);

  const TinyModel& tiny_;
  int page_size_;
  PlainMatrix head_;
  std::vector<Layer> layers_;
};

// The Walsh-Hadamard transform of 64 values, not normalised.
void transform_block(double* values);

}  // namespace wye::sanitize
