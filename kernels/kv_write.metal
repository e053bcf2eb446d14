//! kernel kv_write
//! include norm_rope.h
//! inputs qkv positions inverse_frequencies query_weight key_weight slots key_pages value_pages after sizes factors
//! outputs queries written
//! in_place key_pages value_pages
// qk_norm_rope with K and V written straight into their pages: a write to an input, which MLX does not know of. Ordered
// by data: `written` is an input of the attention that follows, `after` an output of what read the pages before.
//   as qk_norm_rope, and slots [tokens]: block * BLOCK + offset, negative to skip; pages [blocks, Hkv, BLOCK, D] T
//   written [8] uint
//! body
const int query_heads = sizes[0], kv_heads = sizes[1], head = threadgroup_position_in_grid.y;
const int token = threadgroup_position_in_grid.z, slot = slots[token];
const bool is_query = head < query_heads, is_value = head >= query_heads + kv_heads;
const int kv_head = head - query_heads - (is_value ? kv_heads : 0);
if (head == 0 && token == 0 && thread_index_in_simdgroup < 8) written[thread_index_in_simdgroup] = 1;
if (!is_query && slot < 0) return;
device T* page = (device T*)(is_value ? value_pages : key_pages) +
                 ((long(slot / BLOCK) * kv_heads + kv_head) * BLOCK + slot % BLOCK) * D;
device T* out = is_query ? queries + (long(token) * query_heads + head) * D : page;
norm_rope<D, ROT, NORM>(qkv + (long(token) * (query_heads + 2 * kv_heads) + head) * D, out,
                        is_query ? query_weight : key_weight, inverse_frequencies, positions[token], factors[0],
                        factors[1], is_value, thread_index_in_simdgroup);
