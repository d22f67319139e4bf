// A form whose products and attention run on vectors; the file that includes this has chosen the vectors.

#pragma once

#include "attention_body.h"
#include "form.h"

namespace {

inline void nothing() {}

inline wye::Form vector_form(const char* name, int few_tiles, int many_tiles) {
  return wye::Form{name,    few_tiles, many_tiles, sizeof(AttendScratch), sizeof(Input),     nothing,
                   nothing, norm_rows, product_by_vectors, rope_rows,     attend_by_vectors, merge_spans};
}

}  // namespace
