// Products of inputs with tiled weights, for the form that includes this after its simd_*.h and math_body.h.
//
// Sums stay in registers over all inputs of a row, in the same order whatever rows are computed together.

#pragma once

#include "layout.h"
#include "math_body.h"

namespace {

using wye::Finish;
using wye::Inputs;
using wye::kBlock;
using wye::kTile;
using wye::Matrix;
using wye::ProductArgs;
using wye::ProductPart;

constexpr int kFetchBytes = 2048;                  // how far ahead of its use memory is asked for
constexpr int kFetchRows = 8;                      // up to so many rows memory is what a product waits for
constexpr int kMaxGroup = 4;                       // tiles computed together
constexpr int kMaxRows = 32;                       // rows computed together, over all forms
constexpr int kGateTiles = 2 * kBlock / kTile;     // tiles whose gates and ups make one block of inputs

// Into the second cache: lines that are fetched into the first push out what is in use.
inline void prefetch(const void* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }

// sums [R][C] += one step's part of a pair: inputs at `inputs`, of R rows, times the weights at tiles[c] + place.
template <int kStep, int R, int C>
inline void add_products(Floats (&sums)[R][C], const uint16_t* const* tiles, size_t place, const Input* inputs,
                         size_t stride) {
  decltype(load_weights<kStep>(tiles[0])) weights[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) weights[c] = load_weights<kStep>(tiles[c] + place);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    const auto input = all_inputs<kStep>(inputs + r * stride);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums[r][c] = dot(sums[r][c], weights[c], input);
  }
}

// The same for a whole pair.
template <int R, int C>
inline void add_pair(Floats (&sums)[R][C], const uint16_t* const* tiles, size_t place, const Input* inputs,
                     size_t stride) {
  add_products<0>(sums, tiles, place, inputs, stride);
  if constexpr (kPairSteps > 1) add_products<1>(sums, tiles, place, inputs, stride);
}

// out [R][C * 16] = R rows of inputs times C tiles of bfloat16 weights. With kFetch, asks for the same places of C
// other tiles meanwhile.
template <int R, int C, bool kFetch>
void multiply_bf16(const uint16_t* const* tiles, const uint16_t* const* ahead, const Input* inputs, size_t stride,
                   int num_pairs, float* out) {
  Floats sums[R][C];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums[r][c] = zeros();
  for (int k = 0; k < num_pairs; ++k) {
    const size_t place = size_t(k) * 2 * kTile;
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c)
      if (kFetch) prefetch(ahead[c] + place);
    add_pair(sums, tiles, place, inputs + 2 * k, stride);
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(out + (r * C + c) * kTile, sums[r][c]);
}

// The same for int8: exact sums over each block of 64 inputs, scaled and added up in float32.
template <int R, int C>
void multiply_int8(const uint8_t* const* tiles, const uint16_t* const* scales, const Inputs& inputs, int first_row,
                   float* out) {
  const int num_blocks = inputs.stride / kBlock;
  const uint8_t* rows[R];
  const float* row_scales[R];
  const int32_t* row_offsets[R];
  Floats sums[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    rows[r] = inputs.row(first_row + r);
    row_scales[r] = inputs.row_scales(first_row + r);
    row_offsets[r] = inputs.row_offsets(first_row + r);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums[r][c] = zeros();
  }
  for (int block = 0; block < num_blocks; ++block) {
    Ints exact[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) exact[r][c] = all_ints(kOffsetWeights ? row_offsets[r][block] : 0);
#pragma GCC unroll 16
    for (int quad = 0; quad < kBlock / 4; ++quad) {
      Quads weights[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const uint8_t* place = tiles[c] + (size_t(block) * (kBlock / 4) + quad) * 4 * kTile;
        weights[c] = load_quads(place);
        if (R <= kFetchRows) prefetch(place + kFetchBytes);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        Quads input = all_quads(rows[r] + block * kBlock + quad * 4);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) exact[r][c] = dot(exact[r][c], weights[c], input);
      }
    }
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      Floats scale = load_bf16(scales[c] + size_t(block) * kTile);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        sums[r][c] = fma(to_floats(exact[r][c]), scale * all(row_scales[r][block]), sums[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(out + (r * C + c) * kTile, sums[r][c]);
}

// Multiplies as many rows as fit the registers and says how many.
template <int R, int C>
int multiply_rows(const Matrix& matrix, const Inputs& inputs, int first_tile, int first_row, int num_rows, float* out) {
  if constexpr (R > 1) {
    if (num_rows < R) return multiply_rows<R - 1, C>(matrix, inputs, first_tile, first_row, num_rows, out);
  }
  const uint8_t* tiles[C];
  for (int c = 0; c < C; ++c) tiles[c] = matrix.values + size_t(first_tile + c) * matrix.tile_bytes();
  if (matrix.is_int8) {
    if constexpr (R <= max_rows_int8(C)) {
      const uint16_t* scales[C];
      for (int c = 0; c < C; ++c) scales[c] = matrix.scales + size_t(first_tile + c) * matrix.tile_scales();
      multiply_int8<R, C>(tiles, scales, inputs, first_row, out);
    }
  } else {
    if constexpr (R <= max_rows_bf16(C)) {
      const uint8_t* ahead[C];
      for (int c = 0; c < C; ++c) ahead[c] = tiles[c] + kFetchBytes;
      multiply_bf16<R, C, (R <= kFetchRows)>(
          reinterpret_cast<const uint16_t* const*>(tiles), reinterpret_cast<const uint16_t* const*>(ahead),
          reinterpret_cast<const Input*>(inputs.row(first_row)), inputs.stride, matrix.padded_inputs / 2, out);
    }
  }
  return R;
}

// The last two calls for a group of rows share what is left: one that gets few waits for its sums.
constexpr int rows_at_once(int rows_left, int most) {
  return rows_left > most && rows_left < 2 * most ? (rows_left + 1) / 2 : rows_left;
}

template <int C>
int multiply_vectors(const Matrix& matrix, const Inputs& inputs, int first_tile, int first_row, int num_rows,
                     float* out) {
  constexpr int kInt8 = max_rows_int8(C), kBf16 = max_rows_bf16(C);
  if (matrix.is_int8) return multiply_rows<kInt8, C>(matrix, inputs, first_tile, first_row, num_rows, out);
  return multiply_rows<kBf16, C>(matrix, inputs, first_tile, first_row, rows_at_once(num_rows, kBf16), out);
}

// Computes some rows of num_tiles <= 4 tiles into out [rows][num_tiles * 16]; returns how many rows.
inline int multiply_by_vectors(const Matrix& matrix, const Inputs& inputs, int first_tile, int num_tiles, int first_row,
                               int num_rows, float* out) {
  switch (num_tiles) {
    case 1: return multiply_vectors<1>(matrix, inputs, first_tile, first_row, num_rows, out);
    case 2: return multiply_vectors<2>(matrix, inputs, first_tile, first_row, num_rows, out);
    case 3: return multiply_vectors<3>(matrix, inputs, first_tile, first_row, num_rows, out);
    default: return multiply_vectors<4>(matrix, inputs, first_tile, first_row, num_rows, out);
  }
}

// The Walsh-Hadamard transform of 64 values, not normalised.
inline void rotate_block(const float* values, Floats (&parts)[kBlock / kTile]) {
  Floats a = hadamard(load(values)), b = hadamard(load(values + kTile));
  Floats c = hadamard(load(values + 2 * kTile)), d = hadamard(load(values + 3 * kTile));
  parts[0] = (a + b) + (c + d);
  parts[1] = (a - b) + (c - d);
  parts[2] = (a + b) - (c + d);
  parts[3] = (a - b) - (c - d);
}

// Writes one block of 64 inputs of a row; see `Matrix` for what int8 does to them.
inline void write_block(const Inputs& inputs, int row, int block, const float* values) {
  uint8_t* place = inputs.row(row);
  if (!inputs.is_int8) {
    Input* out = reinterpret_cast<Input*>(place) + block * kBlock;
    for (int k = 0; k < kBlock; k += kTile) store_inputs(out + k, load(values + k));
    return;
  }
  Floats parts[kBlock / kTile];
  rotate_block(values, parts);
  Floats peaks = absolute(parts[0]);
  for (int i = 1; i < kBlock / kTile; ++i) peaks = larger(peaks, absolute(parts[i]));
  float peak = maximum(peaks);
  float scale = peak / 127.0f;
  Floats inverse = all(peak > 0.0f ? 127.0f / peak : 0.0f);
  int8_t* out = reinterpret_cast<int8_t*>(place) + block * kBlock;
  Ints total = all_ints(0);
  for (int i = 0; i < kBlock / kTile; ++i) {
    Ints rounded = to_ints(parts[i] * inverse);
    total = total + rounded;
    store_int8(out + i * kTile, rounded);
  }
  inputs.row_scales(row)[block] = scale;
  inputs.row_offsets(row)[block] = -128 * sum(total);
}

// Takes `products` [num_rows][num_tiles * 16] to where they belong.
inline void finish_rows(const ProductArgs& args, const float* products, int first_row, int num_rows, int first_tile,
                        int num_tiles) {
  const int width = num_tiles * kTile, first = first_tile * kTile;
  const int limit = args.matrix->num_outputs - first;  // the last tile may be padded
  const float* bias = args.matrix->bias;
  for (int r = 0; r < num_rows; ++r) {
    const float* from = products + size_t(r) * width;
    float* to = args.out + size_t(first_row + r) * args.out_stride + first;
    for (int k = 0; k < width; k += kTile) {
      if (k + kTile > limit) {
        for (int i = k; i < limit; ++i) {
          float value = from[i] + (bias != nullptr ? bias[first + i] : 0.0f);
          to[i] = args.finish == Finish::kAdd ? to[i] + value : value;
        }
        break;
      }
      Floats value = load(from + k);
      if (bias != nullptr) value = value + load(bias + first + k);
      if (args.finish == Finish::kAdd) value = load(to + k) + value;
      store(to + k, value);
    }
  }
}

// Makes one tile of silu(gate) * up [num_rows][kBlock] of two with rows of `stride` floats.
inline void gate_rows(const float* gate, const float* up, int stride, int num_rows, float* gated) {
  for (int r = 0; r < num_rows; ++r)
    store(gated + r * kBlock, silu(load(gate + size_t(r) * stride)) * load(up + size_t(r) * stride));
}

// `multiply(first_tile, num_tiles, first_row, num_rows, out)` computes some rows and returns how many.
template <class Multiply>
void product_with(const ProductArgs& args, const ProductPart& part, int group, Multiply&& multiply) {
  alignas(64) float products[kMaxRows * kMaxGroup * kTile];
  if (args.finish != Finish::kGate) {
    for (int tile = 0; tile < part.num_tiles; tile += group) {
      int width = part.num_tiles - tile < group ? part.num_tiles - tile : group;
      for (int row = 0; row < part.num_rows;) {
        int first = part.first_row + row;
        int rows = multiply(part.first_tile + tile, width, first, part.num_rows - row, products);
        finish_rows(args, products, first, rows, part.first_tile + tile, width);
        row += rows;
      }
    }
    return;
  }
  alignas(64) float gated[kMaxRows * kBlock];
  for (int tile = 0; tile < part.num_tiles; tile += kGateTiles) {
    int first_tile = part.first_tile + tile;
    for (int row = 0; row < part.num_rows;) {
      int first = part.first_row + row, rows = 0;
      // Gates and ups alternate.
      for (int c = 0; c < kGateTiles; c += group) {
        rows = multiply(first_tile + c, group, first, part.num_rows - row, products);
        if (group == 1) {
          float* ups = products + kMaxRows * kTile;
          multiply(first_tile + ++c, 1, first, part.num_rows - row, ups);
          gate_rows(products, ups, kTile, rows, gated + c / 2 * kTile);
          continue;
        }
        for (int i = 0; i < group; i += 2)
          gate_rows(products + i * kTile, products + (i + 1) * kTile, group * kTile, rows, gated + (c + i) / 2 * kTile);
      }
      for (int r = 0; r < rows; ++r) write_block(*args.gated, first + r, first_tile / kGateTiles, gated + r * kBlock);
      row += rows;
    }
  }
}

// How many tiles of gates and ups are worked on together: as many as let all rows go through in one pass over the
// weights, else as many as most rows go with.
inline int gate_group(bool is_int8, int num_rows) {
  auto most = [is_int8](int tiles) { return is_int8 ? max_rows_int8(tiles) : max_rows_bf16(tiles); };
  if (num_rows <= most(4)) return 4;
  if (num_rows <= most(2)) return 2;
  return 2 * most(2) < most(1) ? 1 : most(4) > 1 ? 4 : 2;
}

inline void product_by_vectors(const ProductArgs& args, const ProductPart& part) {
  int group = part.num_tiles < kMaxGroup ? part.num_tiles : kMaxGroup;
  if (args.finish == Finish::kGate) group = gate_group(args.matrix->is_int8, part.num_rows);
  product_with(args, part, group,
               [&](int first_tile, int num_tiles, int first_row, int num_rows, float* out) {
                 return multiply_by_vectors(*args.matrix, *args.inputs, first_tile, num_tiles, first_row, num_rows, out);
               });
}

}  // namespace
