#include "step.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace wye {
namespace {

constexpr int kPrivateRows = 4;   // up to so many rows every thread makes a product's inputs for itself
constexpr int kRowsPerChunk = 4;  // rows of one chunk in phases that work row by row
constexpr int kSpareRows = 32;    // kernels may read whole tiles of rows
constexpr size_t kPanelBytes = 384 * 1024;  // inputs that are read again for every tile should stay near the core
constexpr int kPhasesPerLayer = 10;

int chunks_of(int count, int size) { return (count + size - 1) / size; }

// How a product is cut into parts for the team.
struct Split {
  int tiles, rows;  // of one part
  int tile_parts, row_parts;

  int parts() const { return tile_parts * row_parts; }
  ProductPart part(int index, int num_tiles, int num_rows) const {
    const int row = index / tile_parts * rows, tile = index % tile_parts * tiles;
    return {row, std::min(rows, num_rows - row), tile, std::min(tiles, num_tiles - tile)};
  }
};

Split split_product(const Form& form, const Matrix& matrix, const Inputs& inputs, Finish finish, int num_rows,
                    int num_threads) {
  Split split;
  int panel = int(kPanelBytes / inputs.row_bytes()) / 24 * 24;  // 24: a whole number of every form's row groups
  split.rows = std::max(panel, 24);
  split.row_parts = chunks_of(num_rows, split.rows);
  if (finish == Finish::kGate) {
    split.tiles = 2 * kBlock / kTile;  // gates and ups of one block of the next product's inputs
  } else {
    const int liked = num_rows <= kPrivateRows ? form.few_tiles : form.many_tiles;
    int best = 0, least = 0;
    for (int tiles = liked; tiles >= 1; --tiles) {
      int rounds = chunks_of(chunks_of(matrix.num_tiles, tiles) * split.row_parts, num_threads);
      if (best == 0 || rounds * tiles < least) best = tiles, least = rounds * tiles;
    }
    split.tiles = best;
  }
  split.tile_parts = chunks_of(matrix.num_tiles, split.tiles);
  return split;
}

Inputs place_inputs(const Form& form, Arena& memory, int rows, int width, bool is_int8) {
  Inputs inputs;
  inputs.stride = round_up(width, kBlock);
  inputs.value_bytes = is_int8 ? 1 : form.input_bytes;
  inputs.is_int8 = is_int8;
  const size_t all = size_t(rows + kSpareRows), blocks = inputs.stride / kBlock;
  const size_t values = all * inputs.row_bytes();
  memory = Arena(values + (is_int8 ? all * blocks * 2 * sizeof(float) : 0));
  inputs.values = memory.data<uint8_t>();
  if (is_int8) {
    inputs.scales = reinterpret_cast<float*>(inputs.values + values);
    inputs.offsets = reinterpret_cast<int32_t*>(inputs.scales + all * blocks);
  }
  return inputs;
}

}  // namespace

// Rows that a layer works on once it has stored K and V, and their attention.
struct Stepper::Rows {
  int num_rows, num_tasks, num_merges;
  const AttendTask *tasks, *merges;
  const int64_t* index;  // [num_rows] which rows of the step they are, ascending; null: all
};

// Everything a program reads outside of its chunks, by value: a late thread may look at it after the step has ended.
struct Stepper::Plan {
  Stepper* stepper;
  const Model* model;
  const Form* form;
  StepTables tables;
  int num_threads, num_rows;
  Rows all, last;  // of every layer but the last, and of that one
  float *hidden, *projected, *attended, *cos, *sin;
  Inputs gated;
  const Inputs* narrow;
  char* scratch;
  size_t scratch_bytes;

  void run(Worker& worker) const;
  void embed(int chunk) const;
  void give_hidden(int chunk) const;
  void layer(Worker& worker, int index) const;
  void attend(Worker& worker, const AttendArgs& args, const Rows& rows) const;
  void close_ranks(Worker& worker, const Rows& rows) const;
  void product(Worker& worker, const PackedMatrix& matrix, Finish finish, float* out, size_t out_stride,
               const NormArgs& source, int num_rows) const;
  void parts(Worker& worker, const PackedMatrix& matrix, const ProductArgs& args, const Split& split, int num_rows) const;
};

Stepper::Stepper(Model& model, Pages pages) : model_(model), pages_(std::move(pages)) {
  const size_t bytes = (model.form.scratch_bytes + 63) / 64 * 64;
  scratch_ = Arena(bytes * model.team.size());
}

Stepper::~Stepper() { model_.team.quiesce(); }

void Stepper::grow(int num_rows) {
  if (num_rows <= capacity_) return;
  model_.team.quiesce();
  const Dimensions& dims = model_.dims;
  const int rows = std::max({num_rows, 2 * capacity_, 16});
  hidden_ = Arena(size_t(rows) * dims.hidden_size * sizeof(float));
  projected_ = Arena(size_t(rows) * dims.projected() * sizeof(float));
  attended_ = Arena(size_t(rows) * dims.attended() * sizeof(float));
  angles_ = Arena(size_t(rows) * dims.head_dim * sizeof(float));
  input_memory_.resize(model_.team.size() + 1);
  narrow_.resize(model_.team.size());
  const int width = std::max(dims.hidden_size, dims.attended());
  for (int thread = 0; thread < model_.team.size(); ++thread)
    narrow_[thread] = place_inputs(model_.form, input_memory_[thread], thread == 0 ? rows : kPrivateRows, width, model_.is_int8);
  gated_ = place_inputs(model_.form, input_memory_.back(), rows, dims.intermediate_size, model_.is_int8);
  capacity_ = rows;
}

// Cuts attention into tasks. A single row with a long context is cut into spans when there is too little else to share.
void Stepper::make_tasks(const StepTables& tables) {
  const Dimensions& dims = model_.dims;
  const int group = dims.num_heads / dims.num_kv_heads, most_rows = std::max(1, kMaxTaskRows / group);
  const bool is_few = tables.num_lanes * dims.num_kv_heads < 4 * model_.team.size();
  auto rows_of = [&](int lane) { return tables.query_starts[lane + 1] - tables.query_starts[lane]; };
  auto spans_of = [&](int lane) { return chunks_of(tables.context_lens[lane], kSpanKeys); };
  auto is_apart = [&](int lane) { return is_few && rows_of(lane) == 1 && spans_of(lane) > 1; };

  size_t num_partials = 0;
  for (int lane = 0; lane < tables.num_lanes; ++lane)
    if (is_apart(lane)) num_partials += size_t(spans_of(lane)) * dims.num_kv_heads;
  float* partial = make_partials(num_partials * partial_floats(group, dims.head_dim));

  tasks_.clear();
  merges_.clear();
  for (int lane = 0; lane < tables.num_lanes; ++lane) {
    const int first = tables.query_starts[lane], context = tables.context_lens[lane];
    const uint8_t* mask = tables.masks != nullptr ? tables.masks[lane] : nullptr;
    for (int done = 0; done < rows_of(lane); done += most_rows) {
      AttendTask task;
      task.first_row = first + done;
      task.num_rows = std::min(most_rows, rows_of(lane) - done);
      task.pages = tables.block_tables + tables.table_starts[lane];
      task.first_visible = context - rows_of(lane) + done + 1;
      task.context = context;
      task.mask = mask != nullptr ? mask + size_t(done) * context : nullptr;
      task.first_span = 0;
      task.num_spans = spans_of(lane);
      task.partial = nullptr;
      for (task.kv_head = 0; task.kv_head < dims.num_kv_heads; ++task.kv_head) {
        if (is_apart(lane)) {
          partial = cut_task(task, partial);
        } else {
          tasks_.push_back(task);
        }
      }
    }
  }
  // The longest first, so that none is left over at the end.
  std::reverse(tasks_.begin(), tasks_.end());
}

// Makes one task of each span, and a merge; returns the place behind their states.
float* Stepper::cut_task(AttendTask task, float* partial) {
  task.partial = partial;
  merges_.push_back(task);
  const int num_spans = task.num_spans;
  task.num_spans = 1;
  for (task.first_span = 0; task.first_span < num_spans; ++task.first_span) {
    task.partial = partial;
    tasks_.push_back(task);
    partial += partial_floats(model_.dims.num_heads / model_.dims.num_kv_heads, model_.dims.head_dim);
  }
  return partial;
}

float* Stepper::make_partials(size_t num_floats) {
  if (partials_.size() < num_floats * sizeof(float)) {
    model_.team.quiesce();
    partials_ = Arena(2 * num_floats * sizeof(float));
  }
  return partials_.data<float>();
}

// What the last layer need not compute: rows of which nobody wants the outcome, once their K and V are stored. Leaves
// tables pointing to where the others will stand.
Stepper::Rows Stepper::rows_of_last(StepTables& tables, const Rows& all) {
  kept_rows_.assign(tables.readout_rows, tables.readout_rows + tables.num_readouts);
  kept_rows_.insert(kept_rows_.end(), tables.hidden_rows, tables.hidden_rows + tables.num_hidden);
  std::sort(kept_rows_.begin(), kept_rows_.end());
  kept_rows_.erase(std::unique(kept_rows_.begin(), kept_rows_.end()), kept_rows_.end());
  if (2 * kept_rows_.size() > size_t(tables.num_rows)) return all;

  auto place_of = [&](int64_t row) { return std::lower_bound(kept_rows_.begin(), kept_rows_.end(), row); };
  auto is_wanted = [&](const AttendTask& task) {
    const auto place = place_of(task.first_row);
    return place != kept_rows_.end() && *place < task.first_row + task.num_rows;
  };
  auto take = [&](const std::vector<AttendTask>& from, std::vector<AttendTask>& to) {
    to.clear();
    std::copy_if(from.begin(), from.end(), std::back_inserter(to), is_wanted);
  };
  take(tasks_, last_tasks_);
  take(merges_, last_merges_);
  auto move = [&](const int64_t*& rows, int count, std::vector<int64_t>& places) {
    places.resize(count);
    for (int i = 0; i < count; ++i) places[i] = place_of(rows[i]) - kept_rows_.begin();
    rows = places.data();
  };
  move(tables.readout_rows, tables.num_readouts, readout_places_);
  move(tables.hidden_rows, tables.num_hidden, hidden_places_);
  return {int(kept_rows_.size()), int(last_tasks_.size()), int(last_merges_.size()),
          last_tasks_.data(),     last_merges_.data(),     kept_rows_.data()};
}

void Stepper::run(const StepTables& tables) {
  if (tables.num_rows == 0) return;
  grow(std::max(tables.num_rows, tables.num_readouts));
  make_tasks(tables);
  Plan plan;
  plan.stepper = this;
  plan.model = &model_;
  plan.form = &model_.form;
  plan.tables = tables;
  plan.num_threads = model_.team.size();
  plan.num_rows = tables.num_rows;
  plan.all = {tables.num_rows, int(tasks_.size()), int(merges_.size()), tasks_.data(), merges_.data(), nullptr};
  plan.last = rows_of_last(plan.tables, plan.all);
  plan.hidden = hidden_.data<float>();
  plan.projected = projected_.data<float>();
  plan.attended = attended_.data<float>();
  plan.cos = angles_.data<float>();
  plan.sin = plan.cos + size_t(capacity_) * (model_.dims.head_dim / 2);
  plan.gated = gated_;
  plan.narrow = narrow_.data();
  plan.scratch = scratch_.data<char>();
  plan.scratch_bytes = (model_.form.scratch_bytes + 63) / 64 * 64;
  model_.team.run(kPhasesPerLayer * model_.dims.num_layers + 6, [plan](Worker& worker) { plan.run(worker); });
}

void Stepper::Plan::run(Worker& worker) const {
  form->enter();
  worker.phase(chunks_of(num_rows, kRowsPerChunk), [&](int chunk) { embed(chunk); });
  for (int index = 0; index < model->dims.num_layers; ++index) layer(worker, index);
  if (tables.num_hidden > 0)
    worker.phase(chunks_of(tables.num_hidden, kRowsPerChunk), [&](int chunk) { give_hidden(chunk); });
  if (tables.num_readouts > 0) {
    const NormArgs norm{hidden, size_t(model->dims.hidden_size), tables.readout_rows, model->dims.hidden_size,
                        model->final_norm.data(), model->dims.norm_eps, nullptr};
    product(worker, model->head, Finish::kStore, tables.logits, model->dims.vocab_size, norm, tables.num_readouts);
  }
  form->leave();
}

// Looks up the rows' embeddings and works out the angles of their positions.
void Stepper::Plan::embed(int chunk) const {
  const int width = model->dims.hidden_size, half = model->dims.head_dim / 2;
  const int end = std::min(num_rows, (chunk + 1) * kRowsPerChunk);
  for (int row = chunk * kRowsPerChunk; row < end; ++row) {
    const uint16_t* from = model->embedding + size_t(tables.token_ids[row]) * width;
    float* to = hidden + size_t(row) * width;
    for (int i = 0; i < width; ++i) {
      const uint32_t bits = uint32_t(from[i]) << 16;
      __builtin_memcpy(to + i, &bits, sizeof bits);
    }
    const float position = float(tables.positions[row]);
    for (int i = 0; i < half; ++i) {
      const float angle = position * model->frequencies[i];
      cos[size_t(row) * half + i] = std::cos(angle);
      sin[size_t(row) * half + i] = std::sin(angle);
    }
  }
}

// Writes out what the final norm makes of the rows asked for; unlike the head's inputs it is not rounded.
void Stepper::Plan::give_hidden(int chunk) const {
  const int width = model->dims.hidden_size;
  const int end = std::min(tables.num_hidden, (chunk + 1) * kRowsPerChunk);
  for (int place = chunk * kRowsPerChunk; place < end; ++place) {
    const float* from = hidden + size_t(tables.hidden_rows[place]) * width;
    float* to = tables.hidden + size_t(place) * width;
    double squares = 0.0;
    for (int i = 0; i < width; ++i) squares += double(from[i]) * from[i];
    const float scale = float(1.0 / std::sqrt(squares / width + model->dims.norm_eps));
    for (int i = 0; i < width; ++i) to[i] = from[i] * scale * model->final_norm[i];
  }
}

void Stepper::Plan::layer(Worker& worker, int index) const {
  const Layer& layer = model->layers[index];
  const Dimensions& dims = model->dims;
  const size_t width = dims.hidden_size;
  const PageShape shape{stepper->pages_.page_size, dims.num_kv_heads, dims.head_dim};
  uint16_t* keys = stepper->pages_.layers[index];
  uint16_t* values = keys + size_t(stepper->pages_.num_pages) * shape.page_values();

  const NormArgs input_norm{hidden, width, nullptr, dims.hidden_size, layer.input_norm.data(), dims.norm_eps, nullptr};
  product(worker, layer.qkv, Finish::kStore, projected, dims.projected(), input_norm, num_rows);

  // Many rows in chunks of a whole K/V tile, so that two threads seldom write to the same lines.
  const int rope_rows = num_rows >= 4 * kTile * num_threads ? kTile : kRowsPerChunk;
  worker.phase(chunks_of(num_rows, rope_rows), [&](int chunk) {
    const int first = chunk * rope_rows;
    const RopeArgs args{projected, size_t(dims.projected()), dims.num_heads, shape, cos, sin,
                        layer.head_norm.empty() ? nullptr : layer.head_norm.data(), dims.norm_eps, tables.slots, keys,
                        values};
    form->rope(args, first, std::min(rope_rows, num_rows - first));
  });

  const Rows& rows = index + 1 == dims.num_layers ? last : all;
  if (rows.num_rows == 0) return;
  const AttendArgs args{projected, size_t(dims.projected()), attended, size_t(dims.attended()), dims.num_heads, shape,
                        1.0f / std::sqrt(float(dims.head_dim)), dims.window, keys, values};
  attend(worker, args, rows);
  if (rows.index != nullptr) close_ranks(worker, rows);

  const NormArgs taken{attended, size_t(dims.attended()), rows.index, dims.attended(), nullptr, 0.0f, nullptr};
  product(worker, layer.output, Finish::kAdd, hidden, width, taken, rows.num_rows);

  const NormArgs post_norm{hidden, width, nullptr, dims.hidden_size, layer.post_norm.data(), dims.norm_eps, nullptr};
  product(worker, layer.gate_up, Finish::kGate, nullptr, 0, post_norm, rows.num_rows);

  const ProductArgs down{&layer.down.view, &gated, Finish::kAdd, hidden, width, nullptr};
  parts(worker, layer.down, down,
        split_product(*form, layer.down.view, gated, Finish::kAdd, rows.num_rows, num_threads), rows.num_rows);
}

void Stepper::Plan::attend(Worker& worker, const AttendArgs& args, const Rows& rows) const {
  const int num_tasks = rows.num_tasks;
  // A thread takes neighbouring tasks, whose keys lie together, when there are enough to go round.
  const int together = num_tasks >= 8 * num_threads * args.shape.num_kv_heads ? args.shape.num_kv_heads : 1;
  worker.phase(chunks_of(num_tasks, together), [&](int chunk) {
    const int end = std::min(num_tasks, (chunk + 1) * together);
    for (int task = chunk * together; task < end; ++task) {
      const int likely = task + 1 < end ? task + 1 : end + (num_threads - 1) * together;
      form->attend(args, rows.tasks[task], likely < num_tasks ? rows.tasks + likely : nullptr,
                   scratch + size_t(worker.id()) * scratch_bytes);
    }
  });
  if (rows.num_merges > 0) {
    worker.phase(rows.num_merges,
                 [&](int merge) { form->merge(args, rows.merges[merge], rows.merges[merge].num_spans); });
  }
}

// Moves the residual stream of the rows that are left to the front.
void Stepper::Plan::close_ranks(Worker& worker, const Rows& rows) const {
  worker.phase(1, [&](int) {
    const size_t width = model->dims.hidden_size;
    for (int place = 0; place < rows.num_rows; ++place)
      if (rows.index[place] != place)
        std::copy_n(hidden + size_t(rows.index[place]) * width, width, hidden + size_t(place) * width);
  });
}

// Makes a product's inputs from rows and multiplies them.
void Stepper::Plan::product(Worker& worker, const PackedMatrix& matrix, Finish finish, float* out, size_t out_stride,
                            const NormArgs& source, int rows) const {
  const bool is_private = rows <= kPrivateRows;
  Inputs inputs = narrow[is_private ? worker.id() : 0];
  inputs.stride = matrix.view.padded_inputs;
  NormArgs norm = source;
  norm.inputs = &inputs;
  const ProductArgs args{&matrix.view, &inputs, finish, out, out_stride, &gated};
  const Split split = split_product(*form, matrix.view, inputs, finish, rows, num_threads);
  if (!is_private) {
    worker.phase(chunks_of(rows, kRowsPerChunk), [&](int chunk) {
      const int first = chunk * kRowsPerChunk;
      form->norm(norm, first, std::min(kRowsPerChunk, rows - first));
    });
    parts(worker, matrix, args, split, rows);
    return;
  }
  bool made = false;
  worker.phase(split.parts(), [&](int index) {
    // Only once a chunk is claimed: until it is done nobody can change the rows again.
    if (!made) form->norm(norm, 0, rows);
    made = true;
    form->product(args, split.part(index, matrix.view.num_tiles, rows));
  });
}

void Stepper::Plan::parts(Worker& worker, const PackedMatrix& matrix, const ProductArgs& args, const Split& split,
                          int rows) const {
  worker.phase(split.parts(),
               [&](int index) { form->product(args, split.part(index, matrix.view.num_tiles, rows)); });
}

}  // namespace wye
