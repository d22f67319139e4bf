// What the checks share: one that fails ends the program and says where; random numbers are seeded.

#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>
#include <source_location>
#include <string>
#include <vector>

namespace wye::sanitize {

// Prints where it was called from and ends the program with code 1.
[[noreturn]] void fail(const std::string& message, std::source_location where = std::source_location::current());

inline void check(bool holds, const std::string& message,
                  std::source_location where = std::source_location::current()) {
  if (!holds) fail(message, where);
}

class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}

  int between(int low, int high) { return low + int(bits_() % uint64_t(high - low + 1)); }
  bool chance(double share) { return uniform() < share; }
  double uniform() { return double(bits_() >> 11) * 0x1p-53; }
  float normal() { return float(normal_(bits_)); }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[between(0, int(choices.size()) - 1)];
  }
  uint64_t bits() { return bits_(); }

 private:
  std::mt19937_64 bits_;
  std::normal_distribution<double> normal_;
};

// bfloat16 is the upper half of a float32.
float to_float(uint16_t bits);
uint16_t to_bfloat16(double value);      // to the nearest, ties to even
uint16_t bfloat16_above(float value);    // the least that is not below a value of at least 0
inline double rounded(double value) { return to_float(to_bfloat16(value)); }

// Each check takes how long it may go on: it runs random cases, the same ones in the same order every time.
void check_team(double seconds);
void check_packing(double seconds);
void check_tables(double seconds);
void check_steps(double seconds);
void check_sampling(double seconds);

// Goes through seeds until the time is over; every check runs at least `least` of them.
class Cases {
 public:
  Cases(const char* name, double seconds, int least);
  ~Cases();
  // The next seed, or -1.
  int next();

 private:
  const char* name_;
  double end_;
  int least_, count_ = 0;
};

}  // namespace wye::sanitize
