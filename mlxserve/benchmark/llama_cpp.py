"""llama.cpp's multi-sequence batch interface, as llama-cpp-python binds it: greedy decoding of several sequences.

Knows token ids only.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import llama_cpp
import numpy as np

from mlxserve.errors import MlxserveError

_BATCH = 512


# By default every allocation is told on stderr; failures come back as a status too.
_no_log = llama_cpp.llama_log_callback(lambda level, text, data: None)


class LlamaCpp:
    """A model and a context of ``sequences`` sequences of up to ``length`` tokens. Close it, or use it in ``with``."""

    def __init__(self, path: Path, sequences: int, length: int) -> None:
        llama_cpp.llama_log_set(_no_log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params)
        if not self._model:
            raise MlxserveError(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = sequences * length
        params.n_seq_max = sequences
        params.n_batch = params.n_ubatch = _BATCH
        params.n_threads = params.n_threads_batch = os.cpu_count() or 1
        self._context: Any = llama_cpp.llama_init_from_model(self._model, params)
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._lengths = [0] * sequences

    def start(self, sequence: int, prompt: Sequence[int]) -> int:
        """Computes a prompt and returns the best next token."""
        assert self._lengths[sequence] == 0, "the sequence is in use"
        token = 0
        for first in range(0, len(prompt), _BATCH):
            part = prompt[first : first + _BATCH]
            last = first + len(part) == len(prompt)
            (token,) = self._decode([(sequence, t) for t in part], [len(part) - 1] if last else []) or (0,)
        return token

    def step(self, tokens: Mapping[int, int]) -> dict[int, int]:
        """One token of each sequence in; the best next token of each out. Of no sequences, nothing."""
        if not tokens:
            return {}
        best = self._decode(list(tokens.items()), range(len(tokens)))
        return dict(zip(tokens, best, strict=True))

    def drop(self, sequence: int) -> None:
        """Forgets a sequence."""
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_seq_rm(memory, sequence, -1, -1)
        self._lengths[sequence] = 0

    def _decode(self, tokens: Sequence[tuple[int, int]], wanted: Sequence[int]) -> list[int]:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, (sequence, token) in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = self._lengths[sequence]
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = i in wanted
            self._lengths[sequence] += 1
        if status := llama_cpp.llama_decode(self._context, batch):
            raise MlxserveError(f"llama_decode failed with status {status}")
        return [
            int(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self._context, i), (self._vocab,)).argmax())
            for i in wanted
        ]

    def __enter__(self) -> LlamaCpp:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)
