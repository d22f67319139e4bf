#include "team.h"

#include <chrono>

namespace wye {
namespace {

// How long a thread spins before it sleeps: longer than phases of one step lie apart, shorter than anyone would notice
// an idle server by. Waking a sleeper costs tens of microseconds.
constexpr auto kSpinWithinStep = std::chrono::microseconds(5);
constexpr auto kSpinBetweenSteps = std::chrono::microseconds(50);
constexpr int kPausesPerLook = 64;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Spins until `ready()` or the time is up.
template <class Ready>
bool spin(std::chrono::microseconds limit, Ready&& ready) {
  auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (ready()) return true;
      pause();
    }
    if (std::chrono::steady_clock::now() > end) return ready();
  }
}

}  // namespace

void Worker::wait(Phase& phase, int num_chunks) {
  auto over = [&] { return phase.done.load(std::memory_order_acquire) >= num_chunks; };
  if (over() || spin(kSpinWithinStep, over)) return;
  for (;;) {
    int seen = phase.done.load(std::memory_order_acquire);
    if (seen >= num_chunks) return;
    phase.done.wait(seen, std::memory_order_acquire);
  }
}

Team::Team(int num_threads) {
  for (int id = 1; id < num_threads; ++id) threads_.emplace_back([this, id] { serve(id); });
}

Team::~Team() {
  stopping_ = true;
  ticket_.fetch_add(1);
  ticket_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Team::run(int max_phases, std::function<void(Worker&)> program) {
  int64_t ticket = ticket_.load(std::memory_order_relaxed) + 1;
  Job& job = jobs_[ticket % 2];
  empty(job);
  job.program = std::move(program);
  if (job.capacity < max_phases) {
    job.phases = std::make_unique<Worker::Phase[]>(max_phases);
    job.capacity = max_phases;
  } else {
    for (int i = 0; i < max_phases; ++i) {
      job.phases[i].next.store(0, std::memory_order_relaxed);
      job.phases[i].done.store(0, std::memory_order_relaxed);
    }
  }
  job.ticket.store(ticket);
  ticket_.store(ticket);
  ticket_.notify_all();
  Worker worker(0, job.phases.get());
  job.program(worker);
}

void Team::quiesce() {
  for (Job& job : jobs_) empty(job);
}

// Closes a job and waits until nobody is inside. Its ticket goes first and a thread counts itself in before it reads
// the ticket, so one of the two sees the other.
void Team::empty(Job& job) {
  job.ticket.store(-1);
  while (job.inside.load() != 0) {
    spin(kSpinWithinStep, [&] { return job.inside.load() == 0; });
    int inside = job.inside.load();
    if (inside != 0) job.inside.wait(inside);
  }
}

void Team::serve(int id) {
  int64_t seen = 0;
  for (;;) {
    auto called = [&] { return ticket_.load(std::memory_order_acquire) != seen; };
    if (!spin(kSpinBetweenSteps, called)) ticket_.wait(seen);
    int64_t ticket = ticket_.load();
    if (stopping_) return;
    if (ticket == seen) continue;
    seen = ticket;
    Job& job = jobs_[ticket % 2];
    job.inside.fetch_add(1);
    if (job.ticket.load() == ticket) {
      Worker worker(id, job.phases.get());
      job.program(worker);
    }
    if (job.inside.fetch_sub(1) == 1) job.inside.notify_all();
  }
}

}  // namespace wye
