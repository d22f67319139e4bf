// Paged attention in one pass (arXiv 2205.14135), for the form that includes this after rows_body.h.
//
// Keys are looked at in blocks of 64 and spans of 512 that begin at fixed positions; a row keeps a maximum, a sum and
// an output per span, and spans are merged in order. A block of which a row sees nothing leaves the row's state as it
// was, to the bit, so a row's result does not depend on the rows, chunks or threads it was computed with.
//
// Letters: M = rows of a task times the heads that share one K/V head, D head_dim, W = D rounded up to 16.

#pragma once

#include "layout.h"
#include "rows_body.h"

namespace {

using wye::AttendArgs;
using wye::AttendTask;
using wye::kKeyBlock;
using wye::kMaxTaskRows;
using wye::kSpanKeys;

constexpr float kNothing = -1e30f;  // maximum of a row that saw nothing yet; finite, so that no difference is NaN
constexpr int kBlockTiles = kKeyBlock / kTile;

// One thread's workspace.
struct alignas(64) AttendScratch {
  uint16_t queries[kMaxTaskRows * kMaxHeadDim];
  uint16_t probs[kMaxTaskRows * kKeyBlock];
  float scores[kMaxTaskRows * kKeyBlock];
  float output[kMaxTaskRows * kMaxHeadDim];
  float total[kMaxTaskRows * kMaxHeadDim];
  float alpha[kMaxTaskRows];
  float peak[kMaxTaskRows], weight[kMaxTaskRows];              // of the span
  float total_peak[kMaxTaskRows], total_weight[kMaxTaskRows];  // of all spans so far
  uint16_t keys[kBlockTiles * kTile * kMaxHeadDim];            // tiles made from pages that are not tiled
  uint16_t values[kBlockTiles * kTile * kMaxHeadDim];
};

inline float exponential_of(float x) {
  alignas(64) float out[kTile];
  store(out, exponential(all(x)));
  return out[0];
}

// Tiles of one block of keys, wherever they lie.
struct BlockTiles {
  const uint16_t* keys[kBlockTiles];
  const uint16_t* values[kBlockTiles];
  int count;
};

// A tile's values without those of keys past the end, which may be anything, NaN included.
inline void copy_valid_values(const uint16_t* from, int num_keys, int width, uint16_t* to) {
  for (int column = 0; column < width; column += kTile)
    for (int lane = 0; lane < kTile; lane += 2) {
      const uint16_t* pairs = from + column * kTile + lane * kTile;
      uint16_t* out = to + column * kTile + lane * kTile;
      for (int i = 0; i < kTile; ++i) {
        out[2 * i] = lane < num_keys ? pairs[2 * i] : 0;
        out[2 * i + 1] = lane + 1 < num_keys ? pairs[2 * i + 1] : 0;
      }
    }
}

// Makes a tile from pages that keep tokens one after the other.
inline void gather_tile(const AttendArgs& args, const AttendTask& task, int first_key, int num_keys, int width,
                        uint16_t* keys, uint16_t* values) {
  const PageShape& shape = args.shape;
  for (int i = 0; i < kTile * width; ++i) keys[i] = values[i] = 0;
  for (int lane = 0; lane < num_keys; ++lane) {
    int key = first_key + lane;
    size_t page = size_t(task.pages[key / shape.page_size]) * shape.page_values();
    size_t place = page + (size_t(key % shape.page_size) * shape.num_kv_heads + task.kv_head) * shape.head_dim;
    for (int d = 0; d < shape.head_dim; ++d) {
      keys[(d / 2 * kTile + lane) * 2 + d % 2] = args.keys[place + d];
      values[d / kTile * kTile * kTile + lane / 2 * 2 * kTile + d % kTile * 2 + lane % 2] = args.values[place + d];
    }
  }
}

inline BlockTiles find_tiles(const AttendArgs& args, const AttendTask& task, int first_key, int end, int width,
                             AttendScratch& scratch) {
  const PageShape& shape = args.shape;
  BlockTiles tiles;
  tiles.count = 0;
  for (int key = first_key; key < end && tiles.count < kBlockTiles; key += kTile, ++tiles.count) {
    const int num_keys = end - key < kTile ? end - key : kTile;
    uint16_t* own_keys = scratch.keys + size_t(tiles.count) * kTile * width;
    uint16_t* own_values = scratch.values + size_t(tiles.count) * kTile * width;
    tiles.keys[tiles.count] = own_keys;
    tiles.values[tiles.count] = own_values;
    if (!shape.is_tiled()) {
      gather_tile(args, task, key, num_keys, width, own_keys, own_values);
      continue;
    }
    size_t page = size_t(task.pages[key / shape.page_size]) * shape.page_values();
    size_t place = page + (size_t(task.kv_head) * shape.page_size + key % shape.page_size) * shape.head_dim;
    tiles.keys[tiles.count] = args.keys + place;
    if (num_keys == kTile) {
      tiles.values[tiles.count] = args.values + place;
    } else {
      copy_valid_values(args.values + place, num_keys, width, own_values);
    }
  }
  return tiles;
}

// Which of a block's 64 keys a row sees.
inline uint64_t visible_keys(const AttendArgs& args, const AttendTask& task, int row, int first_key) {
  if (task.mask != nullptr) {
    const uint8_t* mask = task.mask + size_t(row) * task.context;
    uint64_t bits = 0;
    for (int i = 0; i < kKeyBlock && first_key + i < task.context; ++i) bits |= uint64_t(mask[first_key + i] != 0) << i;
    return bits;
  }
  const int end = task.first_visible + row;
  const int begin = args.window > 0 && end > args.window ? end - args.window : 0;
  if (end <= first_key || begin >= first_key + kKeyBlock) return 0;
  uint64_t bits = ~uint64_t{0};
  if (end < first_key + kKeyBlock) bits >>= first_key + kKeyBlock - end;
  if (begin > first_key) bits &= ~uint64_t{0} << (begin - first_key);
  return bits;
}

// output [R][C * 16] = output * alpha + probabilities times values, over the tiles of a block.
template <int R, int C>
void add_values(const BlockTiles& tiles, int column, const uint16_t* probs, const float* alpha, float* output,
                size_t width) {
  Floats sums[R][C];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums[r][c] = load(output + r * width + c * kTile) * all(alpha[r]);
  for (int tile = 0; tile < tiles.count; ++tile) {
    const uint16_t* values = tiles.values[tile] + column * kTile;
    for (int pair = 0; pair < kTile / 2; ++pair) {
      Pairs weights[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) weights[c] = load_pairs(values + c * kTile * kTile + pair * 2 * kTile);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        Pairs input = all_pairs(probs + r * kKeyBlock + tile * kTile + 2 * pair);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sums[r][c] = dot(sums[r][c], weights[c], input);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(output + r * width + c * kTile, sums[r][c]);
}

template <int R, int C>
void add_some_values(const BlockTiles& tiles, int column, const uint16_t* probs, const float* alpha, float* output,
                     size_t width, int rows) {
  if constexpr (R > 1) {
    if (rows < R) return add_some_values<R - 1, C>(tiles, column, probs, alpha, output, width, rows);
  }
  add_values<R, C>(tiles, column, probs, alpha, output, width);
}

template <int R, int C>
void score_some(const BlockTiles& tiles, const uint16_t* queries, int width, int rows, float* out) {
  if constexpr (R > 1) {
    if (rows < R) return score_some<R - 1, C>(tiles, queries, width, rows, out);
  }
  multiply_bf16<R, C, false>(tiles.keys, queries, width, width / 2, out);
}

template <int N>
struct Constant {
  static constexpr int value = N;
};

constexpr int kScoreRows = max_rows_bf16(kBlockTiles);

// scores [rows][64] of all tiles of a block; places of missing tiles are left as they are.
inline void score_block(const BlockTiles& tiles, const uint16_t* queries, int width, int num_rows, float* scores) {
  alignas(64) float out[kScoreRows * kKeyBlock];
  for (int row = 0; row < num_rows; row += kScoreRows) {
    int rows = num_rows - row < kScoreRows ? num_rows - row : kScoreRows;
    const uint16_t* from = queries + size_t(row) * width;
    if (tiles.count == kBlockTiles) {
      score_some<kScoreRows, kBlockTiles>(tiles, from, width, rows, scores + row * kKeyBlock);
      continue;
    }
    for (int tile = 0; tile < tiles.count; ++tile) {
      BlockTiles one = tiles;
      one.keys[0] = tiles.keys[tile];
      score_some<kScoreRows, 1>(one, from, width, rows, out);
      for (int r = 0; r < rows; ++r) store(scores + (row + r) * kKeyBlock + tile * kTile, load(out + r * kTile));
    }
  }
}

inline void add_block(const BlockTiles& tiles, AttendScratch& scratch, int num_rows, int width) {
  int column = 0;
  auto columns = [&](auto tag) {
    constexpr int C = decltype(tag)::value, R = max_rows_bf16(C);
    for (; column + C * kTile <= width; column += C * kTile)
      for (int row = 0; row < num_rows; row += R)
        add_some_values<R, C>(tiles, column, scratch.probs + row * kKeyBlock, scratch.alpha + row,
                              scratch.output + size_t(row) * width + column, width,
                              num_rows - row < R ? num_rows - row : R);
  };
  columns(Constant<4>{});
  columns(Constant<1>{});
}

// Turns one row's scores of a block into probabilities and its state into the one after the block.
inline void weigh_row(AttendScratch& scratch, int row, uint64_t visible, int num_tiles) {
  float* scores = scratch.scores + row * kKeyBlock;
  uint16_t* probs = scratch.probs + row * kKeyBlock;
  Floats peaks = all(kNothing), masked[kBlockTiles];
  for (int tile = 0; tile < num_tiles; ++tile) {
    masked[tile] = choose(uint32_t(visible >> (tile * kTile)) & 0xffff, load(scores + tile * kTile), all(kNothing));
    peaks = larger(peaks, masked[tile]);
  }
  const float before = scratch.peak[row], block_peak = maximum(peaks);
  const float peak = before > block_peak ? before : block_peak;
  Floats weights = zeros();
  for (int tile = 0; tile < num_tiles; ++tile) {
    Floats weight = exponential(masked[tile] - all(peak));
    weight = choose(uint32_t(visible >> (tile * kTile)) & 0xffff, weight, zeros());
    weights = weights + weight;
    store_bf16(probs + tile * kTile, weight);
  }
  const float alpha = peak == before ? 1.0f : exponential_of(before - peak);
  scratch.alpha[row] = alpha;
  scratch.weight[row] = scratch.weight[row] * alpha + sum(weights);
  scratch.peak[row] = peak;
}

// Folds a span's state of one row into the total.
inline void merge_row(float* total, float& total_peak, float& total_weight, const float* output, float peak,
                      float weight, int head_dim) {
  const float after = total_peak > peak ? total_peak : peak;
  const float old_factor = exponential_of(total_peak - after), new_factor = exponential_of(peak - after);
  for (int d = 0; d < head_dim; ++d) total[d] = total[d] * old_factor + output[d] * new_factor;
  total_weight = total_weight * old_factor + weight * new_factor;
  total_peak = after;
}

inline void write_row(const float* total, float weight, int head_dim, float* out) {
  const float factor = weight > 0.0f ? 1.0f / weight : 0.0f;  // a row that sees nothing gives zeros
  for (int d = 0; d < head_dim; ++d) out[d] = total[d] * factor;
}

// Rounds the task's queries, heads of a row one after the other: [M][W] bfloat16, scaled.
inline void take_queries(const AttendArgs& args, const AttendTask& task, int group, int width, uint16_t* queries) {
  const int dim = args.shape.head_dim;
  alignas(64) float scaled[kMaxHeadDim] = {};
  for (int row = 0; row < task.num_rows; ++row)
    for (int head = 0; head < group; ++head) {
      const float* from =
          args.queries + size_t(task.first_row + row) * args.query_stride + size_t(task.kv_head * group + head) * dim;
      for (int d = 0; d < dim; ++d) scaled[d] = from[d] * args.scale;
      for (int d = 0; d < width; d += kTile)
        store_bf16(queries + size_t(row * group + head) * width + d, load(scaled + d));
    }
}

template <class ScoreBlock, class AddBlock>
void attend_with(const AttendArgs& args, const AttendTask& task, AttendScratch& scratch, ScoreBlock&& score,
                 AddBlock&& add) {
  const int group = args.num_heads / args.shape.num_kv_heads, dim = args.shape.head_dim;
  const int width = wye::round_up(dim, kTile), num_rows = task.num_rows * group;
  const int last_visible = task.mask != nullptr ? task.context : task.first_visible + task.num_rows - 1;
  const int first_seen =
      task.mask == nullptr && args.window > 0 && task.first_visible > args.window ? task.first_visible - args.window : 0;
  take_queries(args, task, group, width, scratch.queries);
  for (int r = 0; r < num_rows; ++r) {
    scratch.total_peak[r] = kNothing;
    scratch.total_weight[r] = 0.0f;
    for (int d = 0; d < dim; ++d) scratch.total[r * width + d] = 0.0f;
  }
  for (int span = task.first_span; span < task.first_span + task.num_spans; ++span) {
    const int span_end = (span + 1) * kSpanKeys < last_visible ? (span + 1) * kSpanKeys : last_visible;
    if (span_end <= first_seen) continue;
    for (int r = 0; r < num_rows; ++r) {
      scratch.peak[r] = kNothing;
      scratch.weight[r] = 0.0f;
      for (int d = 0; d < width; ++d) scratch.output[r * width + d] = 0.0f;
    }
    for (int key = span * kSpanKeys; key < span_end; key += kKeyBlock) {
      if (key + kKeyBlock <= first_seen) continue;
      BlockTiles tiles = find_tiles(args, task, key, span_end, width, scratch);
      score(tiles, scratch, num_rows, width);
      for (int row = 0; row < task.num_rows; ++row) {
        uint64_t visible = visible_keys(args, task, row, key);
        for (int head = 0; head < group; ++head) weigh_row(scratch, row * group + head, visible, tiles.count);
      }
      add(tiles, scratch, num_rows, width);
    }
    for (int r = 0; r < num_rows; ++r)
      merge_row(scratch.total + r * width, scratch.total_peak[r], scratch.total_weight[r],
                scratch.output + r * width, scratch.peak[r], scratch.weight[r], dim);
  }
  for (int row = 0; row < task.num_rows; ++row)
    for (int head = 0; head < group; ++head) {
      const int r = row * group + head;
      if (task.partial != nullptr) {
        float* state = task.partial + size_t(head) * (dim + 2);
        for (int d = 0; d < dim; ++d) state[d] = scratch.total[r * width + d];
        state[dim] = scratch.total_peak[r];
        state[dim + 1] = scratch.total_weight[r];
      } else {
        write_row(scratch.total + r * width, scratch.total_weight[r], dim,
                  args.out + size_t(task.first_row + row) * args.out_stride + size_t(task.kv_head * group + head) * dim);
      }
    }
}

inline void attend_by_vectors(const AttendArgs& args, const AttendTask& task, char* memory) {
  attend_with(
      args, task, *reinterpret_cast<AttendScratch*>(memory),
      [](const BlockTiles& tiles, AttendScratch& scratch, int num_rows, int width) {
        score_block(tiles, scratch.queries, width, num_rows, scratch.scores);
      },
      [](const BlockTiles& tiles, AttendScratch& scratch, int num_rows, int width) {
        add_block(tiles, scratch, num_rows, width);
      });
}

// Merges the states that tasks of one span each left for a one-row task.
inline void merge_spans(const AttendArgs& args, const AttendTask& task, int num_spans) {
  const int group = args.num_heads / args.shape.num_kv_heads, dim = args.shape.head_dim;
  alignas(64) float total[kMaxHeadDim];
  for (int head = 0; head < group; ++head) {
    float peak = kNothing, weight = 0.0f;
    for (int d = 0; d < dim; ++d) total[d] = 0.0f;
    for (int span = 0; span < num_spans; ++span) {
      const float* state = task.partial + span * wye::partial_floats(group, dim) + size_t(head) * (dim + 2);
      merge_row(total, peak, weight, state, state[dim], state[dim + 1], dim);
    }
    write_row(total, weight, dim,
              args.out + size_t(task.first_row) * args.out_stride + size_t(task.kv_head * group + head) * dim);
  }
}

}  // namespace
