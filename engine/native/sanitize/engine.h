// A team, a model, pages and a stepper, ready to run steps.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "step.h"
#include "tiny_model.h"

namespace wye::sanitize {

class TinyEngine {
 public:
  TinyEngine(const TinyModel& tiny, const Form& form, bool is_int8, int num_threads, int num_pages, int page_size)
      : team_(num_threads), model_(load(tiny, team_, form, is_int8)), page_size_(page_size), num_pages_(num_pages) {
    const size_t values =
        size_t{2} * num_pages * page_size * tiny.dims.num_kv_heads * tiny.dims.head_dim;
    constexpr uint16_t kNan = 0x7fc0;
    for (int i = 0; i < tiny.dims.num_layers; ++i) memory_.emplace_back(values, kNan);
    stepper_ = std::make_unique<Stepper>(*model_, pages());
  }

  Stepper& stepper() { return *stepper_; }
  const Model& model() const { return *model_; }
  Team& team() { return team_; }
  std::vector<std::vector<uint16_t>>& memory() { return memory_; }

  // Another stepper on the same pages, once the old one is gone.
  void renew() {
    stepper_.reset();
    stepper_ = std::make_unique<Stepper>(*model_, pages());
  }

 private:
  Pages pages() {
    Pages found;
    found.num_pages = num_pages_;
    found.page_size = page_size_;
    for (auto& layer : memory_) found.layers.push_back(layer.data());
    return found;
  }

  Team team_;
  std::unique_ptr<Model> model_;
  int page_size_, num_pages_;
  std::vector<std::vector<uint16_t>> memory_;
  std::unique_ptr<Stepper> stepper_;
};

}  // namespace wye::sanitize
