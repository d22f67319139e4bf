#include "random_step.h"

#include <algorithm>

namespace wye::sanitize {
namespace {

// Without the room that growing leaves behind the last value.
template <class T>
void fit(std::vector<T>& values) {
  std::vector<T>(values).swap(values);
}

}  // namespace

StepTables Tables::view(const Dimensions& dims) {
  std::vector<float>(readout_rows.size() * dims.vocab_size, 0.0f).swap(logits);
  std::vector<float>(hidden_rows.size() * dims.hidden_size, 0.0f).swap(hidden);
  mask_places.clear();
  for (const auto& mask : masks) mask_places.push_back(mask.empty() ? nullptr : mask.data());
  StepTables tables;
  tables.num_rows = int(token_ids.size());
  tables.num_lanes = int(context_lens.size());
  tables.num_readouts = int(readout_rows.size());
  tables.num_hidden = int(hidden_rows.size());
  tables.token_ids = token_ids.data();
  tables.positions = positions.data();
  tables.slots = slots.data();
  tables.query_starts = query_starts.data();
  tables.context_lens = context_lens.data();
  tables.table_starts = table_starts.data();
  tables.block_tables = block_tables.data();
  tables.masks = mask_places.empty() ? nullptr : mask_places.data();
  tables.readout_rows = readout_rows.data();
  tables.logits = logits.data();
  tables.hidden_rows = hidden_rows.data();
  tables.hidden = hidden.data();
  return tables;
}

Lanes::Lanes(Random& random, int vocab_size, int page_size, int longest) : page_size_(page_size), num_pages_(0) {
  lanes_.resize(random.between(1, 4));
  for (Lane& lane : lanes_) {
    lane.token_ids.resize(random.chance(0.3) ? random.between(1, 20) : random.between(1, longest));
    for (int64_t& token : lane.token_ids) token = random.between(0, vocab_size - 1);
    lane.pages.resize((lane.token_ids.size() + page_size - 1) / page_size);
    num_pages_ += int(lane.pages.size());
  }
  num_pages_ += random.between(0, 3);
  std::vector<int32_t> order(num_pages_);
  for (int i = 0; i < num_pages_; ++i) order[i] = i;
  for (int i = num_pages_ - 1; i > 0; --i) std::swap(order[i], order[random.between(0, i)]);
  for (Lane& lane : lanes_)
    for (int32_t& page : lane.pages) {
      page = order.back();
      order.pop_back();
    }
}

bool Lanes::is_done() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return lane.num_computed == int(lane.token_ids.size()); });
}

void Lanes::add_rows(Tables& tables, Lane& lane, int num_rows, Random& random, bool has_mask) const {
  const int context = lane.num_computed + num_rows;
  for (int place = lane.num_computed; place < context; ++place) {
    tables.token_ids.push_back(lane.token_ids[place]);
    tables.positions.push_back(place * 3 % 4001);
    tables.slots.push_back(int64_t(lane.pages[place / page_size_]) * page_size_ + place % page_size_);
  }
  lane.num_computed = context;
  tables.query_starts.push_back(int32_t(tables.token_ids.size()));
  tables.context_lens.push_back(context);
  tables.block_tables.insert(tables.block_tables.end(), lane.pages.begin(), lane.pages.end());
  tables.table_starts.push_back(int32_t(tables.block_tables.size()));
  std::vector<uint8_t> mask(has_mask ? size_t(num_rows) * context : 0);
  for (uint8_t& sees : mask) sees = random.chance(0.4) ? uint8_t(random.between(1, 255)) : 0;
  tables.masks.push_back(std::move(mask));
}

Tables Lanes::next_step(Random& random) {
  Tables tables;
  tables.query_starts.push_back(0);
  tables.table_starts.push_back(0);
  while (tables.token_ids.empty())
    for (Lane& lane : lanes_) {
      const int left = int(lane.token_ids.size()) - lane.num_computed;
      if (left == 0 || random.chance(0.3)) continue;
      const int rows = random.chance(0.4) ? 1 : random.chance(0.2) ? left : random.between(1, std::min(left, 70));
      add_rows(tables, lane, rows, random, random.chance(1.0 / 6));
    }
  if (std::all_of(tables.masks.begin(), tables.masks.end(), [](const auto& mask) { return mask.empty(); }))
    tables.masks.clear();
  const int num_rows = int(tables.token_ids.size());
  for (int i = random.between(0, 6); i > 0; --i) tables.readout_rows.push_back(random.between(0, num_rows - 1));
  if (random.chance(0.3))
    for (int row = 0; row < num_rows; ++row) tables.readout_rows.push_back(row);
  if (random.chance(0.5))
    for (int i = random.between(1, 2 * num_rows); i > 0; --i)
      tables.hidden_rows.push_back(random.between(0, num_rows - 1));
  for (auto* values : {&tables.token_ids, &tables.positions, &tables.slots, &tables.readout_rows, &tables.hidden_rows})
    fit(*values);
  for (auto* values : {&tables.query_starts, &tables.context_lens, &tables.table_starts, &tables.block_tables})
    fit(*values);
  return tables;
}

}  // namespace wye::sanitize
