// Shadows of device and threadgroup memory: bounds, initialisation, races, and traffic counted a buffer.
// Knows nothing of how lanes are scheduled.
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime.h"

struct Traffic {
  uint64_t read, written;                // bytes, by every lane
  uint64_t unique_read, unique_written;  // distinct bytes
  uint64_t lines32, lines128;            // distinct lines, summed over simdgroups
};
// Who touched a granule last. Epochs count barriers and threadgroups, so equal epochs mean: no barrier between.
struct Cell {
  uint32_t write_epoch, read_epoch;
  uint32_t readers;  // simdgroups that read it in read_epoch
  uint32_t writer;   // simdgroup that wrote it in write_epoch
};
struct LineCell {
  uint32_t threadgroup, simdgroups;
};
enum Flags : uint32_t { READ_ONLY = 1, UNINITIALISED = 2 };
struct Buffer {
  char *base;
  uint64_t size;
  const char *name;
  uint32_t flags, granule;
  uint8_t *seen;  // a byte each: 1 read, 2 written
  Cell *cells;    // a granule each; only for buffers that may be written
  LineCell *lines32, *lines128;
  Traffic traffic;
};
struct Variable {  // one declaration in threadgroup memory
  const void *key;
  uint64_t offset, size, granule;
  const char *name;
};

constexpr uint64_t ARENA_BYTES = 256 * 1024, GAP = 64;
static Buffer buffers[64];
static uint32_t buffer_count;
static Variable variables[256];
static uint32_t variable_count;
static char *arena;
static Cell *arena_cells;
static uint64_t arena_used, declared_bytes;
static uint32_t epoch, device_epoch, threadgroup_epoch, threadgroup_device_epoch;
struct Image {
  uintptr_t function, low, high;
};
static Image images[2];  // the kernel's, for its constants, and the runtime's own

static void *lazily_zeroed(uint64_t size) {
  return mmap(nullptr, size + 64, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

// ---------------------------------------------------------- threadgroup memory
extern "C" void *mtl_threadgroup_memory(const void *key, size_t size, size_t alignment, size_t granule,
                                        const char *name) {
  for (uint32_t i = 0; i < variable_count; i++)
    if (variables[i].key == key) return arena + variables[i].offset;
  if (alignment < 16) alignment = 16;
  uint64_t offset = (arena_used + GAP + alignment - 1) & ~(alignment - 1);
  declared_bytes += size;
  if (declared_bytes > result.threadgroup_memory) result.threadgroup_memory = declared_bytes;
  if ((options.threadgroup_limit && declared_bytes > options.threadgroup_limit) || offset + size + GAP > ARENA_BYTES)
    fault(__builtin_return_address(0), "threadgroup memory: %lu bytes with %s, the limit is %u", declared_bytes, name,
          options.threadgroup_limit);
  variables[variable_count++] = {key, offset, size, granule, name};
  arena_used = offset + size;
  memset(arena + offset, 0xff, size);
  return arena + offset;
}
void memory_reset_threadgroup() {
  variable_count = 0;
  arena_used = declared_bytes = 0;
  threadgroup_epoch = ++epoch;
  threadgroup_device_epoch = ++device_epoch;
}
void memory_barrier(uint32_t flags) {
  if (flags & 2) epoch++;
  if (flags & 1) device_epoch++;
}

// ------------------------------------------------------------------- checks
static const char *conflict(const Cell &c, bool store, uint32_t now, uint32_t first, uint32_t group) {
  if (c.write_epoch && c.write_epoch < first) return "written by another threadgroup";
  if (c.write_epoch == now && c.writer != group) return "written by another simdgroup with no barrier between";
  if (!store) return nullptr;
  if (c.read_epoch && c.read_epoch < first) return "read by another threadgroup";
  if (c.read_epoch == now && (c.readers & ~(1u << group))) return "read by another simdgroup with no barrier between";
  return nullptr;
}
static void touch(Cell &c, bool store, uint32_t now, uint32_t group) {
  if (store) {
    c.write_epoch = now;
    c.writer = group;
  } else {
    if (c.read_epoch != now) c.readers = 0;
    c.read_epoch = now;
    c.readers |= 1u << group;
  }
}
static const char *verb(bool store) { return store ? "write to" : "read of"; }

static void access_threadgroup(uint64_t offset, size_t size, bool store, const void *pc) {
  uint32_t group = mtl_current->simdgroup;
  for (uint32_t i = 0; i < variable_count; i++) {
    const Variable &v = variables[i];
    uint64_t at = offset - v.offset;
    if (at >= v.size) continue;
    if (at + size > v.size) break;
    (store ? result.threadgroup_written : result.threadgroup_read) += size;
    for (uint64_t g = offset / v.granule; g <= (offset + size - 1) / v.granule; g++) {
      Cell &c = arena_cells[g * v.granule];
      if (c.write_epoch < threadgroup_epoch) c = {};  // left from an earlier threadgroup
      if (!store && !c.write_epoch) fault(pc, "uninitialised read of threadgroup %s[+%lu]", v.name, at);
      if (const char *why = conflict(c, store, epoch, threadgroup_epoch, group))
        fault(pc, "race: %s threadgroup %s[+%lu], %s", verb(store), v.name, at, why);
      touch(c, store, epoch, group);
    }
    return;
  }
  char text[256];
  fault(pc, "out of bounds: %s %zu bytes, %s", verb(store), size, memory_describe(arena + offset, text, sizeof text));
}

static uint64_t mark(uint8_t *seen, size_t size, uint8_t bit) {  // returns how many bytes are new
  uint64_t fresh = 0;
  for (size_t i = 0; i < size; i++) {
    fresh += !(seen[i] & bit);
    seen[i] |= bit;
  }
  return fresh;
}
static void count_lines(LineCell *lines, uint64_t first, uint64_t last, uint64_t *total) {
  for (uint64_t i = first; i <= last; i++) {
    LineCell &c = lines[i];
    uint32_t bit = 1u << mtl_current->simdgroup, tag = threadgroup_device_epoch;
    if (c.threadgroup != tag) c = {tag, 0};
    if (!(c.simdgroups & bit)) ++*total;
    c.simdgroups |= bit;
  }
}
static void access_device(Buffer &b, uint64_t at, size_t size, bool store, const void *pc) {
  if (at + size > b.size) fault(pc, "out of bounds: %s %zu bytes at %s[+%lu] of %lu", verb(store), size, b.name, at, b.size);
  if (store && (b.flags & READ_ONLY)) fault(pc, "write to the input %s[+%lu]", b.name, at);
  if (b.cells)
    for (uint64_t g = at / b.granule; g <= (at + size - 1) / b.granule; g++) {
      Cell &c = b.cells[g];
      if (!store && !c.write_epoch && (b.flags & UNINITIALISED)) fault(pc, "uninitialised read of %s[+%lu]", b.name, at);
      if (const char *why = conflict(c, store, device_epoch, threadgroup_device_epoch, mtl_current->simdgroup))
        fault(pc, "race: %s %s[+%lu], %s", verb(store), b.name, at, why);
      touch(c, store, device_epoch, mtl_current->simdgroup);
    }
  Traffic &t = b.traffic;
  (store ? t.written : t.read) += size;
  (store ? t.unique_written : t.unique_read) += mark(b.seen + at, size, store ? 2 : 1);
  count_lines(b.lines32, at / 32, (at + size - 1) / 32, &t.lines32);  // a Metal buffer begins at a page
  count_lines(b.lines128, at / 128, (at + size - 1) / 128, &t.lines128);
}

void memory_access(const void *address, size_t size, bool store, const void *pc) {
  if (!mtl_current || is_stack(address)) return;
  uint64_t offset = (uintptr_t)address - (uintptr_t)arena;
  if (offset < ARENA_BYTES) return access_threadgroup(offset, size, store, pc);
  for (uint32_t i = 0; i < buffer_count; i++) {
    uint64_t at = (uintptr_t)address - (uintptr_t)buffers[i].base;
    if (at < buffers[i].size) return access_device(buffers[i], at, size, store, pc);
  }
  uintptr_t a = (uintptr_t)address;
  for (const Image &image : images) if (!store && a - image.low < image.high - image.low) return;
  char text[256];
  fault(pc, "out of bounds: %s %zu bytes, near %s", verb(store), size, memory_describe(address, text, sizeof text));
}
extern "C" void mtl_atomic_access(const void *address, size_t size) {
  for (uint32_t i = 0; i < buffer_count; i++) {
    uint64_t at = (uintptr_t)address - (uintptr_t)buffers[i].base;
    if (at >= buffers[i].size || !buffers[i].seen) continue;
    buffers[i].traffic.read += size;
    buffers[i].traffic.written += size;
    buffers[i].traffic.unique_written += mark(buffers[i].seen + at, size, 2);
  }
}
const char *memory_describe(const void *address, char *text, size_t size) {
  const char *name = "no buffer";
  long best = 1l << 40, at = 0;
  auto consider = [&](const char *candidate, const char *base, uint64_t length) {
    long offset = (const char *)address - base;
    long distance = offset < 0 ? -offset : offset - (long)length;
    if (distance < best) best = distance, name = candidate, at = offset;
  };
  for (uint32_t i = 0; i < buffer_count; i++) consider(buffers[i].name, buffers[i].base, buffers[i].size);
  for (uint32_t i = 0; i < variable_count; i++)
    consider(variables[i].name, arena + variables[i].offset, variables[i].size);
  snprintf(text, size, "%s[%+ld]", name, at);
  return text;
}

// ------------------------------------------------------------------ buffers
static int find_image(dl_phdr_info *info, size_t, void *data) {
  Image &image = *(Image *)data;
  uintptr_t low = ~0ul, high = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
    uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, end = begin + info->dlpi_phdr[i].p_memsz;
    low = begin < low ? begin : low;
    high = end > high ? end : high;
  }
  if (image.function < low || image.function >= high) return 0;
  image.low = low;
  image.high = high;
  return 1;
}
void memory_begin_launch(const void *kernel_function) {
  if (!arena) {
    arena = (char *)lazily_zeroed(ARENA_BYTES);
    arena_cells = (Cell *)lazily_zeroed(ARENA_BYTES * sizeof(Cell));
  }
  images[0].function = (uintptr_t)kernel_function;
  images[1].function = (uintptr_t)&memory_begin_launch;
  for (Image &image : images) dl_iterate_phdr(find_image, &image);
}
extern "C" void mtl_buffers_clear() {
  for (uint32_t i = 0; i < buffer_count; i++) {
    Buffer &b = buffers[i];
    if (!b.seen) continue;
    munmap(b.seen, b.size + 64);
    munmap(b.lines32, (b.size / 32 + 2) * sizeof(LineCell) + 64);
    munmap(b.lines128, (b.size / 128 + 2) * sizeof(LineCell) + 64);
    if (b.cells) munmap(b.cells, (b.size / b.granule + 1) * sizeof(Cell) + 64);
  }
  buffer_count = 0;
}
extern "C" void mtl_buffer_add(char *base, uint64_t size, const char *name, uint32_t flags, uint32_t granule, int shadow) {
  Buffer &b = buffers[buffer_count++];
  b = {base, size, name, flags, granule, nullptr, nullptr, nullptr, nullptr, {}};
  if (!shadow) return;
  b.seen = (uint8_t *)lazily_zeroed(size);
  b.lines32 = (LineCell *)lazily_zeroed((size / 32 + 2) * sizeof(LineCell));
  b.lines128 = (LineCell *)lazily_zeroed((size / 128 + 2) * sizeof(LineCell));
  if (!(flags & READ_ONLY)) b.cells = (Cell *)lazily_zeroed((size / granule + 1) * sizeof(Cell));
}
extern "C" void mtl_buffer_traffic(uint32_t index, Traffic *out) { *out = buffers[index].traffic; }
// Offset of the first byte that no lane wrote, or -1.
extern "C" int64_t mtl_buffer_unwritten(uint32_t index) {
  const Buffer &b = buffers[index];
  for (uint64_t i = 0; i < b.size; i++) if (!(b.seen[i] & 2)) return (int64_t)i;
  return -1;
}
