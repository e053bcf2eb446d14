// Runs a grid: each threadgroup's lanes are fibres that meet at simd operations and barriers.
// Knows nothing of memory beyond the fibres' stacks.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fibre.h"
#include "runtime.h"

Options options;
Result result;
mtl_lane *mtl_current;
mtl_dispatch mtl_grid;

static Lane lanes[MAX_LANES];
static Simdgroup groups[MAX_LANES / MTL_LANES];
static uint32_t group_count;
static char *stacks;
static void *main_stack_pointer;
static void (*entry)(void **);
static void *arguments[64];
static bool faulted;

bool is_stack(const void *address) { return (uintptr_t)address - (uintptr_t)stacks < MAX_LANES * STACK_BYTES; }

// ------------------------------------------------------------------ faults
static void append(const char *format, va_list list) {
  size_t used = strlen(result.message);
  vsnprintf(result.message + used, sizeof result.message - used, format, list);
}
void append_message(const char *format, ...) {
  va_list list;
  va_start(list, format);
  append(format, list);
  va_end(list);
}
[[noreturn]] static void leave() {
  void *unused;
  mtl_switch(&unused, main_stack_pointer);
  __builtin_unreachable();
}
void fault(const void *pc, const char *format, ...) {
  va_list list;
  va_start(list, format);
  append(format, list);
  va_end(list);
  mtl_u3 t = mtl_grid.threadgroup_position;
  append_message(" (threadgroup %u,%u,%u", t.x, t.y, t.z);
  if (mtl_current) append_message(", simdgroup %u, lane %u", mtl_current->simdgroup, mtl_current->lane);
  append_message(")");
  result.fault_pc = (uint64_t)pc;
  faulted = true;
  leave();
}

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}
static bool same(const mtl_site &a, const mtl_site &b) {
  return a.line == b.line && !strcmp(a.name, b.name) && (a.file == b.file || !strcmp(a.file, b.file));
}
static void describe(const Simdgroup &g) {  // its lanes, grouped by where they are
  uint32_t told = 0;
  for (uint32_t i = 0; i < g.count; i++) {
    if ((told >> i) & 1) continue;
    const Lane &a = g.lanes[i];
    uint32_t like = 0;
    for (uint32_t j = i; j < g.count; j++) {
      const Lane &b = g.lanes[j];
      if (b.state == a.state && (a.state == RETURNED || same(a.site, b.site))) like |= 1u << j;
    }
    told |= like;
    append_message("\n  simdgroup %u, lanes %08x: ", g.index, like);
    if (a.state == RETURNED) append_message("returned");
    else append_message("at %s, %s:%u", a.site.name, base_name(a.site.file), a.site.line);
  }
}
static Lane *diverged(const char *what, const Simdgroup *only) {
  append_message("not all lanes reach %s:", what);
  for (uint32_t i = 0; i < group_count; i++) if (!only || only == &groups[i]) describe(groups[i]);
  faulted = true;
  return nullptr;
}

// --------------------------------------------------------------- scheduling
static Lane *first_ready(Simdgroup *g) {
  for (uint32_t i = 0; i < g->count; i++) {
    Lane *l = &g->lanes[options.reversed ? g->count - 1 - i : i];
    if (l->state == READY) return l;
  }
  return nullptr;
}
static Lane *next_ready(Lane *after) {
  Simdgroup *g = after->group;
  if (options.reversed) {
    for (Lane *l = after; l-- > g->lanes;) if (l->state == READY) return l;
  } else {
    for (Lane *l = after + 1; l < g->lanes + g->count; l++) if (l->state == READY) return l;
  }
  return nullptr;
}
static void release(Simdgroup *g) {
  for (uint32_t i = 0; i < g->count; i++) g->lanes[i].state = READY;
  g->has_reduced[g->parity] = 0;
  g->parity ^= 1;
  g->arrived = 0;
  g->mixed = false;
  g->state = READY;
}
static Lane *next_simdgroup() {  // null: the threadgroup has ended, or a fault
  const Simdgroup *waiting = nullptr;
  for (uint32_t i = 0; i < group_count; i++) {
    Simdgroup *g = &groups[options.reversed ? group_count - 1 - i : i];
    if (g->state == READY) return first_ready(g);
    if (g->state == AT_BARRIER) waiting = g;
  }
  if (!waiting) return nullptr;
  for (uint32_t i = 0; i < group_count; i++)
    if (groups[i].state == RETURNED || !same(groups[i].site, waiting->site)) return diverged("a barrier", nullptr);
  memory_barrier(waiting->site.steps);
  result.threadgroup_barriers++;
  for (uint32_t i = 0; i < group_count; i++) release(&groups[i]);
  return first_ready(&groups[options.reversed ? group_count - 1 : 0]);
}
static Lane *resolve(Simdgroup *g) {  // no lane of g can run on: decide who runs next
  if (!g->arrived) {
    g->state = RETURNED;
    return next_simdgroup();
  }
  if (g->mixed || g->returned) return diverged(g->site.name, g);
  switch (g->site.kind) {
    case MTL_THREADGROUP_BARRIER: g->state = AT_BARRIER; return next_simdgroup();
    case MTL_SIMDGROUP_BARRIER: result.simdgroup_barriers++; break;
    case MTL_MATRIX: result.matrix_operations++; break;
    case MTL_SIMD: result.simd_operations++; result.simd_steps += g->site.steps; break;
  }
  release(g);
  return first_ready(g);
}
extern "C" void mtl_meet(const mtl_site *site) {
  Lane *me = (Lane *)mtl_current;
  Simdgroup *g = me->group;
  me->state = WAITING;
  me->site = *site;
  if (!g->arrived) g->site = *site;
  else if (!same(*site, g->site)) g->mixed = true;
  g->arrived |= 1u << me->lane;
  Lane *next = next_ready(me);
  if (!next) next = resolve(g);
  if (next == me) return;
  mtl_current = next;
  mtl_switch(&me->stack_pointer, next ? next->stack_pointer : main_stack_pointer);
}
static void lane_main() {
  entry(arguments);
  Lane *me = (Lane *)mtl_current;
  me->state = RETURNED;
  me->group->returned |= 1u << me->lane;
  Lane *next = next_ready(me);
  if (!next) next = resolve(me->group);
  mtl_current = next;
  if (!next) leave();
  void *unused;
  mtl_switch(&unused, next->stack_pointer);
  __builtin_unreachable();
}

static void run_threadgroup(mtl_u3 position, mtl_u3 size) {
  uint32_t count = size.x * size.y * size.z;
  group_count = (count + MTL_LANES - 1) / MTL_LANES;
  mtl_grid.threadgroup_position = position;
  mtl_grid.threadgroup_size = size;
  mtl_grid.simdgroups = group_count;
  memory_reset_threadgroup();
  for (uint32_t i = 0; i < group_count; i++) {
    Simdgroup *g = &groups[i];
    g->lanes = lanes + i * MTL_LANES;
    g->index = i;
    g->count = count - i * MTL_LANES < MTL_LANES ? count - i * MTL_LANES : MTL_LANES;
    g->mask = g->count == MTL_LANES ? ~0u : (1u << g->count) - 1;
    g->arrived = g->returned = g->parity = 0;
    g->mixed = false;
    g->state = READY;
  }
  const mtl_u3 full = mtl_grid.full_threadgroup_size;
  for (uint32_t i = 0; i < count; i++) {
    Lane *l = &lanes[i];
    l->group = &groups[i / MTL_LANES];
    l->exchange = l->group;
    l->index_in_threadgroup = i;
    l->simdgroup = i / MTL_LANES;
    l->lane = i % MTL_LANES;
    l->state = READY;
    mtl_u3 p = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
    l->position_in_threadgroup = p;
    l->position_in_grid = {position.x * full.x + p.x, position.y * full.y + p.y, position.z * full.z + p.z};
    l->stack_pointer = fibre_prepare(l->stack + STACK_BYTES - 64, lane_main);
  }
  mtl_current = next_simdgroup();
  mtl_switch(&main_stack_pointer, mtl_current->stack_pointer);
  mtl_current = nullptr;
  result.threadgroups++;
  result.simdgroups += group_count;
  result.lanes += count;
}
static void run_grid() {
  mtl_u3 n = mtl_grid.threadgroups, full = mtl_grid.full_threadgroup_size, grid = mtl_grid.grid;
  uint64_t total = (uint64_t)n.x * n.y * n.z;
  for (uint64_t i = 0; i < total && !faulted; i++) {
    uint64_t t = options.reversed ? total - 1 - i : i;
    mtl_u3 p = {uint32_t(t % n.x), uint32_t(t / n.x % n.y), uint32_t(t / n.x / n.y)};
    auto edge = [](uint32_t at, uint32_t count, uint32_t size, uint32_t all) {
      return at + 1 == count ? all - at * size : size;
    };
    run_threadgroup(p, {edge(p.x, n.x, full.x, grid.x), edge(p.y, n.y, full.y, grid.y), edge(p.z, n.z, full.z, grid.z)});
  }
}

// ------------------------------------------------------- signals and launch
static sigjmp_buf escape;
static volatile sig_atomic_t running;
static void on_signal(int number, siginfo_t *info, void *) {
  if (!running) {
    signal(number, SIG_DFL);
    return;
  }
  char text[256];
  if (number == SIGSEGV || number == SIGBUS) {
    if (is_stack(info->si_addr)) append_message("stack overflow of a lane");
    else append_message("invalid address, near %s", memory_describe(info->si_addr, text, sizeof text));
  } else {
    append_message("no end after %g s: a lane spins", options.seconds);
  }
  siglongjmp(escape, 1);
}
static void allocate_stacks() {
  if (stacks) return;
  stacks = (char *)mmap(nullptr, MAX_LANES * STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (uint32_t i = 0; i < MAX_LANES; i++) {
    lanes[i].stack = stacks + i * STACK_BYTES;
    mprotect(lanes[i].stack, 4096, PROT_NONE);
  }
}
static timer_t start_watchdog(int number) {
  sigevent event = {};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = number;
  event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
  timer_t timer;
  timer_create(CLOCK_MONOTONIC, &event, &timer);
  itimerspec at = {};
  at.it_value.tv_sec = (time_t)options.seconds;
  at.it_value.tv_nsec = (long)((options.seconds - (double)at.it_value.tv_sec) * 1e9) + 1;
  timer_settime(timer, 0, &at, nullptr);
  return timer;
}

// Returns 0, or 1 with result->message set.
extern "C" int mtl_run(void (*kernel)(void **), void *const *buffers, uint32_t buffer_count, const uint32_t *grid,
                       const uint32_t *threadgroup, const Options *o, Result *out) {
  allocate_stacks();
  options = *o;
  memset(&result, 0, sizeof result);
  faulted = false;
  entry = kernel;
  memcpy(arguments, buffers, buffer_count * sizeof(void *));
  auto part = [&](int i) { return threadgroup[i] < grid[i] ? threadgroup[i] : grid[i]; };
  auto groups_of = [&](int i) { return (grid[i] + part(i) - 1) / part(i); };
  mtl_grid = {};
  mtl_grid.full_threadgroup_size = {part(0), part(1), part(2)};
  mtl_grid.threadgroups = {groups_of(0), groups_of(1), groups_of(2)};
  mtl_grid.grid = {grid[0], grid[1], grid[2]};
  memory_begin_launch((const void *)kernel);

  static char signal_stack[64 * 1024];
  stack_t alternate = {}, old_stack;
  alternate.ss_sp = signal_stack;
  alternate.ss_size = sizeof signal_stack;
  sigaltstack(&alternate, &old_stack);
  const int signals[3] = {SIGSEGV, SIGBUS, SIGRTMIN + 7};
  struct sigaction action = {}, old[3];
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int i = 0; i < 3; i++) sigaction(signals[i], &action, &old[i]);
  timespec start, end;
  clock_gettime(CLOCK_MONOTONIC, &start);
  timer_t timer = start_watchdog(signals[2]);
  if (!sigsetjmp(escape, 1)) {
    running = 1;
    run_grid();
  }
  running = 0;
  timer_delete(timer);
  mtl_current = nullptr;
  clock_gettime(CLOCK_MONOTONIC, &end);
  for (int i = 0; i < 3; i++) sigaction(signals[i], &old[i], nullptr);
  sigaltstack(&old_stack, nullptr);
  result.nanoseconds = (end.tv_sec - start.tv_sec) * 1000000000ull + end.tv_nsec - start.tv_nsec;
  *out = result;
  return result.message[0] != 0;
}
