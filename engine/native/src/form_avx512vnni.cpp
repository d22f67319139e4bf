// AVX-512 with products of int8 (Ice Lake, Cascade Lake).

#include "simd_avx512.h"
//
#include "form_body.h"

namespace wye {

const Form& form_avx512vnni() {
  static const Form form = vector_form("avx512vnni", 4, 3);
  return form;
}

}  // namespace wye
