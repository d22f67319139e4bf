// Small random models, kept as their weights are given to the step.
//
// Letters: V vocabulary, E hidden_size, I intermediate_size, H query heads, G key/value heads, D head_dim.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "check.h"
#include "model.h"

namespace wye::sanitize {

struct TinyLayer {
  std::vector<uint16_t> qkv, output, gate_up, down;  // [N][K] bfloat16
  std::vector<float> input_norm, post_norm;
  std::vector<float> head_norm, qkv_bias;  // empty: there is none
};

struct TinyModel {
  Dimensions dims;
  std::vector<uint16_t> embedding, head;  // [V][E] bfloat16
  std::vector<TinyLayer> layers;
  std::vector<float> final_norm, frequencies;
};

TinyModel random_model(Random& random);

// The model as a step computes with it; refers to the embedding.
std::unique_ptr<Model> load(const TinyModel& tiny, Team& team, const Form& form, bool is_int8);

// Names of forms to try, by the environment's WYE_SANITIZE_FORMS, or all that run here.
std::vector<const Form*> forms_to_try();

}  // namespace wye::sanitize
