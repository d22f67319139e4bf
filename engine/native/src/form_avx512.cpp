// AVX-512 without the instructions for bfloat16 and int8.

#include "simd_avx512.h"
//
#include "form_body.h"

namespace wye {

const Form& form_avx512() {
  static const Form form = vector_form("avx512", 4, 3);
  return form;
}

}  // namespace wye
