// Teams of 1 to 8 threads on however few cores: phases follow on one another, nothing is done twice or left out, late
// threads touch nothing that is gone.

#include "team.h"

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"

namespace wye::sanitize {
namespace {

// Chunks of each phase add up what the phase before left, without atomics: a thread that begins a phase too early, or a
// chunk that runs twice, is a race for one sanitizer and a wrong sum for the check.
struct Cascade {
  std::vector<std::vector<int64_t>> sums;
  std::vector<int> seen_workers;

  Cascade(Random& random, int num_phases) {
    for (int phase = 0; phase < num_phases; ++phase)
      sums.emplace_back(random.pick({0, 1, 1, 2, 3, 7, 16, 40}), 0);
  }

  static int64_t start(int phase, int chunk) { return 1 + phase * 1000 + chunk; }

  void fill(int phase, int chunk) {
    int64_t sum = start(phase, chunk);
    if (phase > 0)
      for (int64_t before : sums[phase - 1]) sum += before;
    sums[phase][chunk] += sum;
  }

  void check_all() const {
    for (size_t phase = 0; phase < sums.size(); ++phase) {
      int64_t before = 0;
      if (phase > 0)
        for (int64_t sum : sums[phase - 1]) before += sum;
      for (size_t chunk = 0; chunk < sums[phase].size(); ++chunk)
        check(sums[phase][chunk] == before + start(int(phase), int(chunk)), "a chunk was left out or done twice");
    }
  }
};

// Some threads are slow, so that others have gone through several phases, or the next program, when they come.
void dawdle(uint64_t bits) {
  if (bits % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(bits / 16 % 300));
  if (bits % 16 == 1) std::this_thread::yield();
}

void run_cascade(Team& team, Random& random) {
  const int num_phases = random.between(1, 12);
  auto cascade = std::make_shared<Cascade>(random, num_phases);
  const uint64_t bits = random.bits();
  std::vector<int> sizes;
  for (const auto& phase : cascade->sums) sizes.push_back(int(phase.size()));
  Cascade* raw = cascade.get();  // what only chunks touch may be gone when the last of them is done
  team.run(num_phases + random.between(0, 3), [raw, sizes, bits](Worker& worker) {
    for (size_t phase = 0; phase < sizes.size(); ++phase) {
      dawdle((bits >> (phase % 32)) * 2654435761u + uint64_t(worker.id()) * 40503u);
      worker.phase(sizes[phase], [&](int chunk) {
        dawdle(bits ^ (uint64_t(chunk) * 7919));
        raw->fill(int(phase), chunk);
      });
    }
  });
  cascade->check_all();
}

// Bodies on a stack that is used for something else right after.
void run_for_each(Team& team, Random& random) {
  const int num_chunks = random.between(0, 50);
  std::vector<int> done(num_chunks, 0);
  std::vector<int> by_worker(team.size() * 16, 0);  // far apart: each thread its own
  auto body = [&done, &by_worker](int chunk, int worker) {
    ++done[chunk];
    ++by_worker[worker * 16];
  };
  team.for_each(num_chunks, body);
  int total = 0;
  for (int count : by_worker) total += count;
  check(total == num_chunks, "threads share a number");
  for (int count : done) check(count == 1, "a chunk was left out or done twice");
}

// Programs that look at memory outside of chunks, which is let go only after `quiesce`.
void run_and_quiesce(Team& team, Random& random) {
  auto sizes = std::make_unique<std::vector<int>>();
  for (int phase = random.between(1, 6); phase > 0; --phase) sizes->push_back(random.between(0, 9));
  const std::vector<int>* raw = sizes.get();
  std::vector<int> done(64, 0);
  int* counts = done.data();
  const int repeats = random.between(1, 3);
  for (int repeat = 0; repeat < repeats; ++repeat)
    team.run(int(raw->size()), [raw, counts](Worker& worker) {
      for (size_t phase = 0; phase < raw->size(); ++phase) {
        dawdle(uint64_t(worker.id()) * 16 * (phase + 3));
        worker.phase((*raw)[phase], [&](int chunk) { ++counts[phase * 10 + chunk]; });
      }
    });
  team.quiesce();
  for (size_t phase = 0; phase < raw->size(); ++phase)
    for (int chunk = 0; chunk < (*raw)[phase]; ++chunk)
      check(counts[phase * 10 + chunk] == repeats, "a chunk was left out or done twice");
  sizes.reset();
}

}  // namespace

void check_team(double seconds) {
  Cases cases("team", seconds, 24);
  for (int seed; (seed = cases.next()) >= 0;) {
    Random random(seed);
    Team team(1 + seed % 8);
    check(team.size() == 1 + seed % 8, "a team has as many threads as asked for");
    const int num_programs = random.pick({0, 1, 2, 60, 200});
    for (int program = 0; program < num_programs; ++program) {
      switch (random.between(0, 3)) {
        case 0: run_for_each(team, random); break;
        case 1: run_and_quiesce(team, random); break;
        default: run_cascade(team, random);
      }
      if (random.chance(0.05)) std::this_thread::sleep_for(std::chrono::microseconds(400));  // let all of them sleep
    }
    // The team ends here, with threads late, spinning or asleep.
  }
}

}  // namespace wye::sanitize
