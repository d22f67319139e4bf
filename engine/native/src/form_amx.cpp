// AVX-512 with matrix tiles (Sapphire Rapids and later): products and attention of 16 rows at once.
//
// Rows of a product always go through tiles in bfloat16, however few they are, so that a row's sums do not depend on
// how many there are. In int8 sums are exact, so few rows may take the vectors.

#include "simd_avx512.h"
//
#include "form_body.h"

namespace {

struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// 0..3 hold sums, 4 and 5 inputs, 6 and 7 weights, all of 16 rows of 64 bytes.
constexpr TileConfig kProductTiles = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
// The same for 0..5; 6 takes 16 rows of 16 weights of keys, 7 the values of 16 keys.
constexpr TileConfig kAttendTiles = {1, 0, {}, {64, 64, 64, 64, 64, 64, 32, 64}, {16, 16, 16, 16, 16, 16, 16, 8}};

constexpr int kTileBytes = 1024;
constexpr int kAheadSteps = 4;
constexpr int kAheadBytes = kAheadSteps * kTileBytes;
constexpr int kFewRows = 24;  // below, scaling what leaves a tile costs more than vectors that need no tile: int8 skips it

// Asks for the next places of 16 rows' inputs: no processor foresees a tile whose rows lie far apart.
inline void fetch_inputs(const uint8_t* inputs, size_t stride) {
  for (int r = 0; r < kTile; ++r) _mm_prefetch(reinterpret_cast<const char*>(inputs + r * stride), _MM_HINT_T0);
}

inline void fetch_tile(const void* place, int num_bytes) {
  for (int at = 0; at < num_bytes; at += 64) prefetch(static_cast<const char*>(place) + at);
}

// 16 rows of inputs times up to four tiles of bfloat16 weights.
inline void multiply_16_rows(const uint8_t* const* tiles, int count, const uint8_t* inputs, size_t stride,
                             int num_steps, bool fetch, float* out) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int step = 0; step < num_steps; ++step) {
    const size_t place = size_t(step) * kTileBytes;
    if (fetch)
      for (int c = 0; c < count; ++c) fetch_tile(tiles[c] + place + kAheadBytes, kTileBytes);
    _tile_loadd(4, inputs + step * 64, stride);
    _tile_loadd(6, tiles[0] + place, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (count > 1) {
      _tile_loadd(7, tiles[1] + place, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (count > 2) {
      _tile_loadd(6, tiles[2] + place, 64);
      _tile_dpbf16ps(2, 4, 6);
    }
    if (count > 3) {
      _tile_loadd(7, tiles[3] + place, 64);
      _tile_dpbf16ps(3, 4, 7);
    }
  }
  const size_t width = size_t(count) * kTile * sizeof(float);
  _tile_stored(0, out, width);
  if (count > 1) _tile_stored(1, out + kTile, width);
  if (count > 2) _tile_stored(2, out + 2 * kTile, width);
  if (count > 3) _tile_stored(3, out + 3 * kTile, width);
}

// 32 rows of inputs times two tiles of bfloat16 weights.
inline void multiply_32_rows(const uint8_t* const* tiles, const uint8_t* inputs, size_t stride, int num_steps,
                             bool fetch, float* out) {
  const uint8_t* lower = inputs + kTile * stride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int step = 0; step < num_steps; ++step) {
    const size_t place = size_t(step) * kTileBytes;
    const int at = step * 64;
    if (fetch) {
      const bool is_over = step + kAheadSteps >= num_steps;  // then at the start of the tiles after these two
      const size_t ahead = place + kAheadBytes + (is_over ? size_t(num_steps) * kTileBytes : 0);
      fetch_tile(tiles[0] + ahead, kTileBytes);
      fetch_tile(tiles[1] + ahead, kTileBytes);
    }
    _tile_loadd(6, tiles[0] + place, 64);
    _tile_loadd(4, inputs + at, stride);
    fetch_inputs(inputs + at + 2 * 64, stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, tiles[1] + place, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, lower + at, stride);
    fetch_inputs(lower + at + 2 * 64, stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  constexpr size_t kWidth = 2 * kTile * sizeof(float);
  _tile_stored(0, out, kWidth);
  _tile_stored(1, out + kTile, kWidth);
  _tile_stored(2, out + 16 * 2 * kTile, kWidth);
  _tile_stored(3, out + 16 * 2 * kTile + kTile, kWidth);
}

// Exact sums of one block of int8, 16 rows times 16 outputs. Blocks take turns with two sets of tiles, so that one
// block's sums can be scaled while the next one's are made.
inline void sum_block(const uint8_t* rows, size_t stride, const uint8_t* weights, bool is_odd, int32_t* out) {
  if (is_odd) {
    _tile_loadd(5, rows, stride);
    _tile_loadd(7, weights, 64);
    _tile_zero(1);
    _tile_dpbsud(1, 5, 7);
    _tile_stored(1, out, 64);
  } else {
    _tile_loadd(4, rows, stride);
    _tile_loadd(6, weights, 64);
    _tile_zero(0);
    _tile_dpbsud(0, 4, 6);
    _tile_stored(0, out, 64);
  }
}

// 16 rows of inputs times one tile of int8 weights: exact sums of each block leave the tile, are scaled and added up.
inline void multiply_16_rows_int8(const Matrix& matrix, const Inputs& inputs, int tile, int first_row, bool fetch,
                                  float* out, int out_stride) {
  const uint8_t* weights = matrix.values + size_t(tile) * matrix.tile_bytes();
  const uint16_t* scales = matrix.scales + size_t(tile) * matrix.tile_scales();
  const uint8_t* rows = inputs.row(first_row);
  const float* row_scales = inputs.row_scales(first_row);
  const int32_t* row_offsets = inputs.row_offsets(first_row);
  const int num_blocks = inputs.stride / kBlock;
  alignas(64) int32_t exact[2][kTile * kTile];
  Floats sums[kTile];
#pragma GCC unroll 16
  for (int r = 0; r < kTile; ++r) sums[r] = zeros();
  auto sum_up = [&](int block, bool is_odd) {
    if (block < num_blocks)
      sum_block(rows + block * kBlock, size_t(inputs.stride), weights + size_t(block) * kTileBytes, is_odd,
                exact[is_odd]);
  };
  auto scale = [&](int block, const int32_t* sum) {
    const Floats column_scales = load_bf16(scales + size_t(block) * kTile);
#pragma GCC unroll 16
    for (int r = 0; r < kTile; ++r) {
      const Ints offset = all_ints(row_offsets[r * num_blocks + block]);
      const Ints total = Ints{_mm512_load_si512(sum + r * kTile)} + offset;
      sums[r] = fma(to_floats(total), column_scales * all(row_scales[r * num_blocks + block]), sums[r]);
    }
  };
  sum_up(0, false);
  for (int block = 0; block < num_blocks; block += 2) {
    if (fetch) fetch_tile(weights + size_t(block) * kTileBytes + kAheadBytes, 2 * kTileBytes);
    sum_up(block + 1, true);
    scale(block, exact[0]);
    if (block + 1 == num_blocks) break;
    sum_up(block + 2, false);
    scale(block + 1, exact[1]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTile; ++r) store(out + r * out_stride, sums[r]);
}

// Computes some rows of num_tiles <= 4 tiles; inputs have spare rows, so whole tiles of rows can be read. The first of
// them are the ones that wait for weights from memory.
inline int multiply_by_tiles(const Matrix& matrix, const Inputs& inputs, int first_tile, int num_tiles, int first_row,
                             int num_rows, bool is_first, float* out) {
  if (matrix.is_int8) {
    if (num_rows < kFewRows)
      return multiply_by_vectors(matrix, inputs, first_tile, num_tiles, first_row, num_rows, out);
    for (int c = 0; c < num_tiles; ++c)
      multiply_16_rows_int8(matrix, inputs, first_tile + c, first_row, is_first, out + c * kTile, num_tiles * kTile);
    return num_rows < kTile ? num_rows : kTile;
  }
  const uint8_t* tiles[kMaxGroup];
  for (int c = 0; c < num_tiles; ++c) tiles[c] = matrix.values + size_t(first_tile + c) * matrix.tile_bytes();
  const int num_steps = matrix.padded_inputs / 32;
  const uint8_t* rows = inputs.row(first_row);
  if (num_rows > kTile && num_tiles == 2) {
    multiply_32_rows(tiles, rows, inputs.row_bytes(), num_steps, is_first, out);
    return num_rows < 2 * kTile ? num_rows : 2 * kTile;
  }
  multiply_16_rows(tiles, num_tiles, rows, inputs.row_bytes(), num_steps, num_rows <= kTile, out);
  return num_rows < kTile ? num_rows : kTile;
}

inline void product_by_tiles(const ProductArgs& args, const ProductPart& part) {
  _tile_loadconfig(&kProductTiles);
  int group = part.num_tiles < kMaxGroup ? part.num_tiles : kMaxGroup;
  if (args.finish == Finish::kGate) group = part.num_rows > kTile ? 2 : 4;
  product_with(args, part, group,
               [&](int first_tile, int num_tiles, int first_row, int num_rows, float* out) {
                 return multiply_by_tiles(*args.matrix, *args.inputs, first_tile, num_tiles, first_row, num_rows,
                                          first_row == part.first_row, out);
               });
}

// scores of 16 rows at a time: queries [M][W] times key tiles [W / 2][16][2].
inline void score_by_tiles(const BlockTiles& block, const BlockTiles& ahead, AttendScratch& scratch, int num_rows,
                           int width) {
  for (int row = 0; row < num_rows; row += kTile)
    for (int tile = 0; tile < block.count; ++tile) {
      _tile_zero(0);
      for (int dim = 0; dim < width; dim += 32) {
        _tile_loadd(4, scratch.queries + size_t(row) * width + dim, size_t(width) * sizeof(uint16_t));
        _tile_loadd(5, block.keys[tile] + size_t(dim) * kTile, 64);
        if (num_rows <= kFetchRows) fetch_tile(ahead.keys[tile] + size_t(dim) * kTile, kTileBytes);
        _tile_dpbf16ps(0, 4, 5);
      }
      _tile_stored(0, scratch.scores + row * kKeyBlock + tile * kTile, kKeyBlock * sizeof(float));
    }
}

// output [M][W] = output * alpha + weights [M][64] times value tiles [W / 16][8][16][2].
inline void add_by_tiles(const BlockTiles& block, const BlockTiles& ahead, AttendScratch& scratch, int num_rows,
                         int width) {
  for (int row = 0; row < num_rows; ++row)
    for (int dim = 0; dim < width; dim += kTile) {
      float* place = scratch.output + size_t(row) * width + dim;
      store(place, load(place) * all(scratch.alpha[row]));
    }
  const size_t stride = size_t(width) * sizeof(float);
  for (int row = 0; row < num_rows; row += kTile)
    for (int dim = 0; dim < width; dim += kTile) {
      float* place = scratch.output + size_t(row) * width + dim;
      _tile_loadd(0, place, stride);
      for (int tile = 0; tile < block.count; ++tile) {
        _tile_loadd(6, scratch.probs + row * kKeyBlock + tile * kTile, kKeyBlock * sizeof(uint16_t));
        _tile_loadd(7, block.values[tile] + size_t(dim) * kTile, 64);
        if (num_rows <= kFetchRows) fetch_tile(ahead.values[tile] + size_t(dim) * kTile, kTileBytes / 2);
        _tile_dpbf16ps(0, 6, 7);
      }
      _tile_stored(0, place, stride);
    }
}

inline void attend_by_tiles(const AttendArgs& args, const AttendTask& task, const AttendTask* next, char* memory) {
  if (args.shape.head_dim % 32 != 0) return attend_by_vectors(args, task, next, memory);
  _tile_loadconfig(&kAttendTiles);
  attend_with(args, task, next, *reinterpret_cast<AttendScratch*>(memory), score_by_tiles, add_by_tiles);
}

inline void release_tiles() { _tile_release(); }

}  // namespace

namespace wye {

const Form& form_amx() {
  static const Form form = [] {
    Form made = vector_form("amx", 4, 2);
    made.leave = release_tiles;
    made.product = product_by_tiles;
    made.attend = attend_by_tiles;
    return made;
  }();
  return form;
}

}  // namespace wye
