// What kernels and the step agree on: shapes of products' inputs and weights, K/V pages, work of one attention task.
//
// Letters: T rows of the step, N outputs and K inputs of a product, H query heads, G key/value heads, D head_dim,
// S page_size.

#pragma once

#include <cstddef>
#include <cstdint>

namespace wye {

constexpr int kTile = 16;        // columns of a weight tile, keys of a K/V tile
constexpr int kBlock = 64;       // inputs that share a scale in int8
constexpr int kKeyBlock = 64;    // keys between two looks at a row's maximum
constexpr int kSpanKeys = 512;   // keys of one span: spans are attended to apart and merged in order
constexpr int kMaxTaskRows = 32; // query rows, times heads that share K and V, of one attention task
constexpr int kMaxHeadDim = 512;

constexpr int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }

// Weights of one product in tiles of 16 outputs, inputs padded with zeros to a multiple of 64.
//
// bfloat16: [N / 16][K / 2][16][2] uint16, so that one instruction multiplies two inputs into 16 outputs.
// int8: [N / 16][K / 4][16][4] uint8, each value with 128 added, and a scale [N / 16][K / 64][16] bfloat16. Each block
// of 64 weights, and of 64 inputs, went through a Walsh-Hadamard transform before it was rounded (QuaRot, arXiv
// 2404.00456): that changes no product, but spreads outliers over their block, so that rounding costs half as much.
struct Matrix {
  int num_outputs = 0;
  int num_inputs = 0;
  int num_tiles = 0;
  int padded_inputs = 0;
  bool is_int8 = false;
  const uint8_t* values = nullptr;
  const uint16_t* scales = nullptr;
  const float* bias = nullptr;  // [N] or null

  size_t tile_bytes() const { return size_t(padded_inputs) * kTile * (is_int8 ? 1 : 2); }
  size_t tile_scales() const { return size_t(padded_inputs / kBlock) * kTile; }
};

// Inputs of one product, a row each: [T][stride] numbers of bfloat16, in the form's own memory for them (`Form`), or int8
// [T][stride] with a scale [T][stride / 64] and -128 times the sum of each block, which takes the 128 added to the
// weights out again.
struct Inputs {
  uint8_t* values = nullptr;
  float* scales = nullptr;
  int32_t* offsets = nullptr;
  int stride = 0;
  int value_bytes = 0;
  bool is_int8 = false;

  size_t row_bytes() const { return size_t(stride) * value_bytes; }
  uint8_t* row(int index) const { return values + index * row_bytes(); }
  float* row_scales(int index) const { return scales + size_t(index) * (stride / kBlock); }
  int32_t* row_offsets(int index) const { return offsets + size_t(index) * (stride / kBlock); }
};

enum class Finish {
  kStore,  // out = product + bias
  kAdd,    // out += product
  kGate,   // next product's inputs = silu(gate) * up; tiles alternate between gate and up
};

struct ProductArgs {
  const Matrix* matrix;
  const Inputs* inputs;
  Finish finish;
  float* out;         // [T][out_stride] float32; unused by kGate
  size_t out_stride;
  const Inputs* gated;  // kGate writes here
};

// Rows first_row .. first_row + num_rows - 1 and tiles first_tile .. first_tile + num_tiles - 1 of a product.
struct ProductPart {
  int first_row, num_rows, first_tile, num_tiles;
};

struct NormArgs {
  const float* rows;     // [*][row_stride] float32
  size_t row_stride;
  const int64_t* index;  // which rows to take, or null for all in order
  int width;
  const float* weight;   // [width], or null: no norm, only conversion
  float eps;
  const Inputs* inputs;  // row i is made from rows[index[i]]
};

// Where K and V of one layer lie. A page holds, for K and for V, S * G * D bfloat16:
// tiled (S and D multiples of 16): K [G][S / 16][D / 2][16][2], V [G][S / 16][D / 16][8][16][2];
// otherwise K and V [S][G][D].
struct PageShape {
  int page_size, num_kv_heads, head_dim;
  bool is_tiled() const { return page_size % kTile == 0 && head_dim % kTile == 0; }
  size_t page_values() const { return size_t(page_size) * num_kv_heads * head_dim; }
};

struct RopeArgs {
  float* projected;       // [T][(H + 2G) * D] float32: q, k, v; q is rotated in place
  size_t row_stride;
  int num_heads;
  PageShape shape;
  const float* cos;       // [T][D / 2]
  const float* sin;       // [T][D / 2]
  const float* head_norm; // [H + G][D], or null
  float eps;
  const int64_t* slots;   // [T]
  uint16_t* keys;         // pages of this layer
  uint16_t* values;
};

struct AttendArgs {
  const float* queries;   // [T][query_stride] float32, rotated, heads one after the other
  size_t query_stride;
  float* out;             // [T][out_stride] float32
  size_t out_stride;
  int num_heads;
  PageShape shape;
  float scale;
  int window;             // keys a row sees back, itself included; 0 sees all
  const uint16_t* keys;
  const uint16_t* values;
};

// Rows of one lane that attend together with the heads that share one K/V head.
struct AttendTask {
  int kv_head;
  int first_row, num_rows;  // in the step
  const int32_t* pages;     // the lane's block table
  int first_visible;        // keys that the first of these rows sees; each further row sees one more
  int context;              // keys of the lane
  const uint8_t* mask;      // [num_rows][context] of these rows, 1 is visible; null: causal
  int first_span, num_spans;
  float* partial;           // null: all spans are here, write `out`; else where their states go, see `partial_floats`
};

// Floats of one span's state for all heads of a task with one row: output, maximum and sum.
constexpr size_t partial_floats(int group, int head_dim) { return size_t(group) * (head_dim + 2); }

}  // namespace wye
