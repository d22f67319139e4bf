// Tables with wrong values are refused, and whatever is not refused runs without a step outside of any memory.

#include <algorithm>
#include <climits>
#include <stdexcept>
#include <string>

#include "engine.h"
#include "random_step.h"

namespace wye::sanitize {
namespace {

template <class T>
T odd_value(Random& random, int64_t limit) {
  return T(random.pick<int64_t>({-1, 0, 1, limit - 1, limit, limit + 1, INT_MAX, INT_MIN, INT64_MAX, INT64_MIN,
                                 int64_t{1} << 32, (int64_t{1} << 32) + 1, random.between(0, int(limit))}));
}

// Changes one value, or the length of a table as far as a caller could get it wrong.
template <class T>
void spoil(std::vector<T>& table, Random& random, int64_t limit) {
  if (table.empty()) return;
  table[random.between(0, int(table.size()) - 1)] = odd_value<T>(random, limit);
}

void spoil_some(Tables& tables, Random& random, const Model& model, const Pages& pages) {
  for (int i = random.between(1, 3); i > 0; --i) {
    const int64_t rows = int64_t(tables.token_ids.size());
    switch (random.between(0, 8)) {
      case 0: spoil(tables.token_ids, random, model.dims.vocab_size); break;
      case 1: spoil(tables.positions, random, int64_t{1} << 31); break;
      case 2: spoil(tables.slots, random, int64_t(pages.num_pages) * pages.page_size); break;
      case 3: spoil(tables.query_starts, random, rows); break;
      case 4: spoil(tables.context_lens, random, int64_t(tables.block_tables.size()) * pages.page_size); break;
      case 5: spoil(tables.table_starts, random, int64_t(tables.block_tables.size())); break;
      case 6: spoil(tables.block_tables, random, pages.num_pages); break;
      case 7: spoil(tables.readout_rows, random, rows); break;
      default: spoil(tables.hidden_rows, random, rows);
    }
  }
  // Masks are measured against the tables before they get here, so they would no longer fit.
  tables.masks.clear();
}

bool is_refused(TinyEngine& engine, const StepTables& tables, size_t num_block_tables) {
  try {
    check_tables(engine.model(), engine.stepper().pages(), tables, num_block_tables);
  } catch (const std::invalid_argument& error) {
    check(std::string(error.what()).find("] is ") != std::string::npos, "an error names table, place and value");
    return true;
  }
  return false;
}

void run_case(int seed, const Form& form, int& num_refused, int& num_run) {
  Random random(seed);
  const TinyModel tiny = random_model(random);
  const int page_size = random.pick({1, 4, 5, 16});
  Lanes lanes(random, tiny.dims.vocab_size, page_size, 40);
  // One thread: tables with two tokens in one slot are allowed, but then it is a race which of them stays.
  TinyEngine engine(tiny, form, random.chance(0.5), 1, lanes.num_pages(), page_size);
  while (!lanes.is_done()) {
    const Tables right = lanes.next_step(random);
    for (int i = 0; i < 20; ++i) {
      Tables wrong = right;
      spoil_some(wrong, random, engine.model(), engine.stepper().pages());
      const auto before = engine.memory();
      const StepTables tables = wrong.view(tiny.dims);
      if (is_refused(engine, tables, wrong.block_tables.size())) {
        ++num_refused;
        check(engine.memory() == before, "a refused step writes nothing");
      } else if (i < 3) {
        ++num_run;
        engine.stepper().run(tables);
      }
    }
  }
}

void check_models_refused() {
  const Dimensions right{1, 16, 16, 4, 2, 16, 8, 0, 1e-5f};
  check_dimensions(right);
  for (int Dimensions::*size : {&Dimensions::num_layers, &Dimensions::hidden_size, &Dimensions::intermediate_size,
                                &Dimensions::num_heads, &Dimensions::num_kv_heads, &Dimensions::head_dim,
                                &Dimensions::vocab_size, &Dimensions::window})
    for (int value : {-1, INT_MIN, size == &Dimensions::window ? -2 : 0, size == &Dimensions::head_dim ? 17 : -3}) {
      Dimensions wrong = right;
      wrong.*size = value;
      bool refused = false;
      try {
        check_dimensions(wrong);
      } catch (const std::invalid_argument&) {
        refused = true;
      }
      check(refused, "a model of a wrong shape is refused");
    }
}

}  // namespace

void check_tables(double seconds) {
  check_models_refused();
  const Form& form = *forms_to_try().front();
  int num_refused = 0, num_run = 0;
  {
    Cases cases("tables", seconds, 10);
    for (int seed; (seed = cases.next()) >= 0;) run_case(seed, form, num_refused, num_run);
  }
  check(num_refused > 100 && num_run > 10, "some wrong tables are refused, some harmless ones are not");
}

}  // namespace wye::sanitize
