// Random steps of random models in every form: near the plain reference, and the same to the bit on any number of
// threads, however the steppers that ran them came and went.

#include <cmath>
#include <cstring>
#include <string>

#include "engine.h"
#include "random_step.h"
#include "reference.h"

namespace wye::sanitize {
namespace {

// Root mean square of the differences, as a share of that of the logits or hidden states: a tenth of what two unlike models differ by,
// ten times what rounding does.
constexpr double kTolerance = 0.05, kToleranceInt8 = 0.12;

struct Distance {
  double squares = 0, all = 0;

  void add(const std::vector<float>& found, const std::vector<double>& expected) {
    check(found.size() == expected.size(), "there is a value for each place");
    for (size_t i = 0; i < found.size(); ++i) {
      check(std::isfinite(found[i]), "a value is not finite");
      squares += (found[i] - expected[i]) * (found[i] - expected[i]);
      all += expected[i] * expected[i];
    }
  }
  double share() const { return all > 0 ? std::sqrt(squares / all) : 0; }
};

void check_same(const std::vector<float>& first, const std::vector<float>& second) {
  check(first.empty() || std::memcmp(first.data(), second.data(), first.size() * sizeof(float)) == 0,
        "threads change a result");
}

void run_case(int seed, const Form& form) {
  Random random(seed);
  const TinyModel tiny = random_model(random);
  const bool is_int8 = random.chance(0.5), is_long = random.chance(0.1) && tiny.dims.attended() <= 128;
  const int page_size = random.pick({1, 4, 5, 16, 16, 32}), num_threads = random.between(2, 4);
  Lanes lanes(random, tiny.dims.vocab_size, page_size, is_long ? 1100 : random.pick({20, 70, 130}));
  TinyEngine alone(tiny, form, is_int8, 1, lanes.num_pages(), page_size);
  TinyEngine together(tiny, form, is_int8, num_threads, lanes.num_pages(), page_size);
  PlainModel plain(tiny, is_int8, lanes.num_pages() * page_size, page_size);
  Distance distance, hidden_distance;
  while (!lanes.is_done()) {
    Tables tables = lanes.next_step(random);
    const StepTables one = tables.view(tiny.dims);
    check_tables(alone.model(), alone.stepper().pages(), one, tables.block_tables.size());
    alone.stepper().run(one);
    const std::vector<float> logits = tables.logits, hidden = tables.hidden;
    const PlainModel::Results expected = plain.step(one);
    distance.add(logits, expected.logits);
    hidden_distance.add(hidden, expected.hidden);
    together.stepper().run(tables.view(tiny.dims));
    check_same(logits, tables.logits);
    check_same(hidden, tables.hidden);
    if (random.chance(0.2)) together.renew();
  }
  for (const Distance* one : {&distance, &hidden_distance})
    check(one->share() < (is_int8 ? kToleranceInt8 : kTolerance),
          "case " + std::to_string(seed) + " in form " + form.name + " is off by " + std::to_string(one->share()));
  check(alone.memory() == together.memory(), "threads change K or V");
}

}  // namespace

void check_steps(double seconds) {
  for (const Form* form : forms_to_try()) {
    Cases cases(form->name, seconds, 12);
    for (int seed; (seed = cases.next()) >= 0;) run_case(seed, *form);
  }
}

}  // namespace wye::sanitize
