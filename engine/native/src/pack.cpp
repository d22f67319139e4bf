#include <cmath>

#include "model.h"

namespace wye {
namespace {

float to_float(uint16_t bits) {
  uint32_t wide = uint32_t(bits) << 16;
  float value;
  static_assert(sizeof value == sizeof wide);
  __builtin_memcpy(&value, &wide, sizeof value);
  return value;
}

// The least bfloat16 that is not below a positive value.
uint16_t bfloat16_above(float value) {
  uint32_t wide;
  __builtin_memcpy(&wide, &value, sizeof wide);
  return uint16_t((wide + 0xffff) >> 16);
}

// The Walsh-Hadamard transform of 64 values, not normalised: applied to weights and inputs it makes products 64 times
// as large.
void rotate(float (&values)[kBlock]) {
  for (int distance = 1; distance < kBlock; distance *= 2)
    for (int start = 0; start < kBlock; start += 2 * distance)
      for (int i = start; i < start + distance; ++i) {
        const float a = values[i], b = values[i + distance];
        values[i] = a + b;
        values[i + distance] = a - b;
      }
}

// Where each column of a tile comes from; gated tiles alternate between the upper and the lower half of the weights,
// each half padded to whole blocks.
struct Source {
  const uint16_t* weights;
  int num_outputs, num_inputs;
  bool is_gated;

  // The row of weights behind a place among the tiles, or null where there is only padding.
  const uint16_t* row(int tile, int column) const {
    int output;
    if (is_gated) {
      int half = num_outputs / 2, within = tile / 2 * kTile + column;
      if (within >= half) return nullptr;
      output = tile % 2 * half + within;
    } else {
      output = tile * kTile + column;
      if (output >= num_outputs) return nullptr;
    }
    return weights + size_t(output) * num_inputs;
  }
};

void pack_bf16(const Source& source, int tile, int padded, uint16_t* out) {
  for (int column = 0; column < kTile; ++column) {
    const uint16_t* row = source.row(tile, column);
    for (int k = 0; k < padded; ++k)
      out[(size_t(k) / 2 * kTile + column) * 2 + k % 2] = row != nullptr && k < source.num_inputs ? row[k] : 0;
  }
}

void pack_int8(const Source& source, int tile, int padded, uint8_t* out, uint16_t* scales) {
  for (int column = 0; column < kTile; ++column) {
    const uint16_t* row = source.row(tile, column);
    for (int block = 0; block < padded / kBlock; ++block) {
      float values[kBlock], peak = 0.0f;
      for (int i = 0; i < kBlock; ++i) {
        int k = block * kBlock + i;
        values[i] = row != nullptr && k < source.num_inputs ? to_float(row[k]) : 0.0f;
      }
      rotate(values);
      for (float value : values) peak = std::fmax(peak, std::fabs(value));
      // The scale itself is rounded, upwards so that nothing is cut off, before values are divided by it.
      uint16_t scale = peak > 0.0f ? bfloat16_above(peak / 127.0f) : 0;
      scales[size_t(block) * kTile + column] = peak > 0.0f ? bfloat16_above(to_float(scale) / kBlock) : 0;
      float inverse = peak > 0.0f ? 1.0f / to_float(scale) : 0.0f;
      for (int i = 0; i < kBlock; ++i) {
        int k = block * kBlock + i;
        int rounded = int(std::lrintf(values[i] * inverse));
        out[(size_t(k) / 4 * kTile + column) * 4 + k % 4] = uint8_t(rounded + 128);
      }
    }
  }
}

}  // namespace

PackedMatrix pack(Team& team, const uint16_t* weights, int num_outputs, int num_inputs, bool is_int8, bool is_gated) {
  PackedMatrix packed;
  Matrix& view = packed.view;
  view.num_outputs = num_outputs;
  view.num_inputs = num_inputs;
  view.num_tiles = is_gated ? 2 * round_up(num_outputs / 2, kBlock) / kTile : round_up(num_outputs, kTile) / kTile;
  view.padded_inputs = round_up(num_inputs, kBlock);
  view.is_int8 = is_int8;
  packed.values = Arena(view.num_tiles * view.tile_bytes());
  if (is_int8) packed.scales = Arena(view.num_tiles * view.tile_scales() * sizeof(uint16_t));
  view.values = packed.values.data<uint8_t>();
  view.scales = packed.scales.data<uint16_t>();
  const Source source{weights, num_outputs, num_inputs, is_gated};
  team.for_each(view.num_tiles, [&](int tile, int) {
    uint8_t* out = packed.values.data<uint8_t>() + tile * view.tile_bytes();
    if (is_int8) {
      pack_int8(source, tile, view.padded_inputs, out, packed.scales.data<uint16_t>() + tile * view.tile_scales());
    } else {
      pack_bf16(source, tile, view.padded_inputs, reinterpret_cast<uint16_t*>(out));
    }
  });
  return packed;
}

}  // namespace wye
