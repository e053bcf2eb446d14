// A team of threads that runs one function at a time, in phases of numbered items.
//
// Every worker walks through the same function; at each `each` it takes items until none is left, and goes on when all
// of them are done. What counts is that the items are done, not that every thread came by: a worker that the system has
// put aside (another program, the interpreter's own thread) is not waited for unless it holds an item, and skips what
// was done without it when it returns. So a function writes to memory that is used again only inside `each`: a worker
// may be anywhere between two phases while the others are far ahead.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace mlxserve {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

class Team;

class Worker {
 public:
  Worker(Team& team, int id, uint32_t phase) : id(id), team_(team), phase_(phase) {}

  const int id;
  inline int count() const;

  // One phase: work(i) for i = 0 .. items - 1, each once, on whichever thread is free. All of them are done, and what
  // they wrote can be read, when it returns. Every worker passes the same number of items.
  template <class Work>
  inline void each(int items, const Work& work);

  // One phase: work(begin, end) over pieces of 0 .. n - 1.
  template <class Work>
  void each_range(int n, const Work& work) {
    const int size = n / (count() * kPieces) + 1;
    each((n + size - 1) / size, [&](int i) { work(i * size, (i + 1) * size < n ? (i + 1) * size : n); });
  }

 private:
  static constexpr int kPieces = 4;  // for every worker

  Team& team_;
  uint32_t phase_;
};

class Team {
 public:
  using Function = void (*)(Worker&, const void*);

  explicit Team(int threads) : count_(threads) {
    for (int id = 1; id < threads; ++id) threads_.emplace_back([this, id] { serve(id); });
  }

  ~Team() {
    closing_ = true;
    round_.fetch_add(1);
    round_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return count_; }

  // Calls function(worker, argument) here and on every other thread that comes in time; returns when all its phases are
  // done and nobody is in it any more. One caller at a time.
  void run(Function function, const void* argument) {
    function_ = function;
    argument_ = argument;
    const uint32_t phase = phase_of(ticket_.load());
    first_phase_ = phase;
    open_ = true;
    round_.fetch_add(1);
    round_.notify_all();
    Worker self(*this, 0, phase);
    function(self, argument);
    open_ = false;
    for (int spins = 0; inside_.load() > 0; ++spins) pause(spins);
  }

 private:
  friend class Worker;

  // A ticket is the current phase and its next item.
  static uint32_t phase_of(uint64_t ticket) { return uint32_t(ticket >> 32); }
  static uint32_t item_of(uint64_t ticket) { return uint32_t(ticket); }

  static constexpr int kSpins = 2000;  // tens of microseconds: the time between two operators of a step

  static void pause(int spins) { spins < kSpins ? relax() : std::this_thread::yield(); }

  void serve(int id) {
    uint32_t seen = 0;
    for (;;) {
      for (int spins = 0; round_.load() == seen && spins < kSpins; ++spins) relax();
      round_.wait(seen);
      if (closing_) return;
      seen = round_.load();
      inside_.fetch_add(1);
      if (open_) {
        Worker self(*this, id, first_phase_);
        function_(self, argument_);
      }
      inside_.fetch_sub(1);
    }
  }

  template <class Work>
  void take(uint32_t phase, uint32_t items, const Work& work) {
    uint32_t mine = 0;
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (phase_of(ticket) == phase && item_of(ticket) < items)
      if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
        work(int(item_of(ticket)));
        ++mine;
        ticket = ticket_.load(std::memory_order_acquire);
      }
    if (mine && done_.fetch_add(mine, std::memory_order_acq_rel) + mine == items) {
      done_.store(0, std::memory_order_relaxed);
      ticket_.store(uint64_t{phase + 1} << 32, std::memory_order_release);
      return;
    }
    for (int spins = 0; phase_of(ticket_.load(std::memory_order_acquire)) == phase; ++spins) pause(spins);
  }

  const int count_;
  Function function_ = nullptr;
  const void* argument_ = nullptr;
  uint32_t first_phase_ = 0;
  std::atomic<bool> open_{false}, closing_{false};
  std::atomic<int> inside_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
  std::vector<std::thread> threads_;
};

inline int Worker::count() const { return team_.count_; }

template <class Work>
inline void Worker::each(int items, const Work& work) {
  if (items > 0) team_.take(phase_++, uint32_t(items), work);
}

}  // namespace mlxserve
