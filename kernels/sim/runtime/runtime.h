// The runtime's own state: lanes as fibres, their simdgroups, the launch's options and counters, and its faults.
// One launch at a time in a process (launch.py holds a lock).
#pragma once
#include "mtl/abi.h"

constexpr uint32_t MAX_LANES = 1024;
constexpr size_t STACK_BYTES = 128 * 1024;

enum State : uint8_t { READY, WAITING, AT_BARRIER, RETURNED };

struct Simdgroup;
struct Lane : mtl_lane {
  Simdgroup *group;
  char *stack;
  mtl_site site;
  State state;
};
struct Simdgroup : mtl_exchange {
  Lane *lanes;
  uint32_t count, index;
  uint32_t arrived, returned;  // masks
  bool mixed;                  // lanes wait at different sites
  mtl_site site;
  State state;
};

struct Options {
  uint32_t reversed;           // lanes, simdgroups and threadgroups run in reverse order
  uint32_t threadgroup_limit;  // bytes; 0: no limit
  double seconds;              // the watchdog's patience
};

struct Result {
  uint64_t simd_operations, simd_steps, matrix_operations, simdgroup_barriers, threadgroup_barriers;
  uint64_t threadgroups, simdgroups, lanes;
  uint64_t threadgroup_memory, threadgroup_read, threadgroup_written;
  uint64_t nanoseconds, fault_pc;
  char message[2048];  // empty: no fault
};

extern Options options;
extern Result result;

// memory.cpp
void memory_reset_threadgroup();
void memory_barrier(uint32_t flags);
void memory_begin_launch(const void *kernel_function);
const char *memory_describe(const void *address, char *text, size_t size);
void memory_access(const void *address, size_t size, bool store, const void *pc);

// schedule.cpp
bool is_stack(const void *address);
// Records the first fault of a launch and ends it. Must be called on a fibre.
[[noreturn]] void fault(const void *pc, const char *format, ...) __attribute__((format(printf, 2, 3)));
void append_message(const char *format, ...) __attribute__((format(printf, 1, 2)));
