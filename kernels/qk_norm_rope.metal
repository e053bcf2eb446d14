//! kernel qk_norm_rope
//! include norm_rope.h
//! inputs qkv positions inverse_frequencies query_weight key_weight sizes factors
//! outputs queries keys values
// Splits fused q|k|v rows; q and k are normed (NORM, a head at a time) and rotated. One simdgroup a (head, token).
//   qkv [tokens, (Hq + 2 Hkv) * D] T; positions [tokens]; inverse_frequencies [ROT / 2]; weights [D]
//   sizes {Hq, Hkv}; factors {eps, rope scale}; queries [tokens, Hq, D]; keys, values [tokens, Hkv, D]
//! body
const int query_heads = sizes[0], kv_heads = sizes[1], head = threadgroup_position_in_grid.y;
const int token = threadgroup_position_in_grid.z;
const bool is_query = head < query_heads, is_value = head >= query_heads + kv_heads;
const int kv_head = head - query_heads - (is_value ? kv_heads : 0);
device T* out = is_query ? queries + (long(token) * query_heads + head) * D
                         : (is_value ? values : keys) + (long(token) * kv_heads + kv_head) * D;
norm_rope<D, ROT, NORM>(qkv + (long(token) * (query_heads + 2 * kv_heads) + head) * D, out,
                        is_query ? query_weight : key_weight, inverse_frequencies, positions[token], factors[0],
                        factors[1], is_value, thread_index_in_simdgroup);
