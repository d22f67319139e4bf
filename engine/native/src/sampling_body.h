// The passes of a SamplingForm, written once over sixteen tokens; each form includes this after its own operations:
//
// Floats, Ints: sixteen numbers. load, load_some (the rest is -inf or 0), all, all_ints, counting (0..15), larger (the
// second where one is NaN), fma, round_even, bits of comparisons, operators, and `append` to a list.

namespace {

using wye::Best;
using wye::Moments;
using wye::NoiseKey;
using wye::TokenList;

constexpr int64_t kWide = 16;

// Calls body(place, values) for a row, sixteen at a time.
template <class Body>
inline void each(const float* row, int64_t size, Body&& body) {
  int64_t place = 0;
  for (; place + kWide <= size; place += kWide) body(place, load(row + place));
  if (place < size) body(place, load_some(row + place, size - place));
}

inline float maximum_of(const float* row, int64_t size) {
  Floats most[4];
  for (auto& one : most) one = all(-INFINITY);
  int64_t place = 0;
  for (; place + 4 * kWide <= size; place += 4 * kWide) {
    for (int i = 0; i < 4; ++i) most[i] = larger(load(row + place + i * kWide), most[i]);
  }
  each(row + place, size - place, [&](int64_t, Floats values) { most[0] = larger(values, most[0]); });
  return maximum(larger(larger(most[0], most[1]), larger(most[2], most[3])));
}

Best greatest(const float* row, int64_t size) {
  constexpr int64_t kBlock = 2048;  // stays in the first cache until the place of its greatest value is looked for
  Best best{-INFINITY, -INFINITY, -1};
  int64_t block = 0;
  for (int64_t start = 0; start < size; start += kBlock) {
    float most = maximum_of(row + start, std::min(kBlock, size - start));
    if (most > best.value) {
      best.value = most;
      block = start;
    }
  }
  if (best.value == -INFINITY) return best;
  best.score = best.value;
  for (int64_t place = block;; place += kWide) {
    int64_t left = size - place;
    uint32_t found = equal(left < kWide ? load_some(row + place, left) : load(row + place), all(best.value));
    if (found) {
      best.id = place + std::countr_zero(found);
      return best;
    }
  }
}

float peaks(const float* row, int64_t size, float* out) {
  float most = -INFINITY;
  for (int64_t start = 0; start < size; start += wye::kPeakBlock) {
    float peak = maximum_of(row + start, std::min(wye::kPeakBlock, size - start));
    *out++ = peak;
    most = std::max(most, peak);
  }
  return most;
}

int64_t count_from(const float* row, int64_t size, float least) {
  int64_t count = 0;
  each(row, size, [&](int64_t, Floats values) { count += std::popcount(at_least(values, all(least))); });
  return count;
}

int64_t count_above(const float* row, int64_t size, float value) {
  int64_t count = 0;
  each(row, size, [&](int64_t, Floats values) { count += std::popcount(above(values, all(value))); });
  return count;
}

// exp(x) for x <= 0 to a few units in the last place, never below exp(-87).
inline Floats exponential(Floats x) {
  x = larger(x, all(-87.0f));
  Floats n = round_even(x * all(1.44269504f));
  Floats rest = fma(n, all(-0.693359375f), x);  // log(2) in two parts, the first with few bits
  rest = fma(n, all(2.12194440e-4f), rest);
  Floats sum = all(1.0f / 5040);
  for (float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    sum = fma(sum, rest, all(factor));
  }
  return times_power_of_two(sum, n);
}

double sum_exp(const float* row, int64_t size, float greatest, float scale) {
  Doubles sums = no_doubles();
  each(row, size, [&](int64_t, Floats values) {
    // Of a NaN or -inf exp(-87) is left: nothing, beside the 1 of the greatest.
    sums = add(sums, exponential((values - all(greatest)) * all(scale)));
  });
  return total(sums);
}

Moments moments(const float* row, int64_t size, float greatest) {
  Doubles sums = no_doubles(), weighted = no_doubles();
  each(row, size, [&](int64_t, Floats values) {
    // Bounded before it is a factor too: nothing times -inf is no number.
    Floats below = larger(values - all(greatest), all(-87.0f));
    Floats weights = exponential(below);
    sums = add(sums, weights);
    weighted = add(weighted, weights * below);
  });
  return {total(sums), total(weighted)};
}

void list_from(const float* row, int64_t size, const float* peaks, float least, TokenList& list) {
  list.size = 0;
  for (int64_t start = 0; start < size; start += wye::kPeakBlock) {
    if (!(*peaks++ >= least)) continue;
    each(row + start, std::min(wye::kPeakBlock, size - start), [&](int64_t place, Floats values) {
      uint32_t wanted = at_least(values, all(least));
      if (wanted) append(list, values, all_ints(int32_t(start + place)) + counting(), wanted);
    });
  }
}

void keep_before(TokenList& list, float value, int64_t id) {
  int64_t size = list.size;
  list.size = 0;  // what is kept is written over what was read already
  each(list.values, size, [&](int64_t place, Floats values) {
    Ints ids = size - place < kWide ? load_some(list.ids + place, size - place) : load(list.ids + place);
    uint32_t before = above(values, all(value));
    uint32_t ties = equal(values, all(value));
    if (ties) before |= ties & less(ids, all_ints(int32_t(id)));
    if (before) append(list, values, ids, before);
  });
}

// The bits of `uniform_bits` in engine/sampling/random.py as float32: -m of each token.
inline Floats noise_of_hashes(Ints hashes, NoiseKey key) {
  Ints first = all_ints(0x7feb352d), second = all_ints(int32_t(0x846ca68b));
  Ints x = (hashes ^ all_ints(int32_t(key.low))) * first;
  x = (x ^ shifted<15>(x) ^ all_ints(int32_t(key.high))) * second;
  return to_floats(x | all_ints(INT32_MIN));
}

inline Floats noise(Ints ids, NoiseKey key) {
  Ints x = (ids ^ shifted<16>(ids)) * all_ints(0x7feb352d);
  x = (x ^ shifted<15>(x)) * all_ints(int32_t(0x846ca68b));
  return noise_of_hashes(x ^ shifted<16>(x), key);
}

// -log(-log(1 - u)) <= -log(u), and the bits of a float32 read as an integer are a lower bound of its log2 (Mitchell
// 1962): so every score has an upper bound made of one conversion and two multiply-adds.
inline Floats bound_of(Floats values, Floats noise, float scale) {
  constexpr double kNatsPerStep = 0.69314718055994530942 / (1 << 23);
  constexpr double kBiasNats = (256 - 127 - 31) * 0.69314718055994530942;
  Floats rarity = fma(to_floats(as_ints(noise)), all(float(-kNatsPerStep)), all(float(-kBiasNats)));
  return fma(values, all(scale), rarity);
}

// What the numbers beside a row are that is drawn from, if there are some.
enum class Beside { kNothing, kIds, kHashes };

// Sixteen tokens that a draw looks at.
struct Looked {
  Floats values, noises;
  Ints tokens;
  uint32_t able;  // bits of those that may score better than the best so far
};

// Called for few tokens: in the loop it would only be in the way.
[[gnu::noinline]] void score(const Looked& looked, float temperature, Best& best) {
  float logits_of[kWide], noise_of[kWide];
  int32_t id_of[kWide];
  store(logits_of, looked.values);
  store(noise_of, looked.noises);
  store(id_of, looked.tokens);
  for (uint32_t able = looked.able; able; able &= able - 1) {
    int i = std::countr_zero(able);
    double score = wye::exact_score(logits_of[i], noise_of[i], temperature);
    if (score > best.score || (score == best.score && id_of[i] < best.id)) best = {score, logits_of[i], id_of[i]};
  }
}

template <Beside kBeside>
void draw_from(const float* row, const int32_t* beside, int64_t first, int64_t size, NoiseKey key, float temperature,
               Best& best) {
  constexpr int64_t kTogether = 2;
  float scale = 1.0f / temperature;
  float least = wye::least_bound(best.score);
  auto look = [&](int64_t place, Floats values, Ints given) __attribute__((always_inline)) {
    Ints tokens = kBeside == Beside::kIds ? given : all_ints(int32_t(first + place)) + counting();
    Floats noises = kBeside == Beside::kHashes ? noise_of_hashes(given, key) : noise(tokens, key);
    return Looked{values, noises, tokens, at_least(bound_of(values, noises, scale), all(least))};
  };
  auto given_at = [&](int64_t place) __attribute__((always_inline)) {
    return kBeside == Beside::kNothing ? Ints{} : load(beside + place);
  };
  int64_t place = 0;
  for (; place + kTogether * kWide <= size; place += kTogether * kWide) {
    Looked one = look(place, load(row + place), given_at(place));
    Looked two = look(place + kWide, load(row + place + kWide), given_at(place + kWide));
    if ((one.able | two.able) == 0) [[likely]] continue;
    if (one.able) score(one, temperature, best);
    if (two.able) score(two, temperature, best);
    least = wye::least_bound(best.score);
  }
  for (; place < size; place += kWide) {
    int64_t left = std::min(kWide, size - place);
    Ints given = kBeside == Beside::kNothing ? Ints{} : load_some(beside + place, left);
    Looked one = look(place, load_some(row + place, left), given);
    if (one.able == 0) continue;
    score(one, temperature, best);
    least = wye::least_bound(best.score);
  }
}

void draw(const float* row, const int32_t* ids, int64_t first, int64_t size, NoiseKey key, float temperature,
          Best& best) {
  if (ids != nullptr) {
    draw_from<Beside::kIds>(row, ids, first, size, key, temperature, best);
  } else {
    draw_from<Beside::kNothing>(row, nullptr, first, size, key, temperature, best);
  }
}

void draw_hashed(const float* row, const int32_t* hashes, int64_t first, int64_t size, NoiseKey key, Best& best) {
  draw_from<Beside::kHashes>(row, hashes, first, size, key, 1.0f, best);
}

void mask(float* row, int64_t size, const uint32_t* bits) {
  int64_t place = 0;
  auto allowed = [&](int64_t at) { return (bits[at / 32] >> (at % 32)) & 0xffff; };
  for (; place + kWide <= size; place += kWide) {
    store(row + place, choose(allowed(place), larger(load(row + place), all(wye::kBanned)), all(-INFINITY)));
  }
  if (place == size) return;
  float rest[kWide];
  store(rest, choose(allowed(place), larger(load_some(row + place, size - place), all(wye::kBanned)), all(-INFINITY)));
  std::copy_n(rest, size - place, row + place);
}

bool is_sane(const float* row, int64_t size) {
  uint32_t sane = 0xffff;
  each(row, size, [&](int64_t, Floats values) { sane &= above(all(INFINITY), values); });
  return sane == 0xffff;
}

constexpr wye::SamplingForm form_named(const char* name) {
  return {name,      greatest,    peaks, count_from,  count_above, sum_exp, moments,
          list_from, keep_before, draw,  draw_hashed, mask,        is_sane, pass};
}

}  // namespace
