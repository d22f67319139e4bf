// Weights laid out in tiles hold what the matrix held, with zeros around it.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "check.h"
#include "model.h"
#include "reference.h"

namespace wye::sanitize {
namespace {

// Row of the matrix behind a column of a tile; -1 for padding.
int row_of(int tile, int column, int num_outputs, bool is_gated) {
  if (!is_gated) {
    const int row = tile * kTile + column;
    return row < num_outputs ? row : -1;
  }
  const int half = num_outputs / 2, within = tile / 2 * kTile + column;
  if (within >= half) return -1;
  return tile % 2 * half + within;
}

void check_bf16(const Matrix& view, const std::vector<uint16_t>& weights, bool is_gated) {
  const uint16_t* values = reinterpret_cast<const uint16_t*>(view.values);
  for (int tile = 0; tile < view.num_tiles; ++tile)
    for (int k = 0; k < view.padded_inputs; ++k)
      for (int column = 0; column < kTile; ++column) {
        const int row = row_of(tile, column, view.num_outputs, is_gated);
        const uint16_t expected =
            row >= 0 && k < view.num_inputs ? weights[size_t(row) * view.num_inputs + k] : 0;
        const size_t place = size_t(tile) * view.padded_inputs * kTile + (size_t(k / 2) * kTile + column) * 2 + k % 2;
        check(values[place] == expected, "a weight is not where it should be");
      }
}

void check_int8(const Matrix& view, const std::vector<uint16_t>& weights, bool is_gated) {
  const int num_blocks = view.padded_inputs / kBlock;
  for (int tile = 0; tile < view.num_tiles; ++tile)
    for (int block = 0; block < num_blocks; ++block)
      for (int column = 0; column < kTile; ++column) {
        const int row = row_of(tile, column, view.num_outputs, is_gated);
        double found[kBlock], expected[kBlock] = {};
        for (int i = 0; i < kBlock; ++i) {
          const int k = block * kBlock + i;
          found[i] = int(view.values[tile * view.tile_bytes() + (size_t(k / 4) * kTile + column) * 4 + k % 4]) - 128;
          check(found[i] >= -127 && found[i] <= 127, "an int8 weight is out of range");
          if (row >= 0 && k < view.num_inputs) expected[i] = to_float(weights[size_t(row) * view.num_inputs + k]);
        }
        const double scale = to_float(view.scales[tile * view.tile_scales() + size_t(block) * kTile + column]);
        const bool is_zero = std::all_of(expected, expected + kBlock, [](double value) { return value == 0; });
        check((scale == 0) == is_zero, "only a block of zeros has no scale");
        transform_block(found);  // twice makes 64 times as much, which the scale has divided out already
        for (int i = 0; i < kBlock; ++i)  // 64 times half a scale at worst
          check(std::fabs(found[i] * scale - expected[i]) <= 32.1 * scale, "an int8 weight is wrong");
      }
}

void run_case(int seed) {
  Random random(seed);
  Team team(random.between(1, 4));
  const bool is_int8 = random.chance(0.5), is_gated = random.chance(0.3);
  const int num_outputs = is_gated ? 2 * random.between(1, 120) : random.between(1, 200);
  const int num_inputs = random.between(1, 200);
  std::vector<uint16_t> weights(size_t(num_outputs) * num_inputs);
  for (uint16_t& weight : weights)
    weight = to_bfloat16(random.chance(0.05) ? 0.0 : random.normal() * std::exp(random.chance(0.02) ? 3.0 : 0.0));
  if (random.chance(0.2)) std::fill_n(weights.begin(), num_inputs, 0);
  const PackedMatrix packed = pack(team, weights.data(), num_outputs, num_inputs, is_int8, is_gated);
  const Matrix& view = packed.view;
  check(view.num_outputs == num_outputs && view.num_inputs == num_inputs && view.padded_inputs % kBlock == 0,
        "a packed matrix knows its size");
  check(packed.values.size() == view.num_tiles * view.tile_bytes(), "all tiles have room");
  if (is_int8) {
    check_int8(view, weights, is_gated);
  } else {
    check_bf16(view, weights, is_gated);
  }
}

}  // namespace

void check_packing(double seconds) {
  Cases cases("packing", seconds, 20);
  for (int seed; (seed = cases.next()) >= 0;) run_case(seed);
}

}  // namespace wye::sanitize
