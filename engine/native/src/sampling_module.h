// Choosing tokens as functions of the Python module. See engine/native/sampling.py for what Python sees.

#pragma once

#include <Python.h>

namespace wye {

PyObject* choose_tokens(PyObject* module, PyObject* args);
PyObject* edit_logits(PyObject* module, PyObject* args);
PyObject* report_logprobs(PyObject* module, PyObject* args);
PyObject* outline_rows(PyObject* module, PyObject* args);
PyObject* run_pass(PyObject* module, PyObject* args);
PyObject* draw_in_pass(PyObject* module, PyObject* args);
PyObject* rouse(PyObject* module, PyObject* args);
PyObject* position_keys(PyObject* module, PyObject* args);

}  // namespace wye
