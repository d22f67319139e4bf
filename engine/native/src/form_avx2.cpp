// AVX2 and FMA: laptops and servers without AVX-512.

#include "simd_avx2.h"
//
#include "form_body.h"

namespace wye {

const Form& form_avx2() {
  static const Form form = vector_form("avx2", 2, 1);
  return form;
}

}  // namespace wye
