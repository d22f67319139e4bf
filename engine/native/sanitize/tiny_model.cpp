#include "tiny_model.h"

#include <cmath>
#include <cstdlib>
#include <sstream>
#include <string>

namespace wye::sanitize {
namespace {

std::vector<uint16_t> matrix(Random& random, int num_outputs, int num_inputs, float scale) {
  std::vector<uint16_t> values(size_t(num_outputs) * num_inputs);
  for (uint16_t& value : values) value = to_bfloat16(random.normal() * scale);
  return values;
}

std::vector<uint16_t> projection(Random& random, int num_outputs, int num_inputs) {
  return matrix(random, num_outputs, num_inputs, 1.5f / std::sqrt(float(num_inputs)));
}

std::vector<float> vector_of(Random& random, int size, float mean, float scale) {
  std::vector<float> values(size);
  for (float& value : values) value = mean + random.normal() * scale;
  return values;
}

}  // namespace

TinyModel random_model(Random& random) {
  TinyModel tiny;
  Dimensions& dims = tiny.dims;
  dims.num_kv_heads = random.between(1, 3);
  dims.num_heads = dims.num_kv_heads * random.pick({1, 2, 3, 4, 7, 8});
  dims.head_dim = random.pick({8, 16, 24, 32, 64, 80, 96, 128});
  if (dims.attended() > 512) dims.head_dim = random.pick({8, 16, 24, 32});  // plain loops are slow
  if (random.chance(0.03)) dims.num_kv_heads = 1, dims.num_heads = 32, dims.head_dim = 512;
  dims.num_layers = random.between(1, 2);
  dims.hidden_size = random.between(12, 150);
  dims.intermediate_size = random.between(1, 200);
  dims.vocab_size = random.between(2, 150);
  dims.window = random.chance(0.4) ? random.between(1, 90) : 0;
  dims.norm_eps = 1e-5f;
  const bool has_head_norm = random.chance(0.3), has_bias = random.chance(0.3);
  for (int i = 0; i < dims.num_layers; ++i) {
    TinyLayer layer;
    layer.qkv = projection(random, dims.projected(), dims.hidden_size);
    layer.output = projection(random, dims.hidden_size, dims.attended());
    layer.gate_up = projection(random, 2 * dims.intermediate_size, dims.hidden_size);
    layer.down = projection(random, dims.hidden_size, dims.intermediate_size);
    layer.input_norm = vector_of(random, dims.hidden_size, 1.0f, 0.2f);
    layer.post_norm = vector_of(random, dims.hidden_size, 1.0f, 0.2f);
    if (has_head_norm)
      layer.head_norm = vector_of(random, (dims.num_heads + dims.num_kv_heads) * dims.head_dim, 1.0f, 0.2f);
    if (has_bias) layer.qkv_bias = vector_of(random, dims.projected(), 0.0f, 0.5f);
    tiny.layers.push_back(std::move(layer));
  }
  tiny.embedding = matrix(random, dims.vocab_size, dims.hidden_size, 1.0f);
  tiny.head = projection(random, dims.vocab_size, dims.hidden_size);
  tiny.final_norm = vector_of(random, dims.hidden_size, 1.0f, 0.2f);
  for (int i = 0; i < dims.head_dim / 2; ++i)
    tiny.frequencies.push_back(float(std::pow(10000.0, -2.0 * i / dims.head_dim)));
  return tiny;
}

std::unique_ptr<Model> load(const TinyModel& tiny, Team& team, const Form& form, bool is_int8) {
  check_dimensions(tiny.dims);
  auto model = std::make_unique<Model>(team, form, tiny.dims, is_int8);
  auto set = [&](MatrixKind kind, int layer, const std::vector<uint16_t>& values) {
    model->set_matrix(kind, layer, values.data(), values.size());
  };
  auto set_vector = [&](VectorKind kind, int layer, const std::vector<float>& values) {
    if (!values.empty()) model->set_vector(kind, layer, values.data(), values.size());
  };
  for (int i = 0; i < tiny.dims.num_layers; ++i) {
    const TinyLayer& layer = tiny.layers[i];
    set(MatrixKind::kQkv, i, layer.qkv);
    set(MatrixKind::kOutput, i, layer.output);
    set(MatrixKind::kGateUp, i, layer.gate_up);
    set(MatrixKind::kDown, i, layer.down);
    set_vector(VectorKind::kInputNorm, i, layer.input_norm);
    set_vector(VectorKind::kPostNorm, i, layer.post_norm);
    set_vector(VectorKind::kHeadNorm, i, layer.head_norm);
    set_vector(VectorKind::kQkvBias, i, layer.qkv_bias);
  }
  check(model->missing() != nullptr, "a model without a head says so");
  set(MatrixKind::kHead, 0, tiny.head);
  set_vector(VectorKind::kFinalNorm, 0, tiny.final_norm);
  set_vector(VectorKind::kFrequencies, 0, tiny.frequencies);
  model->set_embedding(tiny.embedding.data(), tiny.embedding.size());
  check(model->missing() == nullptr, "a model is complete");
  return model;
}

std::vector<const Form*> forms_to_try() {
  const char* asked = std::getenv("WYE_SANITIZE_FORMS");
  std::vector<const Form*> found;
  for (const Form* const* form = available_forms(); *form != nullptr; ++form) {
    if (asked == nullptr || *asked == '\0') {
      found.push_back(*form);
      continue;
    }
    std::istringstream names(asked);
    for (std::string name; names >> name;)
      if (name == (*form)->name) found.push_back(*form);
  }
  check(!found.empty(), "no form to try runs on this processor");
  return found;
}

}  // namespace wye::sanitize
