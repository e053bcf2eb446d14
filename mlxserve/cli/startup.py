"""The short plan that a server prints before it takes requests."""

from __future__ import annotations

from mlxserve.llm import Assembly
from mlxserve.types import ModelInfo, SamplingParams

_KIB, _MIB = 2**10, 2**20


def startup_plan(parts: Assembly) -> list[str]:
    """What was loaded and how much memory the KV pool may take, a line each."""
    info, spec = parts.info, parts.model.spec
    block_bytes = parts.backend.bytes_per_block(spec, info.block_size)
    pool_tokens = info.num_blocks * info.block_size
    per_token, per_block = block_bytes / info.block_size / _KIB, block_bytes / _MIB
    note = f", {parts.backend.note}" if parts.backend.note else ""
    weights = f"weights          {parts.model.weight_bytes / _MIB:.0f} MiB"
    longest = f"longest context  {min(info.max_model_len, pool_tokens)} tokens"
    sampling = f"sampling         {_sampling(info)}, where a request gives none"
    if not parts.model.paged:
        library = parts.model.library
        return [
            f"model            {info.name}, quantisation {info.quantization}",
            f"backend          {info.backend}, {info.dtype}, {library}'s model code, sequence by sequence{note}",
            weights,
            f"state            {library}'s own, up to {info.max_num_seqs} sequences, outside the KV pool and its limit",
            "                 no prefix cache, and each choice computes its own prompt",
            longest,
            sampling,
        ]
    return [
        f"model            {info.name}, {len(spec.layers)} layers, quantisation {info.quantization}",
        f"backend          {info.backend}, {info.dtype}"
        + (f", {parts.model.library}'s model code over our pages" if parts.model.library else "")
        + note,
        weights,
        f"KV               {per_token:.1f} KiB a token, {per_block:.2f} MiB a block of {info.block_size}",
        f"KV pool          {info.num_blocks} blocks, {pool_tokens} tokens, up to {info.num_blocks * per_block:.0f} MiB",
        longest,
        sampling,
    ]


def _sampling(info: ModelInfo) -> str:
    """What a request that says nothing gets: the model's own defaults over the API's temperature of 1."""
    defaults = {"temperature": SamplingParams().temperature} | info.default_sampling
    return ", ".join(f"{name} {value:g}" for name, value in defaults.items())
