// Paged attention in one pass (arXiv 2205.14135), for the form that includes this after rows_body.h.
//
// Keys are looked at in blocks of 64 and spans of 512 that begin at fixed positions; a row keeps a maximum, a sum and
// an output per span, and spans are merged in order. A block of which a row sees nothing leaves the row's state as it
// was, to the bit, so a row's result does not depend on the rows, chunks or threads it was computed with.
//
// Scores are in units of log 2, so that weights are powers of two.
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

constexpr float kLog2OfE = 1.44269504f;
constexpr float kNothing = -1e30f;  // maximum of a row that saw nothing yet; finite, so that no difference is NaN
constexpr int kBlockTiles = kKeyBlock / kTile;

// One thread's workspace.
struct alignas(64) AttendScratch {
  Input queries[kMaxTaskRows * kMaxHeadDim];
  Input probs[kMaxTaskRows * kKeyBlock];
  float scores[kMaxTaskRows * kKeyBlock];
  float output[kMaxTaskRows * kMaxHeadDim];
  float total[kMaxTaskRows * kMaxHeadDim];
  float alpha[kMaxTaskRows];
  float peak[kMaxTaskRows], weight[kMaxTaskRows];              // of the span
  float total_peak[kMaxTaskRows], total_weight[kMaxTaskRows];  // of all spans so far
  uint16_t keys[kBlockTiles * kTile * kMaxHeadDim];            // tiles made from pages that are not tiled
  uint16_t values[kBlockTiles * kTile * kMaxHeadDim];
};

inline float power_of_two(float x) {
  alignas(64) float out[kTile];
  store(out, power_of_two(all(x)));
  return out[0];
}

// Tiles of one block of keys, wherever they lie; no processor looks ahead to the next ones by itself.
struct BlockTiles {
  const uint16_t* keys[kBlockTiles];
  const uint16_t* values[kBlockTiles];
  int count;
  int last_keys;  // valid keys of the last tile
};

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

// Finds the tiles of keys first_key .. end - 1, at most a block of them, where pages are tiled.
inline BlockTiles find_tiles(const AttendArgs& args, const AttendTask& task, int first_key, int end) {
  const PageShape& shape = args.shape;
  BlockTiles tiles;
  tiles.count = 0;
  tiles.last_keys = kTile;
  for (int key = first_key; key < end && tiles.count < kBlockTiles; key += kTile, ++tiles.count) {
    size_t page = size_t(task.pages[key / shape.page_size]) * shape.page_values();
    size_t place = page + (size_t(task.kv_head) * shape.page_size + key % shape.page_size) * shape.head_dim;
    tiles.keys[tiles.count] = args.keys + place;
    tiles.values[tiles.count] = args.values + place;
    tiles.last_keys = end - key < kTile ? end - key : kTile;
  }
  return tiles;
}

// The same where they are not: the tiles are made in the workspace.
inline BlockTiles gather_tiles(const AttendArgs& args, const AttendTask& task, int first_key, int end, int width,
                               AttendScratch& scratch) {
  BlockTiles tiles;
  tiles.count = 0;
  tiles.last_keys = kTile;  // what is past the end is zero already
  for (int key = first_key; key < end && tiles.count < kBlockTiles; key += kTile, ++tiles.count) {
    uint16_t* keys = scratch.keys + size_t(tiles.count) * kTile * width;
    uint16_t* values = scratch.values + size_t(tiles.count) * kTile * width;
    gather_tile(args, task, key, end - key < kTile ? end - key : kTile, width, keys, values);
    tiles.keys[tiles.count] = keys;
    tiles.values[tiles.count] = values;
  }
  return tiles;
}

// Takes a block's values past the end out: they may be anything, NaN included, which no weight of 0 would hide.
inline void clear_rest(BlockTiles& tiles, int width, uint16_t* own) {
  if (tiles.last_keys == kTile) return;
  const uint16_t* from = tiles.values[tiles.count - 1];
  const int whole = tiles.last_keys / 2;  // pairs of keys
  for (int column = 0; column < width; column += kTile) {
    const uint16_t* pairs = from + column * kTile;
    uint16_t* out = own + column * kTile;
    for (int i = 0; i < kTile * kTile; ++i) out[i] = i < whole * 2 * kTile ? pairs[i] : 0;
    if (tiles.last_keys % 2 != 0)
      for (int i = 0; i < kTile; ++i) out[(whole * kTile + i) * 2] = pairs[(whole * kTile + i) * 2];
  }
  tiles.values[tiles.count - 1] = own;
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
template <int R, int C, bool kFetch>
void add_values(const BlockTiles& tiles, const BlockTiles& ahead, int column, const Input* probs, const float* alpha,
                float* output, size_t width) {
  Floats sums[R][C];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums[r][c] = load(output + r * width + c * kTile) * all(alpha[r]);
  for (int tile = 0; tile < tiles.count; ++tile) {
    const uint16_t *values[C], *next = ahead.values[tile] + column * kTile;
    for (int c = 0; c < C; ++c) values[c] = tiles.values[tile] + (column + c * kTile) * kTile;
    for (int pair = 0; pair < kTile / 2; ++pair) {
      const size_t place = pair * 2 * kTile;
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c)
        if (kFetch) prefetch(next + c * kTile * kTile + place);
      add_pair(sums, values, place, probs + tile * kTile + 2 * pair, kKeyBlock);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(output + r * width + c * kTile, sums[r][c]);
}

template <int R, int C, bool kFetch>
void add_some_values(const BlockTiles& tiles, const BlockTiles& ahead, int column, const Input* probs,
                     const float* alpha, float* output, size_t width, int rows) {
  if constexpr (R > 1) {
    if (rows < R) return add_some_values<R - 1, C, kFetch>(tiles, ahead, column, probs, alpha, output, width, rows);
  }
  add_values<R, C, kFetch>(tiles, ahead, column, probs, alpha, output, width);
}

template <int R, int C, bool kFetch>
void score_some(const BlockTiles& tiles, const BlockTiles& ahead, const Input* queries, int width, int rows,
                float* out) {
  if constexpr (R > 1) {
    if (rows < R) return score_some<R - 1, C, kFetch>(tiles, ahead, queries, width, rows, out);
  }
  multiply_bf16<R, C, kFetch>(tiles.keys, ahead.keys, queries, width, width / 2, out);
}

template <int N>
struct Constant {
  static constexpr int value = N;
};

// scores [rows][64] of a block with C tiles; places of missing tiles are left as they are.
template <int C>
void score_tiles(const BlockTiles& tiles, const BlockTiles& ahead, const Input* queries, int width, int num_rows,
                 float* scores) {
  constexpr int kScoreRows = max_rows_bf16(C);
  alignas(64) float out[kScoreRows * C * kTile];
  for (int row = 0; row < num_rows; row += kScoreRows) {
    const int rows = num_rows - row < kScoreRows ? num_rows - row : kScoreRows;
    float* to = scores + row * kKeyBlock;
    float* place = C == kBlockTiles ? to : out;
    const Input* from = queries + size_t(row) * width;
    if (num_rows <= kFetchRows) {
      score_some<kScoreRows, C, true>(tiles, ahead, from, width, rows, place);
    } else {
      score_some<kScoreRows, C, false>(tiles, ahead, from, width, rows, place);
    }
    if (C == kBlockTiles) continue;
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < C; ++c) store(to + r * kKeyBlock + c * kTile, load(out + (r * C + c) * kTile));
  }
}

inline void score_block(const BlockTiles& tiles, const BlockTiles& ahead, const Input* queries, int width,
                        int num_rows, float* scores) {
  if (attend_tiles(num_rows) == 1) {
    for (int tile = 0; tile < tiles.count; ++tile) {
      BlockTiles one, next;
      one.keys[0] = tiles.keys[tile];
      next.keys[0] = ahead.keys[tile];
      score_tiles<1>(one, next, queries, width, num_rows, scores + tile * kTile);
    }
    return;
  }
  switch (tiles.count) {
    case 1: return score_tiles<1>(tiles, ahead, queries, width, num_rows, scores);
    case 2: return score_tiles<2>(tiles, ahead, queries, width, num_rows, scores);
    case 3: return score_tiles<3>(tiles, ahead, queries, width, num_rows, scores);
    default: return score_tiles<4>(tiles, ahead, queries, width, num_rows, scores);
  }
}

inline void add_block(const BlockTiles& tiles, const BlockTiles& ahead, AttendScratch& scratch, int num_rows,
                      int width) {
  int column = 0;
  auto columns = [&](auto tag) {
    constexpr int C = decltype(tag)::value, R = max_rows_bf16(C);
    for (; column + C * kTile <= width; column += C * kTile)
      for (int row = 0; row < num_rows; row += R) {
        const int rows = num_rows - row < R ? num_rows - row : R;
        const Input* probs = scratch.probs + row * kKeyBlock;
        float* output = scratch.output + size_t(row) * width + column;
        if (num_rows <= kFetchRows) {
          add_some_values<R, C, true>(tiles, ahead, column, probs, scratch.alpha + row, output, width, rows);
        } else {
          add_some_values<R, C, false>(tiles, ahead, column, probs, scratch.alpha + row, output, width, rows);
        }
      }
  };
  if (attend_tiles(num_rows) > 1) columns(Constant<4>{});
  columns(Constant<1>{});
}

// Turns one row's scores of a block into probabilities and its state into the one after the block.
inline void weigh_row(AttendScratch& scratch, int row, uint64_t visible, int num_tiles) {
  float* scores = scratch.scores + row * kKeyBlock;
  Input* probs = scratch.probs + row * kKeyBlock;
  Floats peaks = all(kNothing), masked[kBlockTiles];
  for (int tile = 0; tile < num_tiles; ++tile) {
    masked[tile] = choose(uint32_t(visible >> (tile * kTile)) & 0xffff, load(scores + tile * kTile), all(kNothing));
    peaks = larger(peaks, masked[tile]);
  }
  const float before = scratch.peak[row], block_peak = maximum(peaks);
  const float peak = before > block_peak ? before : block_peak;
  Floats weights = zeros();
  for (int tile = 0; tile < num_tiles; ++tile) {
    Floats weight = power_of_two(masked[tile] - all(peak));
    weight = choose(uint32_t(visible >> (tile * kTile)) & 0xffff, weight, zeros());
    weights = weights + weight;
    store_inputs(probs + tile * kTile, weight);
  }
  const float alpha = peak == before ? 1.0f : power_of_two(before - peak);
  scratch.alpha[row] = alpha;
  scratch.weight[row] = scratch.weight[row] * alpha + sum(weights);
  scratch.peak[row] = peak;
}

// Folds a span's state of one row into the total.
inline void merge_row(float* total, float& total_peak, float& total_weight, const float* output, float peak,
                      float weight, int head_dim) {
  const float after = total_peak > peak ? total_peak : peak;
  const float old_factor = power_of_two(total_peak - after), new_factor = power_of_two(peak - after);
  for (int d = 0; d < head_dim; ++d) total[d] = total[d] * old_factor + output[d] * new_factor;
  total_weight = total_weight * old_factor + weight * new_factor;
  total_peak = after;
}

inline void write_row(const float* total, float weight, int head_dim, float* out) {
  const float factor = weight > 0.0f ? 1.0f / weight : 0.0f;  // a row that sees nothing gives zeros
  for (int d = 0; d < head_dim; ++d) out[d] = total[d] * factor;
}

// Rounds the task's queries to bfloat16, heads of a row one after the other: [M][W], scaled.
inline void take_queries(const AttendArgs& args, const AttendTask& task, int group, int width, Input* queries) {
  const int dim = args.shape.head_dim;
  alignas(64) float scaled[kMaxHeadDim] = {};
  for (int row = 0; row < task.num_rows; ++row)
    for (int head = 0; head < group; ++head) {
      const float* from =
          args.queries + size_t(task.first_row + row) * args.query_stride + size_t(task.kv_head * group + head) * dim;
      for (int d = 0; d < dim; ++d) scaled[d] = from[d] * (args.scale * kLog2OfE);
      for (int d = 0; d < width; d += kTile)
        store_inputs(queries + size_t(row * group + head) * width + d, load(scaled + d));
    }
}

// First and last key that some row of a task sees, the last excluded.
inline int first_seen(const AttendArgs& args, const AttendTask& task) {
  return task.mask == nullptr && args.window > 0 && task.first_visible > args.window ? task.first_visible - args.window
                                                                                     : 0;
}
inline int end_seen(const AttendTask& task) {
  return task.mask != nullptr ? task.context : task.first_visible + task.num_rows - 1;
}

inline int span_end(const AttendTask& task, int span) {
  const int end = (span + 1) * kSpanKeys, last = end_seen(task);
  return end < last ? end : last;
}

// The block that a task begins with.
inline BlockTiles first_tiles(const AttendArgs& args, const AttendTask& task) {
  const int seen = first_seen(args, task) / kKeyBlock * kKeyBlock, start = task.first_span * kSpanKeys;
  return find_tiles(args, task, seen > start ? seen : start, span_end(task, task.first_span));
}

// Asks for those tiles of the next block that the products of a shorter one before it do not ask for.
inline void fetch_rest(const BlockTiles& ahead, int done, int width) {
  const int bytes = kTile * width * int(sizeof(uint16_t));
  for (int tile = done; tile < ahead.count; ++tile)
    for (int at = 0; at < bytes; at += 64) {
      prefetch(reinterpret_cast<const char*>(ahead.keys[tile]) + at);
      prefetch(reinterpret_cast<const char*>(ahead.values[tile]) + at);
    }
}

// Lets every place point to something: what is asked for twice costs nothing.
inline void fill_up(BlockTiles& ahead, const BlockTiles& tiles) {
  for (int tile = ahead.count; tile < tiles.count; ++tile) {
    ahead.keys[tile] = tiles.keys[tile];
    ahead.values[tile] = tiles.values[tile];
  }
}

inline void forget_span(AttendScratch& scratch, int num_rows, int width) {
  for (int r = 0; r < num_rows; ++r) {
    scratch.peak[r] = kNothing;
    scratch.weight[r] = 0.0f;
    for (int d = 0; d < width; d += kTile) store(scratch.output + r * width + d, zeros());
  }
}

// Attends to the keys of one span; `score` and `add` do the products of a block and ask for those of the next one.
template <class ScoreBlock, class AddBlock>
void attend_span(const AttendArgs& args, const AttendTask& task, const AttendTask* next, int span, int group, int width,
                 AttendScratch& scratch, ScoreBlock&& score, AddBlock&& add) {
  const bool is_tiled = args.shape.is_tiled();
  const int num_rows = task.num_rows * group, end = span_end(task, span);
  int key = span * kSpanKeys;
  while (key + kKeyBlock <= first_seen(args, task)) key += kKeyBlock;
  BlockTiles ahead;
  ahead.count = 0;
  if (is_tiled && key < end) ahead = find_tiles(args, task, key, end);
  for (; key < end; key += kKeyBlock) {
    BlockTiles tiles = is_tiled ? ahead : gather_tiles(args, task, key, end, width, scratch);
    const bool is_last = key + kKeyBlock >= end;
    ahead.count = 0;
    if (is_tiled && !is_last) ahead = find_tiles(args, task, key + kKeyBlock, end);
    if (is_tiled && is_last && next != nullptr) ahead = first_tiles(args, *next);
    fill_up(ahead, tiles);
    score(tiles, ahead, scratch, num_rows, width);
    for (int row = 0; row < task.num_rows; ++row) {
      const uint64_t visible = visible_keys(args, task, row, key);
      for (int head = 0; head < group; ++head) weigh_row(scratch, row * group + head, visible, tiles.count);
    }
    clear_rest(tiles, width, scratch.values);
    add(tiles, ahead, scratch, num_rows, width);
    if (num_rows <= kFetchRows) fetch_rest(ahead, tiles.count, width);
  }
}

template <class ScoreBlock, class AddBlock>
void attend_with(const AttendArgs& args, const AttendTask& task, const AttendTask* next, AttendScratch& scratch,
                 ScoreBlock&& score, AddBlock&& add) {
  const int group = args.num_heads / args.shape.num_kv_heads, dim = args.shape.head_dim;
  const int width = wye::round_up(dim, kTile), num_rows = task.num_rows * group;
  const bool is_single = task.num_spans == 1;
  take_queries(args, task, group, width, scratch.queries);
  for (int r = 0; r < num_rows && !is_single; ++r) {
    scratch.total_peak[r] = kNothing;
    scratch.total_weight[r] = 0.0f;
    for (int d = 0; d < dim; ++d) scratch.total[r * width + d] = 0.0f;
  }
  const int end_span = task.first_span + task.num_spans;
  for (int span = task.first_span; span < end_span; ++span) {
    forget_span(scratch, num_rows, width);
    attend_span(args, task, span + 1 == end_span ? next : nullptr, span, group, width, scratch, score, add);
    for (int r = 0; r < num_rows && !is_single; ++r)
      merge_row(scratch.total + r * width, scratch.total_peak[r], scratch.total_weight[r],
                scratch.output + r * width, scratch.peak[r], scratch.weight[r], dim);
  }
  // Merging one span into nothing would change no bit of it.
  const float* totals = is_single ? scratch.output : scratch.total;
  const float* peaks = is_single ? scratch.peak : scratch.total_peak;
  const float* weights = is_single ? scratch.weight : scratch.total_weight;
  for (int row = 0; row < task.num_rows; ++row)
    for (int head = 0; head < group; ++head) {
      const int r = row * group + head;
      if (task.partial != nullptr) {
        float* state = task.partial + size_t(head) * (dim + 2);
        for (int d = 0; d < dim; ++d) state[d] = totals[r * width + d];
        state[dim] = peaks[r];
        state[dim + 1] = weights[r];
      } else {
        write_row(totals + r * width, weights[r], dim,
                  args.out + size_t(task.first_row + row) * args.out_stride + size_t(task.kv_head * group + head) * dim);
      }
    }
}

inline void attend_by_vectors(const AttendArgs& args, const AttendTask& task, const AttendTask* next, char* memory) {
  attend_with(
      args, task, next, *reinterpret_cast<AttendScratch*>(memory),
      [](const BlockTiles& tiles, const BlockTiles& ahead, AttendScratch& scratch, int num_rows, int width) {
        score_block(tiles, ahead, scratch.queries, width, num_rows, scratch.scores);
      },
      add_block);
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
