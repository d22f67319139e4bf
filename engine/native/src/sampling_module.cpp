#include "sampling_module.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "sampling.h"
#include "team.h"

namespace wye {
namespace {

constexpr int64_t kMostRows = 1 << 20;  // of one call

// A buffer of a Python object, given back at the end.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  Py_buffer* view() { return &view_; }
  int64_t bytes() const { return view_.len; }

  // Its bytes as numbers. Throws std::invalid_argument if it does not hold a multiple of `unit` of them.
  template <class T>
  T* numbers(const char* name, int64_t unit = 1) const {
    bool whole = view_.len % (int64_t(sizeof(T)) * unit) == 0;
    if (!whole) throw std::invalid_argument(std::string(name) + " has a wrong size");
    bool aligned = reinterpret_cast<uintptr_t>(view_.buf) % alignof(T) == 0;
    if (!aligned) throw std::invalid_argument(std::string(name) + " is not aligned");
    return static_cast<T*>(view_.buf);
  }

 private:
  Py_buffer view_{};
};

void check(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

// Null for None. Throws std::invalid_argument.
Team* team_of(PyObject* object) {
  if (object == Py_None) return nullptr;
  check(PyCapsule_IsValid(object, "wye.team"), "team must be None or a team");
  return static_cast<Team*>(PyCapsule_GetPointer(object, "wye.team"));
}

const SamplingForm& form_of(const char* name) {
  const SamplingForm* form = find_sampling_form(name);
  if (form == nullptr) throw std::invalid_argument("no form '" + std::string(name) + "' for choosing tokens here");
  return *form;
}

// Runs without the interpreter's lock; turns C++ exceptions into Python's. `prepare` runs with it, before.
template <class Prepare, class Work>
PyObject* answer(Prepare&& prepare, Work&& work) {
  try {
    prepare();
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return nullptr;
  }
  bool has_memory = true;
  Py_BEGIN_ALLOW_THREADS;
  try {
    work();
  } catch (const std::bad_alloc&) {
    has_memory = false;
  }
  Py_END_ALLOW_THREADS;
  if (!has_memory) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

void check_lane(const Lane& lane, const Batch& batch, const Memory& memory, int64_t num_masks) {
  check(lane.row >= 0 && lane.row < memory.num_rows, "a lane's row is outside last_tokens");
  check(lane.mask >= -1 && lane.mask < num_masks, "a lane's mask is not there");
  check(lane.counts_slot >= -1 && lane.counts_slot < memory.num_counts, "a lane's counts are not there");
  check(lane.history_slot >= -1 && lane.history_slot < memory.num_histories, "a lane's history is not there");
  if (lane.history_slot >= 0) {
    check(lane.history_base >= 0 && lane.num_output >= 0 && lane.history_base < memory.history_width &&
              lane.num_output < memory.history_width - lane.history_base,
          "a lane's history has no room for one more token");
  }
  if (lane.is_greedy) return;
  check(lane.temperature > 0 && std::isfinite(lane.temperature), "temperature must be positive and finite");
  check(lane.top_k >= 1 && lane.top_k <= batch.vocab_size, "top_k must be between 1 and the vocabulary's size");
  check(lane.top_p > 0, "top_p must be positive");
  check(lane.min_p >= 0 && lane.min_p <= 1, "min_p must be between 0 and 1");
}

void check_penalties(const Lane& lane, const Batch& batch, const Memory& memory) {
  if (lane.counts_slot < 0) return;
  check(lane.history_slot >= 0, "a lane with penalties needs a history");
  check(lane.repetition > 0 && std::isfinite(lane.repetition), "repetition must be positive and finite");
  check(std::isfinite(lane.presence) && std::isfinite(lane.frequency), "presence and frequency must be finite");
  const int64_t* ids = memory.history + lane.history_slot * memory.history_width;
  for (int64_t i = 0; i < lane.history_base + lane.num_output; ++i) {
    check(ids[i] >= 0 && ids[i] < batch.vocab_size, "a lane's history holds what is no token id");
  }
}

// What choose_tokens and edit_logits share.
struct Step {
  PyObject* team_object = nullptr;
  const char* form_name = nullptr;
  Py_ssize_t vocab_size = 0, history_width = 0;
  Buffer logits, lanes, masks, last_tokens, counts, history;
  Team* team = nullptr;
  const SamplingForm* form = nullptr;
  Batch batch{};
  Memory memory{};

  void check_all() {
    team = team_of(team_object);
    form = &form_of(form_name);
    check(vocab_size >= 1 && vocab_size <= INT32_MAX - kListPadding, "vocab_size is out of range");
    check(history_width >= 1, "history_width must be positive");
    batch.vocab_size = vocab_size;
    batch.num_words = (vocab_size + 31) / 32;
    batch.logits = logits.numbers<float>("logits", vocab_size);
    batch.lanes = lanes.numbers<const Lane>("lanes");
    batch.num_lanes = lanes.bytes() / int64_t(sizeof(Lane));
    check(batch.num_lanes <= kMostRows, "there are too many lanes");
    check(logits.bytes() == batch.num_lanes * vocab_size * 4, "logits must have a row for each lane");
    batch.masks = masks.numbers<const uint32_t>("masks", batch.num_words);
    memory.history_width = history_width;
    memory.last_tokens = last_tokens.numbers<int64_t>("last_tokens");
    memory.counts = counts.numbers<int32_t>("counts", vocab_size);
    memory.history = history.numbers<int64_t>("history", history_width);
    memory.num_rows = last_tokens.bytes() / 8;
    memory.num_counts = counts.bytes() / (4 * vocab_size);
    memory.num_histories = history.bytes() / (8 * history_width);
    int64_t num_masks = masks.bytes() / (4 * batch.num_words);
    for (int64_t i = 0; i < batch.num_lanes; ++i) check_lane(batch.lanes[i], batch, memory, num_masks);
  }
};

}  // namespace

PyObject* choose_tokens(PyObject*, PyObject* args) {
  Step step;
  Buffer token_buffer;
  if (!PyArg_ParseTuple(args, "Osnnw*y*y*w*w*w*w*:choose_tokens", &step.team_object, &step.form_name, &step.vocab_size,
                        &step.history_width, step.logits.view(), step.lanes.view(), step.masks.view(),
                        step.last_tokens.view(), step.counts.view(), step.history.view(), token_buffer.view())) {
    return nullptr;
  }
  int64_t* tokens = nullptr;
  auto prepare = [&] {
    step.check_all();
    tokens = token_buffer.numbers<int64_t>("token_ids");
    check(token_buffer.bytes() == step.batch.num_lanes * 8, "token_ids must have a place for each lane");
    for (int64_t i = 0; i < step.batch.num_lanes; ++i) {
      check(tokens[i] < step.vocab_size, "a token that is given is no token id");
    }
  };
  return answer(prepare, [&] { choose_tokens(step.team, *step.form, step.batch, step.memory, tokens); });
}

PyObject* edit_logits(PyObject*, PyObject* args) {
  Step step;
  if (!PyArg_ParseTuple(args, "Osnnw*y*y*w*w*w*:edit_logits", &step.team_object, &step.form_name, &step.vocab_size,
                        &step.history_width, step.logits.view(), step.lanes.view(), step.masks.view(),
                        step.last_tokens.view(), step.counts.view(), step.history.view())) {
    return nullptr;
  }
  auto prepare = [&] {
    step.check_all();
    for (int64_t i = 0; i < step.batch.num_lanes; ++i) check_penalties(step.batch.lanes[i], step.batch, step.memory);
  };
  return answer(prepare, [&] { edit_logits(step.team, *step.form, step.batch, step.memory); });
}

PyObject* report_logprobs(PyObject*, PyObject* args) {
  PyObject* team_object;
  const char* form_name;
  Py_ssize_t vocab_size, num_top;
  Buffer logits, targets, chosen, rank, top_ids, top_logprobs;
  if (!PyArg_ParseTuple(args, "Osnnw*y*w*w*w*w*:report_logprobs", &team_object, &form_name, &vocab_size, &num_top,
                        logits.view(), targets.view(), chosen.view(), rank.view(), top_ids.view(),
                        top_logprobs.view())) {
    return nullptr;
  }
  Team* team = nullptr;
  const SamplingForm* form = nullptr;
  Report report{};
  auto prepare = [&] {
    team = team_of(team_object);
    form = &form_of(form_name);
    check(vocab_size >= 1 && vocab_size <= INT32_MAX - kListPadding, "vocab_size is out of range");
    check(num_top >= 0 && num_top <= vocab_size, "num_top must be between 0 and the vocabulary's size");
    int64_t num_rows = targets.bytes() / 8;
    report.logits = logits.numbers<float>("logits", vocab_size);
    report.targets = targets.numbers<const int64_t>("targets");
    report.num_rows = num_rows;
    report.vocab_size = vocab_size;
    report.num_top = num_top;
    report.chosen = chosen.numbers<float>("chosen");
    report.rank = rank.numbers<int64_t>("rank");
    report.top_ids = top_ids.numbers<int64_t>("top_ids");
    report.top_logprobs = top_logprobs.numbers<float>("top_logprobs");
    check(num_rows <= kMostRows, "there are too many rows");
    check(logits.bytes() == num_rows * vocab_size * 4, "logits must have a row for each target");
    check(chosen.bytes() == num_rows * 4, "chosen must have a place for each row");
    check(rank.bytes() == num_rows * 8, "rank must have a place for each row");
    check(top_ids.bytes() == num_rows * num_top * 8 && top_logprobs.bytes() == num_rows * num_top * 4,
          "top_ids and top_logprobs must have num_top places for each row");
    for (int64_t i = 0; i < num_rows; ++i) {
      check(report.targets[i] >= 0 && report.targets[i] < vocab_size, "a target is no token id");
    }
  };
  return answer(prepare, [&] { report_logprobs(team, *form, report); });
}

PyObject* outline_rows(PyObject*, PyObject* args) {
  PyObject* team_object;
  const char* form_name;
  Py_ssize_t vocab_size, num_top;
  Buffer logits, places, log_totals, entropies, top_ids, top_logprobs;
  if (!PyArg_ParseTuple(args, "Osnnw*y*w*w*w*w*:outline_rows", &team_object, &form_name, &vocab_size, &num_top,
                        logits.view(), places.view(), log_totals.view(), entropies.view(), top_ids.view(),
                        top_logprobs.view())) {
    return nullptr;
  }
  Team* team = nullptr;
  const SamplingForm* form = nullptr;
  Outline outline{};
  auto prepare = [&] {
    team = team_of(team_object);
    form = &form_of(form_name);
    check(vocab_size >= 1 && vocab_size <= INT32_MAX - kListPadding, "vocab_size is out of range");
    check(num_top >= 0 && num_top <= vocab_size, "num_top must be between 0 and the vocabulary's size");
    int64_t num_places = places.bytes() / 8;
    outline.logits = logits.numbers<float>("logits", vocab_size);
    outline.places = places.numbers<const int64_t>("places");
    outline.num_places = num_places;
    outline.vocab_size = vocab_size;
    outline.num_top = num_top;
    outline.log_totals = log_totals.numbers<double>("log_totals");
    outline.entropies = entropies.numbers<double>("entropies");
    outline.top_ids = top_ids.numbers<int64_t>("top_ids");
    outline.top_logprobs = top_logprobs.numbers<float>("top_logprobs");
    int64_t num_rows = logits.bytes() / (4 * vocab_size);
    check(num_places <= kMostRows, "there are too many places");
    check(log_totals.bytes() == num_places * 8 && entropies.bytes() == num_places * 8,
          "log_totals and entropies must have a number for each place");
    check(top_ids.bytes() == num_places * num_top * 8 && top_logprobs.bytes() == num_places * num_top * 4,
          "top_ids and top_logprobs must have num_top numbers for each place");
    for (int64_t i = 0; i < num_places; ++i) {
      // Rising, so that no row is worked on twice at once.
      check(outline.places[i] >= 0 && outline.places[i] < num_rows, "a place is outside logits");
      check(i == 0 || outline.places[i - 1] < outline.places[i], "places must rise");
    }
  };
  return answer(prepare, [&] { outline_rows(team, *form, outline); });
}

namespace {

// What a pass is made of, as Python gives it.
struct PassArguments {
  PyObject* team_object = nullptr;
  const char* form_name = nullptr;
  Py_ssize_t size = 0, num_rows = 0;
  Buffer steps, scalars, names, numbers, hashes;
  PyObject *vectors = nullptr, *outputs = nullptr;
  std::vector<std::unique_ptr<Buffer>> held;
  Team* team = nullptr;
  const SamplingForm* form = nullptr;
  std::vector<NoiseKey> keys;  // [B][K]
  Pass pass;

  static void* data_of(const Buffer& buffer, bool is_bool, const char* name) {
    if (is_bool) return buffer.numbers<uint8_t>(name);
    return buffer.numbers<float>(name);
  }

  // A buffer held to the end. False leaves Python's own error.
  bool take(PyObject* array, bool is_writable, Buffer** found) {
    held.push_back(std::make_unique<Buffer>());
    *found = held.back().get();
    return PyObject_GetBuffer(array, (*found)->view(), is_writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) == 0;
  }

  // Vectors (array, is_bool) and outputs (step, array, is_bool). As `take`; also throws std::invalid_argument.
  bool take_all() {
    check(PyTuple_Check(vectors) && PyTuple_Check(outputs), "vectors and outputs must be tuples");
    for (Py_ssize_t i = 0; i < PyTuple_Size(vectors); ++i) {
      PyObject* array;
      int is_bool;
      Buffer* buffer;
      if (!PyArg_ParseTuple(PyTuple_GetItem(vectors, i), "Op", &array, &is_bool)) return false;
      if (!take(array, false, &buffer)) return false;
      int64_t row_bytes = size * (is_bool ? 1 : 4);
      bool is_shared = buffer->bytes() == row_bytes;
      check(is_shared || buffer->bytes() == num_rows * row_bytes, "a vector must have one row, or one for each");
      pass.vectors.push_back({data_of(*buffer, is_bool, "a vector"), is_shared, is_bool != 0});
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(outputs); ++i) {
      PyObject* array;
      int is_bool, made_by;
      Buffer* buffer;
      if (!PyArg_ParseTuple(PyTuple_GetItem(outputs, i), "iOp", &made_by, &array, &is_bool)) return false;
      if (!take(array, true, &buffer)) return false;
      check(made_by >= 0 && made_by < int64_t(pass.steps.size()), "an output must be what a step makes");
      check(buffer->bytes() == num_rows * size * (is_bool ? 1 : 4), "an output must have as many rows as there are");
      pass.outputs.push_back({made_by, data_of(*buffer, is_bool, "an output"), is_bool != 0});
    }
    return true;
  }

  void check_sizes() {
    team = team_of(team_object);
    form = &form_of(form_name);
    check(size >= 1 && size <= INT32_MAX, "size is out of range");
    check(num_rows >= 1 && num_rows <= kMostRows, "the number of rows is out of range");
    const PassStep* first = steps.numbers<const PassStep>("steps");
    pass.steps.assign(first, first + steps.bytes() / int64_t(sizeof(PassStep)));
    pass.size = size;
    pass.num_rows = num_rows;
    pass.scalars = scalars.numbers<const float>("scalars", num_rows);
    pass.num_scalars = scalars.bytes() / (4 * num_rows);
    make_keys();
    pass.hashes = hashes.numbers<const int32_t>("hashes");
    check(hashes.bytes() == size * 4, "hashes must have one for each number of a row");
  }

  void make_keys() {
    const int64_t* name = names.numbers<const int64_t>("keys", num_rows);
    const int64_t* number = numbers.numbers<const int64_t>("numbers");
    pass.num_keys = names.bytes() / (8 * num_rows);
    check(numbers.bytes() == 8 * pass.num_keys, "numbers must have one for each key");
    keys.reserve(num_rows * pass.num_keys);
    for (int64_t i = 0; i < num_rows * pass.num_keys; ++i) {
      int64_t at = number[i % pass.num_keys];
      uint64_t whole = uint64_t(name[i]);
      keys.push_back(at < 0 ? NoiseKey{uint32_t(whole), uint32_t(whole >> 32)} : position_key(name[i], at));
    }
    pass.keys = keys.data();
  }

  void check_steps() const {
    int64_t known = pass.num_inputs();
    check(known + int64_t(pass.steps.size()) <= kMostRegisters, "there are too many steps and inputs");
    for (const PassStep& step : pass.steps) {
      check(step.op >= PassOp::kCopy && step.op < PassOp::kEnd, "there is no such operation");
      if (step.op == PassOp::kUniform) {
        check(step.a >= 0 && step.a < pass.num_keys, "a key is not there");
      } else {
        for (int32_t operand : {step.a, step.b, step.c}) {
          check(operand >= 0 && operand < known, "an operand is not there");
        }
      }
      ++known;
    }
  }

  void check_draw(const PassDraw& draw, const Buffer& tokens) {
    check(draw.made_by >= 0 && draw.made_by < int64_t(pass.steps.size()), "a draw must be from what a step makes");
    check(draw.key >= 0 && draw.key < pass.num_keys, "the key of a draw is not there");
    check(tokens.bytes() == num_rows * 8, "token_ids must have a place for each row");
    pass.draw = &draw;
  }

  // False leaves Python's own error.
  bool prepare() {
    try {
      check_sizes();
      return take_all();
    } catch (const std::invalid_argument& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const std::bad_alloc&) {
      PyErr_NoMemory();
    }
    return false;
  }
};

}  // namespace

PyObject* run_pass(PyObject*, PyObject* args) {
  PassArguments given;
  if (!PyArg_ParseTuple(args, "Osnny*Oy*y*y*y*O:run_pass", &given.team_object, &given.form_name, &given.size,
                        &given.num_rows, given.steps.view(), &given.vectors, given.scalars.view(), given.names.view(),
                        given.numbers.view(), given.hashes.view(), &given.outputs)) {
    return nullptr;
  }
  if (!given.prepare()) return nullptr;
  return answer([&] { given.check_steps(); }, [&] { run_pass(given.team, *given.form, given.pass); });
}

PyObject* draw_in_pass(PyObject*, PyObject* args) {
  PassArguments given;
  PassDraw draw{};
  Buffer tokens;
  if (!PyArg_ParseTuple(args, "Osnny*Oy*y*y*y*Oiiw*:draw_in_pass", &given.team_object, &given.form_name, &given.size,
                        &given.num_rows, given.steps.view(), &given.vectors, given.scalars.view(), given.names.view(),
                        given.numbers.view(), given.hashes.view(), &given.outputs, &draw.made_by, &draw.key,
                        tokens.view())) {
    return nullptr;
  }
  if (!given.prepare()) return nullptr;
  auto prepare = [&] {
    given.check_steps();
    draw.tokens = tokens.numbers<int64_t>("token_ids");
    given.check_draw(draw, tokens);
  };
  PyObject* done = answer(prepare, [&] { run_pass(given.team, *given.form, given.pass); });
  if (done == nullptr) return nullptr;
  Py_DECREF(done);
  return PyBool_FromLong(std::all_of(draw.tokens, draw.tokens + given.num_rows, [](int64_t at) { return at >= 0; }));
}

PyObject* rouse(PyObject*, PyObject* args) {
  PyObject* team_object;
  if (!PyArg_ParseTuple(args, "O:rouse", &team_object)) return nullptr;
  try {
    if (Team* team = team_of(team_object)) team->rouse();
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* position_keys(PyObject*, PyObject* args) {
  Buffer streams, positions, keys;
  if (!PyArg_ParseTuple(args, "y*y*w*:position_keys", streams.view(), positions.view(), keys.view())) return nullptr;
  try {
    const int64_t* stream_of = streams.numbers<const int64_t>("stream_keys");
    const int64_t* position_of = positions.numbers<const int64_t>("positions");
    NoiseKey* out = keys.numbers<NoiseKey>("keys");
    int64_t size = streams.bytes() / 8;
    check(positions.bytes() == size * 8 && keys.bytes() == size * 8, "all must have as many numbers");
    for (int64_t i = 0; i < size; ++i) out[i] = position_key(stream_of[i], position_of[i]);
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return nullptr;
  }
  Py_RETURN_NONE;
}

}  // namespace wye
