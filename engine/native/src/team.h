// Threads that work through a step together.
//
// A program runs on every thread of the team and is cut into phases; a phase is a number of chunks that threads claim
// one after the other. The phase is over when all its chunks are done, not when all threads have come by: a thread that
// the kernel took off its core while it held no chunk delays nobody, and skips through what the others have finished
// once it is back. Threads that wait spin for a moment, then sleep, so that an idle team uses no CPU and a core that
// is waited on is free for whoever was taken off another.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace wye {

class Team;

// One thread's place in a running program.
class Worker {
 public:
  // Which thread of the team this is, 0 for the one that called `Team::run`.
  int id() const { return id_; }

  // Claims chunks 0 .. num_chunks - 1 together with the other threads, runs `body(chunk)` for each one claimed, and
  // returns when every chunk is done. All threads call it for the same phases in the same order; whatever `body`
  // touches is in no other hands until then. Arguments are read after the phase may have ended, so they must not live
  // on another thread's stack unless only `body` reads them.
  template <class Body>
  void phase(int num_chunks, Body&& body);

 private:
  friend class Team;
  struct Phase {
    alignas(64) std::atomic<int> next{0};
    alignas(64) std::atomic<int> done{0};
  };
  Worker(int id, Phase* phases) : id_(id), phases_(phases) {}
  void wait(Phase& phase, int num_chunks);

  int id_;
  Phase* phases_;
  int place_ = 0;
};

class Team {
 public:
  // Starts num_threads - 1 threads; the caller of `run` is the last one.
  explicit Team(int num_threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // Runs a program of at most `max_phases` phases; returns when its last phase is done. The program is copied: a late
  // thread may still be skipping through it. One caller at a time.
  void run(int max_phases, std::function<void(Worker&)> program);

  // Wakes the threads, or keeps them from going to sleep: there will be work in a moment. Waits for nobody.
  void rouse() {
    run(0, [](Worker&) {});
  }

  // Runs `body(chunk, worker_id)` for every chunk.
  template <class Body>
  void for_each(int num_chunks, Body&& body) {
    auto* shared = &body;
    run(1, [num_chunks, shared](Worker& worker) {
      worker.phase(num_chunks, [&](int chunk) { (*shared)(chunk, worker.id()); });
    });
  }

  // Waits until no thread is inside a program any more, so that what programs point to may be freed.
  void quiesce();

 private:
  // A program and its phases. Two take turns: while one runs, a late thread may still be inside the other.
  struct Job {
    std::atomic<int64_t> ticket{-1};  // which run it belongs to; -1 while it is being rewritten
    std::atomic<int> inside{0};
    std::function<void(Worker&)> program;
    std::unique_ptr<Worker::Phase[]> phases;
    int capacity = 0;
  };
  void serve(int id);
  void empty(Job& job);

  Job jobs_[2];
  alignas(64) std::atomic<int64_t> ticket_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

template <class Body>
void Worker::phase(int num_chunks, Body&& body) {
  Phase& phase = phases_[place_++];
  for (;;) {
    // Relaxed claims are enough: what a chunk reads was published by the end of an earlier phase.
    int chunk = phase.next.fetch_add(1, std::memory_order_relaxed);
    if (chunk >= num_chunks) break;
    body(chunk);
    if (phase.done.fetch_add(1, std::memory_order_acq_rel) + 1 == num_chunks) phase.done.notify_all();
  }
  wait(phase, num_chunks);
}

}  // namespace wye
