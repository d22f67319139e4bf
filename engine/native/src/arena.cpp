#include "arena.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace wye {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSlack = 8192 + 64;  // prefetches and whole-vector loads may look past the end

}  // namespace

Arena::Arena(size_t num_bytes) : size_(num_bytes) {
  bool huge = num_bytes >= kHugePage;
  mapped_size_ = num_bytes + kSlack + (huge ? kHugePage : 0);
  mapped_ = mmap(nullptr, mapped_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped_ == MAP_FAILED) {
    mapped_ = nullptr;
    throw std::bad_alloc();
  }
  data_ = mapped_;
  if (huge) {
    data_ = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(mapped_) + kHugePage - 1) & ~(kHugePage - 1));
#ifdef MADV_HUGEPAGE
    madvise(data_, num_bytes, MADV_HUGEPAGE);  // only a wish: small pages work too
#endif
  }
}

Arena::~Arena() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_size_);
}

}  // namespace wye
