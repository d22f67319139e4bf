#include "check.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace wye::sanitize {
namespace {

constexpr unsigned kLongestCaseSeconds = 300;  // many times what the slowest takes on a busy machine

void end_hanging_case(int) {
  constexpr char kMessage[] = "a case does not come to its end\n";
  if (write(STDERR_FILENO, kMessage, sizeof kMessage - 1) < 0) _exit(3);
  _exit(2);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void fail(const std::string& message, std::source_location where) {
  std::fprintf(stderr, "%s:%u: %s\n", where.file_name(), unsigned(where.line()), message.c_str());
  std::exit(1);
}

float to_float(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

uint16_t to_bfloat16(double value) {
  const float single = float(value);
  uint32_t bits;
  std::memcpy(&bits, &single, sizeof bits);
  if (std::isnan(single)) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint16_t bfloat16_above(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return uint16_t((bits + 0xffff) >> 16);
}

Cases::Cases(const char* name, double seconds, int least) : name_(name), end_(now() + seconds), least_(least) {
  signal(SIGALRM, end_hanging_case);
}

Cases::~Cases() {
  alarm(0);
  std::printf("  %-10s %d cases\n", name_, count_);
}

int Cases::next() {
  alarm(kLongestCaseSeconds);
  if (count_ >= least_ && now() > end_) return -1;
  return count_++;
}

}  // namespace wye::sanitize
