// The Python module `engine.native._native`: buffers in, exceptions out, the GIL released while threads work.
//
// Objects are capsules; each holds a reference to what it stands on.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "model.h"
#include "sampling_module.h"
#include "step.h"

namespace wye {
namespace {

constexpr const char* kTeam = "wye.team";
constexpr const char* kModel = "wye.model";
constexpr const char* kStepper = "wye.stepper";

// A buffer seen for as long as the object lives.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() {
    if (view.obj != nullptr) PyBuffer_Release(&view);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  bool take(PyObject* object, bool writable) {
    return PyObject_GetBuffer(object, &view, PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : PyBUF_SIMPLE)) == 0;
  }
  // Its values if they are of T's kind and size, aligned; throws std::invalid_argument.
  template <class T>
  T* values(const char* name, size_t* count) const {
    const std::string format = view.format == nullptr ? "B" : view.format;  // letters of Python's struct module
    constexpr bool kFloats = std::is_floating_point_v<T>;
    const char* letters = kFloats ? "fd" : "?bBhHiIlLqQ";
    if (format.size() != 1 || std::strchr(letters, format[0]) == nullptr || view.itemsize != Py_ssize_t(sizeof(T)))
      throw std::invalid_argument(std::string(name) + " must hold " + (kFloats ? "floats" : "integers") + " of " +
                                  std::to_string(sizeof(T)) + " bytes, got format " + format);
    if (reinterpret_cast<uintptr_t>(view.buf) % alignof(T) != 0)
      throw std::invalid_argument(std::string(name) + " must be aligned to " + std::to_string(alignof(T)) + " bytes");
    *count = size_t(view.len) / sizeof(T);
    return static_cast<T*>(view.buf);
  }

  Py_buffer view{};
};

class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

// Runs what may throw and turns exceptions into Python's.
template <class Body>
PyObject* guarded(Body&& body) {
  try {
    return body();
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

template <class T>
T* pointer_of(PyObject* capsule, const char* name) {
  return static_cast<T*>(PyCapsule_GetPointer(capsule, name));
}

struct HeldModel {
  std::unique_ptr<Model> model;
  Buffer embedding;
  PyObject* team;
  ~HeldModel() {
    model.reset();
    Py_DECREF(team);
  }
};

struct HeldStepper {
  std::unique_ptr<Stepper> stepper;
  std::vector<std::unique_ptr<Buffer>> layers;
  PyObject* model;
  ~HeldStepper() {
    stepper.reset();
    Py_DECREF(model);
  }
};

template <class T, const char* const& name>
void destroy(PyObject* capsule) {
  delete pointer_of<T>(capsule, name);
}

template <class T, const char* const& name>
PyObject* to_capsule(std::unique_ptr<T> held) {
  PyObject* capsule = PyCapsule_New(held.get(), name, destroy<T, name>);
  if (capsule != nullptr) held.release();
  return capsule;
}

const Form* find_form(const char* name) {
  for (const Form* const* form = available_forms(); *form != nullptr; ++form)
    if (std::string(name) == (*form)->name) return *form;
  return nullptr;
}

// forms() -> tuple of names, best first.
PyObject* forms(PyObject*, PyObject*) {
  const Form* const* all = available_forms();
  Py_ssize_t count = 0;
  while (all[count] != nullptr) ++count;
  PyObject* names = PyTuple_New(count);
  for (Py_ssize_t i = 0; names != nullptr && i < count; ++i) {
    PyObject* name = PyUnicode_FromString(all[i]->name);
    if (name == nullptr || PyTuple_SetItem(names, i, name) != 0) {
      Py_DECREF(names);
      return nullptr;
    }
  }
  return names;
}

// new_team(num_threads) -> team
PyObject* new_team(PyObject*, PyObject* args) {
  int num_threads;
  if (!PyArg_ParseTuple(args, "i", &num_threads)) return nullptr;
  return guarded([&]() -> PyObject* {
    if (num_threads < 1 || num_threads > 1024)
      throw std::invalid_argument("num_threads must be 1..1024, got " + std::to_string(num_threads));
    return to_capsule<Team, kTeam>(std::make_unique<Team>(num_threads));
  });
}

// new_model(team, form, is_int8, (layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, window), eps) -> model
PyObject* new_model(PyObject*, PyObject* args) {
  PyObject* team;
  const char* form_name;
  int is_int8;
  Dimensions dims;
  if (!PyArg_ParseTuple(args, "Osp(iiiiiiii)f", &team, &form_name, &is_int8, &dims.num_layers, &dims.hidden_size,
                        &dims.intermediate_size, &dims.num_heads, &dims.num_kv_heads, &dims.head_dim, &dims.vocab_size,
                        &dims.window, &dims.norm_eps))
    return nullptr;
  Team* threads = pointer_of<Team>(team, kTeam);
  if (threads == nullptr) return nullptr;
  return guarded([&]() -> PyObject* {
    check_dimensions(dims);
    const Form* form = find_form(form_name);
    if (form == nullptr) throw std::invalid_argument("form " + std::string(form_name) + " does not run here");
    auto held = std::make_unique<HeldModel>();
    held->team = Py_NewRef(team);
    held->model = std::make_unique<Model>(*threads, *form, dims, is_int8 != 0);
    return to_capsule<HeldModel, kModel>(std::move(held));
  });
}

// check_shape((layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, window)): ValueError if new_model refuses it
PyObject* check_shape(PyObject*, PyObject* args) {
  Dimensions dims{};
  if (!PyArg_ParseTuple(args, "(iiiiiiii)", &dims.num_layers, &dims.hidden_size, &dims.intermediate_size,
                        &dims.num_heads, &dims.num_kv_heads, &dims.head_dim, &dims.vocab_size, &dims.window))
    return nullptr;
  return guarded([&]() -> PyObject* {
    check_dimensions(dims);
    return Py_NewRef(Py_None);
  });
}

// set_matrix(model, kind, layer, weights): kind is a place in MatrixKind, weights [N][K] as 16-bit bfloat16.
PyObject* set_matrix(PyObject*, PyObject* args) {
  PyObject *capsule, *object;
  int kind, layer;
  if (!PyArg_ParseTuple(args, "OiiO", &capsule, &kind, &layer, &object)) return nullptr;
  HeldModel* held = pointer_of<HeldModel>(capsule, kModel);
  Buffer buffer;
  if (held == nullptr || !buffer.take(object, false)) return nullptr;
  return guarded([&]() -> PyObject* {
    size_t count;
    const uint16_t* weights = buffer.values<const uint16_t>("weights", &count);
    {
      GilReleased released;
      held->model->set_matrix(MatrixKind(kind), layer, weights, count);
    }
    return Py_NewRef(Py_None);
  });
}

// set_vector(model, kind, layer, values): kind is a place in VectorKind, values float32.
PyObject* set_vector(PyObject*, PyObject* args) {
  PyObject *capsule, *object;
  int kind, layer;
  if (!PyArg_ParseTuple(args, "OiiO", &capsule, &kind, &layer, &object)) return nullptr;
  HeldModel* held = pointer_of<HeldModel>(capsule, kModel);
  Buffer buffer;
  if (held == nullptr || !buffer.take(object, false)) return nullptr;
  return guarded([&]() -> PyObject* {
    size_t count;
    const float* values = buffer.values<const float>("values", &count);
    held->model->set_vector(VectorKind(kind), layer, values, count);
    return Py_NewRef(Py_None);
  });
}

// set_embedding(model, values): [V][E] as 16-bit bfloat16; the model keeps the buffer.
PyObject* set_embedding(PyObject*, PyObject* args) {
  PyObject *capsule, *object;
  if (!PyArg_ParseTuple(args, "OO", &capsule, &object)) return nullptr;
  HeldModel* held = pointer_of<HeldModel>(capsule, kModel);
  if (held == nullptr) return nullptr;
  if (held->embedding.view.obj != nullptr) {
    PyErr_SetString(PyExc_ValueError, "the embedding is already set");
    return nullptr;
  }
  if (!held->embedding.take(object, false)) return nullptr;
  return guarded([&]() -> PyObject* {
    size_t count;
    const uint16_t* values = held->embedding.values<const uint16_t>("values", &count);
    held->model->set_embedding(values, count);
    return Py_NewRef(Py_None);
  });
}

// new_stepper(model, layers, num_pages, page_size) -> stepper; layers are writable buffers, one [2][P][S][G][D] each.
PyObject* new_stepper(PyObject*, PyObject* args) {
  PyObject *capsule, *layers;
  int num_pages, page_size;
  if (!PyArg_ParseTuple(args, "OO!ii", &capsule, &PyList_Type, &layers, &num_pages, &page_size)) return nullptr;
  HeldModel* held_model = pointer_of<HeldModel>(capsule, kModel);
  if (held_model == nullptr) return nullptr;
  return guarded([&]() -> PyObject* {
    Model& model = *held_model->model;
    if (const char* missing = model.missing()) throw std::invalid_argument(std::string(missing) + " was not set");
    if (num_pages < 1 || page_size < 1) throw std::invalid_argument("num_pages and page_size must be at least 1");
    if (PyList_Size(layers) != model.dims.num_layers)
      throw std::invalid_argument("there must be pages of " + std::to_string(model.dims.num_layers) + " layers");
    auto held = std::make_unique<HeldStepper>();
    held->model = Py_NewRef(capsule);
    Pages pages;
    pages.num_pages = num_pages;
    pages.page_size = page_size;
    const size_t expected = size_t{2} * num_pages * page_size * model.dims.num_kv_heads * model.dims.head_dim;
    for (int i = 0; i < model.dims.num_layers; ++i) {
      held->layers.push_back(std::make_unique<Buffer>());
      if (!held->layers.back()->take(PyList_GetItem(layers, i), true)) return nullptr;
      size_t count;
      pages.layers.push_back(held->layers.back()->values<uint16_t>("pages", &count));
      if (count != expected)
        throw std::invalid_argument("pages of a layer must hold " + std::to_string(expected) + " values, got " +
                                    std::to_string(count));
    }
    held->stepper = std::make_unique<Stepper>(model, std::move(pages));
    return to_capsule<HeldStepper, kStepper>(std::move(held));
  });
}

// Buffers of one step, in the order of `step`'s arguments.
struct StepBuffers {
  Buffer token_ids, positions, slots, query_starts, context_lens, table_starts, block_tables, readout_rows, logits;
  Buffer hidden_rows, hidden;
  std::vector<std::unique_ptr<Buffer>> mask_buffers;
  std::vector<const uint8_t*> masks;
  StepTables tables;
  size_t num_block_tables = 0;
};

void expect_size(const char* name, size_t count, size_t expected) {
  if (count != expected)
    throw std::invalid_argument(std::string(name) + " must hold " + std::to_string(expected) + " values, got " +
                                std::to_string(count));
}

// Reads sizes and pointers; throws std::invalid_argument when tables do not go together.
void read_tables(StepBuffers& buffers, const Dimensions& dims) {
  StepTables& tables = buffers.tables;
  size_t rows, count, lanes, readouts;
  tables.token_ids = buffers.token_ids.values<const int64_t>("token_ids", &rows);
  tables.positions = buffers.positions.values<const int64_t>("positions", &count);
  expect_size("positions", count, rows);
  tables.slots = buffers.slots.values<const int64_t>("slots", &count);
  expect_size("slots", count, rows);
  tables.context_lens = buffers.context_lens.values<const int32_t>("context_lens", &lanes);
  tables.query_starts = buffers.query_starts.values<const int32_t>("query_starts", &count);
  expect_size("query_starts", count, lanes + 1);
  tables.table_starts = buffers.table_starts.values<const int32_t>("table_starts", &count);
  expect_size("table_starts", count, lanes + 1);
  tables.block_tables = buffers.block_tables.values<const int32_t>("block_tables", &buffers.num_block_tables);
  tables.readout_rows = buffers.readout_rows.values<const int64_t>("readout_rows", &readouts);
  tables.logits = buffers.logits.values<float>("logits", &count);
  expect_size("logits", count, readouts * dims.vocab_size);
  size_t num_hidden = 0;
  if (buffers.hidden_rows.view.obj != nullptr) {
    tables.hidden_rows = buffers.hidden_rows.values<const int64_t>("hidden_rows", &num_hidden);
    tables.hidden = buffers.hidden.values<float>("hidden", &count);
    expect_size("hidden", count, num_hidden * dims.hidden_size);
  }
  if (rows > size_t(1) << 24 || readouts > size_t(1) << 24 || num_hidden > size_t(1) << 24) throw std::invalid_argument("too many rows in one step");
  tables.num_rows = int(rows);
  tables.num_lanes = int(lanes);
  tables.num_readouts = int(readouts);
  tables.num_hidden = int(num_hidden);
}

// Reads masks, a list with a buffer [rows][context] or None for each lane; false with a Python error set.
bool read_masks(StepBuffers& buffers, PyObject* masks) {
  if (masks == Py_None) return true;
  StepTables& tables = buffers.tables;
  if (!PyList_Check(masks) || PyList_Size(masks) != tables.num_lanes)
    throw std::invalid_argument("masks must be None or a list with one entry a lane");
  for (int lane = 0; lane < tables.num_lanes; ++lane) {
    PyObject* object = PyList_GetItem(masks, lane);
    buffers.masks.push_back(nullptr);
    if (object == Py_None) continue;
    buffers.mask_buffers.push_back(std::make_unique<Buffer>());
    if (!buffers.mask_buffers.back()->take(object, false)) return false;
    size_t count;
    buffers.masks.back() = buffers.mask_buffers.back()->values<const uint8_t>("a mask", &count);
    const size_t rows = tables.query_starts[lane + 1] - tables.query_starts[lane];
    expect_size("a mask", count, rows * tables.context_lens[lane]);
  }
  tables.masks = buffers.masks.data();
  return true;
}

// step(stepper, token_ids, positions, slots, query_starts, context_lens, table_starts, block_tables, masks,
//      readout_rows, logits[, hidden_rows, hidden])
PyObject* step(PyObject*, PyObject* args) {
  PyObject *capsule, *objects[10], *hidden_rows = nullptr, *hidden = nullptr;
  if (!PyArg_ParseTuple(args, "OOOOOOOOOOO|OO", &capsule, &objects[0], &objects[1], &objects[2], &objects[3], &objects[4],
                        &objects[5], &objects[6], &objects[7], &objects[8], &objects[9], &hidden_rows, &hidden))
    return nullptr;
  if ((hidden_rows == nullptr) != (hidden == nullptr)) {
    PyErr_SetString(PyExc_TypeError, "hidden_rows and hidden go together");
    return nullptr;
  }
  HeldStepper* held = pointer_of<HeldStepper>(capsule, kStepper);
  if (held == nullptr) return nullptr;
  return guarded([&]() -> PyObject* {
    StepBuffers buffers;
    if (!buffers.token_ids.take(objects[0], false) || !buffers.positions.take(objects[1], false) ||
        !buffers.slots.take(objects[2], false) || !buffers.query_starts.take(objects[3], false) ||
        !buffers.context_lens.take(objects[4], false) || !buffers.table_starts.take(objects[5], false) ||
        !buffers.block_tables.take(objects[6], false) || !buffers.readout_rows.take(objects[8], false) ||
        !buffers.logits.take(objects[9], true))
      return nullptr;
    if (hidden != nullptr && (!buffers.hidden_rows.take(hidden_rows, false) || !buffers.hidden.take(hidden, true)))
      return nullptr;
    Stepper& stepper = *held->stepper;
    read_tables(buffers, stepper.model().dims);
    check_tables(stepper.model(), stepper.pages(), buffers.tables, buffers.num_block_tables);
    if (!read_masks(buffers, objects[7])) return nullptr;
    {
      GilReleased released;
      stepper.run(buffers.tables);
    }
    return Py_NewRef(Py_None);
  });
}

PyMethodDef kMethods[] = {
    {"forms", forms, METH_NOARGS, "Names of the forms this processor can run, best first."},
    {"new_team", new_team, METH_VARARGS, "Starts the threads of a team."},
    {"check_shape", check_shape, METH_VARARGS, "Refuses a shape that no model can have."},
    {"new_model", new_model, METH_VARARGS, "Makes a model without weights."},
    {"set_matrix", set_matrix, METH_VARARGS, "Lays a product's weights out in tiles."},
    {"set_vector", set_vector, METH_VARARGS, "Takes a norm, a bias or the rotary frequencies."},
    {"set_embedding", set_embedding, METH_VARARGS, "Takes the embedding, which the model keeps a reference to."},
    {"new_stepper", new_stepper, METH_VARARGS, "Joins a model with pages of K and V."},
    {"step", step, METH_VARARGS, "Runs one step: writes K, V, logits and hidden states."},
    {"choose_tokens", choose_tokens, METH_VARARGS, "Chooses a token for each row of logits."},
    {"edit_logits", edit_logits, METH_VARARGS, "Makes logits finite or -inf and applies penalties."},
    {"report_logprobs", report_logprobs, METH_VARARGS, "Reports log-probabilities of chosen and likeliest tokens."},
    {"outline_rows", outline_rows, METH_VARARGS, "Likeliest tokens and entropies of some rows of logits."},
    {"run_pass", run_pass, METH_VARARGS, "Several operations on rows of numbers, element by element."},
    {"draw_in_pass", draw_in_pass, METH_VARARGS, "The same, and a draw for each row from what one of them makes."},
    {"rouse", rouse, METH_VARARGS, "Keeps a team's threads awake, or wakes them: there will be work in a moment."},
    {"position_keys", position_keys, METH_VARARGS, "Random keys of positions in streams."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "engine.native._native", "A decoder's step in native code.", -1, kMethods,
                       nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace wye

PyMODINIT_FUNC PyInit__native() { return PyModule_Create(&wye::kModule); }
