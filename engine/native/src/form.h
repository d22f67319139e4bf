// One way to compute a step's parts: a table of kernels for one instruction set.
//
// All forms compute the same function; within one form a row's result never depends on the rows beside it.

#pragma once

#include "layout.h"

namespace wye {

struct Form {
  const char* name;
  // How many tiles of weights a call of `product` likes to work on together when a step has few rows or many.
  int few_tiles, many_tiles;
  size_t scratch_bytes;  // per thread, for `attend`; aligned to 64
  // Of an input of a product with bfloat16 weights: 2, or 4 where it lies as a float32, rounded to bfloat16, since the
  // instructions multiply nothing else and splitting a pair for every tile of weights would cost as much as they do.
  int input_bytes;

  // Called by every thread before and after it works through a step.
  void (*enter)();
  void (*leave)();

  void (*norm)(const NormArgs&, int first_row, int num_rows);
  void (*product)(const ProductArgs&, const ProductPart&);
  void (*rope)(const RopeArgs&, int first_row, int num_rows);
  // `next` is what this thread will probably attend to afterwards, or null.
  void (*attend)(const AttendArgs&, const AttendTask&, const AttendTask* next, char* scratch);
  // Merges the spans of a one-row task in order and writes its output.
  void (*merge)(const AttendArgs&, const AttendTask&, int num_spans);
};

// Forms this build has and this processor can run, best first; ends with null.
const Form* const* available_forms();

}  // namespace wye
