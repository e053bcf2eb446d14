// The callbacks that the compilers' thread and undefined-behaviour instrumentation emits, answered by our own checks.
// Only the passes are used, never the compilers' runtimes.
#include <string.h>

#include "runtime.h"

#define PC __builtin_return_address(0)
static void range(const void *address, size_t size, bool store, const void *pc) {
  const char *p = (const char *)address;
  for (; size; p += 16, size -= size < 16 ? size : 16) memory_access(p, size < 16 ? size : 16, store, pc);
}
static const char *base_name(const char *path) {
  const char *slash = path ? strrchr(path, '/') : nullptr;
  return slash ? slash + 1 : path ? path : "?";
}

extern "C" {
#define ACCESS(prefix, n)                                                                   \
  void __tsan_##prefix##read##n(void *a) { memory_access(a, n, false, PC); }                \
  void __tsan_##prefix##write##n(void *a) { memory_access(a, n, true, PC); }                \
  void __tsan_##prefix##read_write##n(void *a) {                                            \
    memory_access(a, n, false, PC);                                                         \
    memory_access(a, n, true, PC);                                                          \
  }
#define ACCESSES(n) ACCESS(, n) ACCESS(unaligned_, n) ACCESS(volatile_, n)
ACCESSES(1) ACCESSES(2) ACCESSES(4) ACCESSES(8) ACCESSES(16)
void __tsan_read_range(void *a, size_t n) { range(a, n, false, PC); }
void __tsan_write_range(void *a, size_t n) { range(a, n, true, PC); }
void *__tsan_memcpy(void *d, const void *s, size_t n) {
  range(s, n, false, PC);
  range(d, n, true, PC);
  return memcpy(d, s, n);
}
void *__tsan_memmove(void *d, const void *s, size_t n) {
  range(s, n, false, PC);
  range(d, n, true, PC);
  return memmove(d, s, n);
}
void *__tsan_memset(void *d, int v, size_t n) {
  range(d, n, true, PC);
  return memset(d, v, n);
}
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}

struct Location {  // every data block of the undefined-behaviour interface begins with one
  const char *file;
  uint32_t line, column;
};
#define UNDEFINED(name)                                                                                         \
  void __ubsan_handle_##name(Location *at, uint64_t value) {                                                    \
    if (mtl_current)                                                                                            \
      fault(PC, "undefined behaviour: " #name " (value %ld), %s:%u", (long)value, base_name(at->file), at->line); \
  }                                                                                                             \
  void __ubsan_handle_##name##_abort(Location *at, uint64_t value) { __ubsan_handle_##name(at, value); }
UNDEFINED(out_of_bounds) UNDEFINED(shift_out_of_bounds) UNDEFINED(divrem_overflow) UNDEFINED(type_mismatch_v1)
UNDEFINED(pointer_overflow) UNDEFINED(builtin_unreachable) UNDEFINED(missing_return) UNDEFINED(load_invalid_value)
}
