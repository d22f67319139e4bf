// AVX-512 with products of bfloat16 and int8 (Zen 4 and later, Cooper Lake).

#include "simd_avx512.h"
//
#include "form_body.h"

namespace wye {

const Form& form_avx512bf16() {
  static const Form form = vector_form("avx512bf16", 4, 3);
  return form;
}

}  // namespace wye
