#include "model.h"

#include <stdexcept>
#include <string>

namespace wye {
namespace {

void expect(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

void expect_count(size_t count, size_t expected, const char* what) {
  expect(count == expected,
         std::string(what) + " must have " + std::to_string(expected) + " values, got " + std::to_string(count));
}

}  // namespace

void check_dimensions(const Dimensions& dims) {
  expect(dims.num_layers > 0 && dims.hidden_size > 0 && dims.intermediate_size > 0 && dims.vocab_size > 0,
         "every size of a model must be at least 1");
  expect(dims.num_heads > 0 && dims.num_kv_heads > 0 && dims.num_heads % dims.num_kv_heads == 0,
         "num_heads must be a multiple of num_kv_heads");
  expect(dims.num_heads / dims.num_kv_heads <= kMaxTaskRows,
         "at most " + std::to_string(kMaxTaskRows) + " query heads may share a key/value head");
  expect(dims.head_dim > 0 && dims.head_dim % 2 == 0 && dims.head_dim <= kMaxHeadDim,
         "head_dim must be even and at most " + std::to_string(kMaxHeadDim));
  expect(dims.window >= 0, "the window must not be negative");
}

Model::Model(Team& team, const Form& form, const Dimensions& dims, bool is_int8)
    : team(team), form(form), dims(dims), is_int8(is_int8), layers(dims.num_layers) {}

Layer& Model::layer_at(int index) {
  expect(0 <= index && index < dims.num_layers,
         "layer must be 0.." + std::to_string(dims.num_layers - 1) + ", got " + std::to_string(index));
  return layers[index];
}

void Model::set_matrix(MatrixKind kind, int layer, const uint16_t* weights, size_t count) {
  int outputs = 0, inputs = dims.hidden_size;
  PackedMatrix* place = nullptr;
  switch (kind) {
    case MatrixKind::kQkv: place = &layer_at(layer).qkv; outputs = dims.projected(); break;
    case MatrixKind::kOutput:
      place = &layer_at(layer).output;
      outputs = dims.hidden_size;
      inputs = dims.attended();
      break;
    case MatrixKind::kGateUp: place = &layer_at(layer).gate_up; outputs = 2 * dims.intermediate_size; break;
    case MatrixKind::kDown:
      place = &layer_at(layer).down;
      outputs = dims.hidden_size;
      inputs = dims.intermediate_size;
      break;
    case MatrixKind::kHead: place = &head; outputs = dims.vocab_size; break;
  }
  expect(place != nullptr, "there is no such kind of matrix");
  expect_count(count, size_t(outputs) * inputs, "the matrix");
  const float* bias = place->view.bias;
  *place = pack(team, weights, outputs, inputs, is_int8, kind == MatrixKind::kGateUp);
  place->view.bias = bias;
}

void Model::set_vector(VectorKind kind, int layer, const float* values, size_t count) {
  std::vector<float>* place = nullptr;
  size_t expected = dims.hidden_size;
  switch (kind) {
    case VectorKind::kInputNorm: place = &layer_at(layer).input_norm; break;
    case VectorKind::kPostNorm: place = &layer_at(layer).post_norm; break;
    case VectorKind::kHeadNorm:
      place = &layer_at(layer).head_norm;
      expected = size_t(dims.num_heads + dims.num_kv_heads) * dims.head_dim;
      break;
    case VectorKind::kQkvBias: place = &layer_at(layer).qkv_bias; expected = dims.projected(); break;
    case VectorKind::kFinalNorm: place = &final_norm; break;
    case VectorKind::kFrequencies: place = &frequencies; expected = dims.head_dim / 2; break;
  }
  expect(place != nullptr, "there is no such kind of vector");
  expect_count(count, expected, "the vector");
  place->assign(values, values + count);
  if (kind == VectorKind::kQkvBias) layer_at(layer).qkv.view.bias = place->data();
}

void Model::set_embedding(const uint16_t* values, size_t count) {
  expect_count(count, size_t(dims.vocab_size) * dims.hidden_size, "the embedding");
  embedding = values;
}

const char* Model::missing() const {
  for (const Layer& layer : layers) {
    for (const PackedMatrix* matrix : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
      if (matrix->view.values == nullptr) return "a layer's matrix";
    if (layer.input_norm.empty() || layer.post_norm.empty()) return "a layer's norm";
  }
  if (head.view.values == nullptr) return "the head";
  if (final_norm.empty()) return "the final norm";
  if (frequencies.empty()) return "the rotary frequencies";
  if (embedding == nullptr) return "the embedding";
  return nullptr;
}

}  // namespace wye
