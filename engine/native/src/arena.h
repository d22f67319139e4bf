// Memory for weights and activations: aligned, zeroed, in huge pages where the system has them.

#pragma once

#include <cstddef>
#include <utility>

namespace wye {

class Arena {
 public:
  Arena() = default;
  // Throws std::bad_alloc.
  explicit Arena(size_t num_bytes);
  ~Arena();
  Arena(Arena&& other) noexcept { swap(other); }
  Arena& operator=(Arena&& other) noexcept {
    swap(other);
    return *this;
  }

  template <class T = char>
  T* data() const {
    return static_cast<T*>(data_);
  }
  size_t size() const { return size_; }

 private:
  void swap(Arena& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapped_, other.mapped_);
    std::swap(mapped_size_, other.mapped_size_);
  }
  void* data_ = nullptr;
  size_t size_ = 0;
  void* mapped_ = nullptr;
  size_t mapped_size_ = 0;
};

}  // namespace wye
