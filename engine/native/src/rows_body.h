// Norms, conversion of inputs and rotary positions, for the form that includes this after product_body.h.

#pragma once

#include "layout.h"
#include "product_body.h"

namespace {

using wye::NormArgs;
using wye::PageShape;
using wye::kMaxHeadDim;
using wye::RopeArgs;

// Sum of squares over `width` floats, padded ones left out.
inline float sum_of_squares(const float* values, int width) {
  Floats squares = zeros();
  int k = 0;
  for (; k + kTile <= width; k += kTile) {
    Floats x = load(values + k);
    squares = fma(x, x, squares);
  }
  float total = sum(squares);
  for (; k < width; ++k) total += values[k] * values[k];
  return total;
}

inline float root_of_mean(float squares, int width, float eps) {
  return 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(squares / static_cast<float>(width) + eps)));
}

// Normalises rows (arXiv 1910.07467), or only takes them, and writes them as inputs of a product.
inline void norm_rows(const NormArgs& args, int first_row, int num_rows) {
  alignas(64) float block[kBlock];
  for (int row = first_row; row < first_row + num_rows; ++row) {
    const float* from = args.rows + size_t(args.index != nullptr ? args.index[row] : row) * args.row_stride;
    float factor = 1.0f;
    if (args.weight != nullptr) factor = root_of_mean(sum_of_squares(from, args.width), args.width, args.eps);
    for (int start = 0; start < args.inputs->stride; start += kBlock) {
      for (int k = 0; k < kBlock; k += kTile) {
        int rest = args.width - start - k;
        Floats x = zeros();
        if (rest >= kTile) {
          x = load(from + start + k);
          if (args.weight != nullptr) x = x * all(factor) * load(args.weight + start + k);
        } else if (rest > 0) {
          alignas(64) float padded[kTile] = {};
          for (int i = 0; i < rest; ++i) {
            padded[i] = from[start + k + i];
            if (args.weight != nullptr) padded[i] = padded[i] * factor * args.weight[start + k + i];
          }
          x = load(padded);
        }
        store(block + k, x);
      }
      write_block(*args.inputs, row, start / kBlock, block);
    }
  }
}

// Rotates one head in place, halves paired (arXiv 2104.09864), after its norm if it has one.
inline void rotate_head(float* head, int head_dim, const float* cos, const float* sin, const float* norm, float eps) {
  if (norm != nullptr) {
    float factor = root_of_mean(sum_of_squares(head, head_dim), head_dim, eps);
    for (int i = 0; i < head_dim; ++i) head[i] = head[i] * factor * norm[i];
  }
  const int half = head_dim / 2;
  int i = 0;
  for (; i + kTile <= half; i += kTile) {
    Floats a = load(head + i), b = load(head + half + i), c = load(cos + i), s = load(sin + i);
    store(head + i, fma(a, c, zeros() - b * s));
    store(head + half + i, fma(b, c, a * s));
  }
  for (; i < half; ++i) {
    float a = head[i], b = head[half + i];
    head[i] = a * cos[i] - b * sin[i];
    head[half + i] = b * cos[i] + a * sin[i];
  }
}

// Rounds one head to bfloat16.
inline void round_head(const float* head, int head_dim, uint16_t* out) {
  int i = 0;
  for (; i + kTile <= head_dim; i += kTile) store_bf16(out + i, load(head + i));
  if (i < head_dim) {
    alignas(64) float padded[kTile] = {};
    uint16_t rounded[kTile];
    for (int j = i; j < head_dim; ++j) padded[j - i] = head[j];
    store_bf16(rounded, load(padded));
    for (int j = i; j < head_dim; ++j) out[j] = rounded[j - i];
  }
}

// Stores one token's K and V of one head; see `PageShape` for the places.
inline void store_token(const PageShape& shape, int64_t slot, int kv_head, const uint16_t* key, const uint16_t* value,
                        uint16_t* keys, uint16_t* values) {
  const int dim = shape.head_dim, at = static_cast<int>(slot % shape.page_size);
  const size_t page = size_t(slot / shape.page_size) * shape.page_values();
  if (!shape.is_tiled()) {
    size_t place = page + (size_t(at) * shape.num_kv_heads + kv_head) * dim;
    for (int i = 0; i < dim; ++i) {
      keys[place + i] = key[i];
      values[place + i] = value[i];
    }
    return;
  }
  const size_t tile = page + (size_t(kv_head) * shape.page_size + at / kTile * kTile) * dim;
  const int lane = at % kTile;
  uint32_t* key_pairs = reinterpret_cast<uint32_t*>(keys + tile) + lane;
  for (int i = 0; i < dim / 2; ++i) key_pairs[i * kTile] = uint32_t(key[2 * i]) | uint32_t(key[2 * i + 1]) << 16;
  uint16_t* column = values + tile + lane / 2 * 2 * kTile + lane % 2;
  for (int j = 0; j < dim; j += kTile)
    for (int i = 0; i < kTile; ++i) column[j * kTile + 2 * i] = value[j + i];
}

// Rotates q and k of some rows and stores their K and V.
inline void rope_rows(const RopeArgs& args, int first_row, int num_rows) {
  const PageShape& shape = args.shape;
  const int dim = shape.head_dim, rotated = args.num_heads + shape.num_kv_heads;
  alignas(64) uint16_t key[kMaxHeadDim], value[kMaxHeadDim];
  for (int row = first_row; row < first_row + num_rows; ++row) {
    float* heads = args.projected + row * args.row_stride;
    const float* cos = args.cos + size_t(row) * (dim / 2);
    const float* sin = args.sin + size_t(row) * (dim / 2);
    for (int head = 0; head < rotated; ++head)
      rotate_head(heads + head * dim, dim, cos, sin, args.head_norm ? args.head_norm + head * dim : nullptr, args.eps);
    for (int g = 0; g < shape.num_kv_heads; ++g) {
      round_head(heads + (args.num_heads + g) * dim, dim, key);
      round_head(heads + (rotated + g) * dim, dim, value);
      store_token(shape, args.slots[row], g, key, value, args.keys, args.values);
    }
  }
}

}  // namespace
