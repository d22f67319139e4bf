// A decoder's weights as kernels want them; see `engine.models.decoder` for what is computed from them.
//
// Letters: V vocabulary, E hidden_size, I intermediate_size, H query heads, G key/value heads, D head_dim.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "arena.h"
#include "form.h"
#include "layout.h"
#include "team.h"

namespace wye {

struct Dimensions {
  int num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, vocab_size;
  int window;  // keys a row sees back, itself included; 0 sees all
  float norm_eps;

  int projected() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  int attended() const { return num_heads * head_dim; }
};

// Throws std::invalid_argument for a shape that no kernel can take.
void check_dimensions(const Dimensions& dims);

enum class MatrixKind { kQkv, kOutput, kGateUp, kDown, kHead };
enum class VectorKind { kInputNorm, kPostNorm, kHeadNorm, kQkvBias, kFinalNorm, kFrequencies };

// A product's weights and the memory they lie in.
struct PackedMatrix {
  Matrix view;
  Arena values;
  Arena scales;
};

struct Layer {
  PackedMatrix qkv, output, gate_up, down;
  std::vector<float> input_norm, post_norm, head_norm, qkv_bias;
};

class Model {
 public:
  Model(Team& team, const Form& form, const Dimensions& dims, bool is_int8);

  // Takes weights [N][K] of bfloat16, gate above up for kGateUp; they are copied into tiles. `layer` is ignored for the
  // head. Throws std::invalid_argument when the size does not fit.
  void set_matrix(MatrixKind kind, int layer, const uint16_t* weights, size_t count);
  // Takes norms, biases and rotary frequencies, float32. kHeadNorm is [H + G][D], kFrequencies [D / 2].
  void set_vector(VectorKind kind, int layer, const float* values, size_t count);
  // Refers to the embedding [V][E] of bfloat16, which must outlive the model.
  void set_embedding(const uint16_t* values, size_t count);

  // Says what was not set yet, or null.
  const char* missing() const;

  Team& team;
  const Form& form;
  const Dimensions dims;
  const bool is_int8;
  std::vector<Layer> layers;
  PackedMatrix head;
  std::vector<float> final_norm, frequencies;
  const uint16_t* embedding = nullptr;

 private:
  Layer& layer_at(int index);
};

// Lays weights [N][K] out in tiles, working with the team. Gated weights alternate: a tile of gate, a tile of up.
PackedMatrix pack(Team& team, const uint16_t* weights, int num_outputs, int num_inputs, bool is_int8, bool is_gated);

}  // namespace wye
