// What a compiled kernel and the runtime share: lanes, exchange slots, the grid, and the runtime's entry points.
// Knows nothing of Metal's types.
#pragma once
#include <stddef.h>
#include <stdint.h>

constexpr uint32_t MTL_LANES = 32;       // lanes of a simdgroup
constexpr uint32_t MTL_SLOT_BYTES = 64;  // largest value a simd operation exchanges

struct mtl_u3 {
  uint32_t x, y, z;
};

// One simdgroup's exchange area. Two slots, used in turn, so that a lane that runs ahead to the next operation
// does not overwrite what a slower lane has yet to read.
struct mtl_exchange {
  alignas(64) unsigned char slot[2][MTL_LANES * MTL_SLOT_BYTES];
  alignas(64) unsigned char reduced[2][MTL_SLOT_BYTES];  // a reduction, computed by the first lane that resumes
  uint8_t has_reduced[2];
  uint32_t mask;    // lanes that exist
  uint32_t parity;  // slot of the operation under way
};

struct mtl_lane {
  void *stack_pointer;
  mtl_exchange *exchange;
  mtl_u3 position_in_grid, position_in_threadgroup;
  uint32_t index_in_threadgroup, lane, simdgroup;
};

struct mtl_dispatch {  // the same for all lanes of a threadgroup
  mtl_u3 threadgroup_position, threadgroup_size, full_threadgroup_size, threadgroups, grid;
  uint32_t simdgroups;
};

enum mtl_kind : uint32_t { MTL_SIMD, MTL_MATRIX, MTL_SIMDGROUP_BARRIER, MTL_THREADGROUP_BARRIER };

struct mtl_site {  // one operation in the source at which lanes meet
  mtl_kind kind;
  const char *name;
  const char *file;
  uint32_t line;
  uint32_t steps;  // 32-bit exchange steps this operation stands for; for a barrier, its memory flags
};

extern "C" {
extern mtl_lane *mtl_current;
extern mtl_dispatch mtl_grid;
void mtl_meet(const mtl_site *site);
// key: one address a declaration and template instantiation. granule: bytes that lanes may own separately.
void *mtl_threadgroup_memory(const void *key, size_t size, size_t alignment, size_t granule, const char *name);
void mtl_atomic_access(const void *address, size_t size);
}
