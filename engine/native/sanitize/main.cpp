// Checks the native step without Python, to be built with a sanitizer: `driver [seconds [check...]]`.
//
// Seconds are for each check, and each form where it goes through all of them; every check has a least number of cases.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "check.h"

namespace {

struct Check {
  const char* name;
  void (*run)(double seconds);
};

constexpr Check kChecks[] = {
    {"team", wye::sanitize::check_team},   {"packing", wye::sanitize::check_packing},
    {"tables", wye::sanitize::check_tables}, {"steps", wye::sanitize::check_steps},
    {"sampling", wye::sanitize::check_sampling},
};

}  // namespace

int main(int num_arguments, char** arguments) {
  const double seconds = num_arguments > 1 ? std::atof(arguments[1]) : 5;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int num_run = 0;
  for (const Check& check : kChecks) {
    bool wanted = num_arguments <= 2;
    for (int i = 2; i < num_arguments; ++i) wanted |= std::strcmp(arguments[i], check.name) == 0;
    if (!wanted) continue;
    std::printf("%s\n", check.name);
    check.run(seconds);
    ++num_run;
  }
  if (num_run == 0) wye::sanitize::fail("there is no such check");
  std::printf("all is well\n");
}
