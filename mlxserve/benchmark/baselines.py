"""Other engines on the same prompts, weights and token counts, each through its own public interface.

Every runner takes the workload and returns what ``arms.ArmResult`` needs but the peak memory. All generate exactly
``max_tokens`` tokens a prompt, greedily.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlxserve.benchmark.arms import Workload
from mlxserve.benchmark.prompts import instructions
from mlxserve.benchmark.summary import RequestRecord
from mlxserve.convert import quantize_checkpoint
from mlxserve.formats.checkpoint import Checkpoint
from mlxserve.hub import Hub
from mlxserve.text.load import load_text


def _prompts(checkpoint: Checkpoint, count: int) -> list[list[int]]:
    text = load_text(checkpoint.tokenizer, checkpoint.eos_token_ids)
    return [text.chat_prompt(one.messages()) for one in instructions(count)]


def run_transformers(workload: Workload, progress: Callable[[int], None]) -> dict[str, Any]:
    """``generate`` over static batches of --max-num-seqs prompts, padded on the left. A whole batch's tokens come
    together, so there is no time to first token."""
    import torch
    from transformers import AutoModelForCausalLM

    checkpoint = Hub().open_model(workload.model.model)
    path = checkpoint.path
    source = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    model: Any = AutoModelForCausalLM.from_pretrained(path.parent if source else path, **source, dtype=torch.float32)
    model.eval()
    prompts = _prompts(checkpoint, workload.num_prompts)

    def generate(batch: list[list[int]], tokens: int) -> int:
        width = max(map(len, batch))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in batch])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch])
        with torch.inference_mode():
            model.generate(
                ids, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0
            )
        return width * len(batch) - sum(map(len, batch))

    generate(prompts[:1], 2)
    start = time.perf_counter()
    records, padded = [], 0
    for first in range(0, len(prompts), workload.engine.max_num_seqs):
        batch = prompts[first : first + workload.engine.max_num_seqs]
        padded += generate(batch, workload.max_tokens)
        end = time.perf_counter() - start
        records += [
            RequestRecord(end_s=end, prompt_tokens=len(prompt), output_tokens=workload.max_tokens) for prompt in batch
        ]
        progress(len(batch))
    duration = time.perf_counter() - start
    return {"records": records, "duration_s": duration, "padded_tokens": padded, "details": {"dtype": "float32"}}


def run_mlx_lm(workload: Workload, progress: Callable[[int], None]) -> dict[str, Any]:
    """mlx-lm's own continuous batching. A GGUF file is first written as a directory in MLX's form, in 4 bits."""
    import mlx.core as mx
    from mlx_lm.generate import BatchGenerator
    from mlx_lm.utils import load

    checkpoint = Hub().open_model(workload.model.model)
    with tempfile.TemporaryDirectory() as scratch:
        path = checkpoint.path
        if path.is_file():
            path = Path(scratch, checkpoint.name)
            quantize_checkpoint(checkpoint, path, 4, 32)
        model: Any = load(str(path))[0]
    dtype = "the checkpoint's"
    if mx.default_device() == mx.Device(mx.cpu):
        model.set_dtype(mx.float32)  # as ours there: MLX computes 16-bit floats far slower on a CPU
        dtype = "float32"
    prompts = _prompts(checkpoint, workload.num_prompts)

    def generate(batch: list[list[int]], tokens: int, seen: Callable[[Any], None]) -> None:
        generator: Any = BatchGenerator(model, max_tokens=tokens, completion_batch_size=workload.engine.max_num_seqs)
        generator.insert(batch)
        left = len(batch)
        while left:
            _, responses = generator.next()
            for response in responses:
                seen(response)
                left -= response.finish_reason is not None
        generator.close()

    generate(prompts[:1], 2, lambda response: None)
    start = time.perf_counter()
    records = [RequestRecord(prompt_tokens=len(prompt)) for prompt in prompts]
    uids: dict[int, RequestRecord] = {}

    def seen(response: Any) -> None:
        if response.uid not in uids:  # they are given in the prompts' order
            uids[response.uid] = records[len(uids)]
        record = uids[response.uid]
        now = time.perf_counter() - start
        record.first_token_s = record.first_token_s or now
        record.output_tokens = (record.output_tokens or 0) + 1
        if response.finish_reason is not None:
            record.end_s = now
            progress(1)

    generate(prompts, workload.max_tokens, seen)
    duration = time.perf_counter() - start
    return {"records": records, "duration_s": duration, "padded_tokens": None, "details": {"dtype": dtype}}


def run_llama_cpp(workload: Workload, progress: Callable[[int], None]) -> dict[str, Any]:
    """``llama_decode`` over batches of --max-num-seqs sequences; a finished one's place is taken by the next prompt."""
    from mlxserve.benchmark.llama_cpp import LlamaCpp

    checkpoint, sequences = Hub().open_model(workload.model.model), workload.engine.max_num_seqs
    prompts = _prompts(checkpoint, workload.num_prompts)
    with LlamaCpp(checkpoint.path, sequences, max(map(len, prompts)) + workload.max_tokens) as llama:
        llama.start(0, prompts[0][:8])
        llama.drop(0)
        records = [RequestRecord(prompt_tokens=len(prompt)) for prompt in prompts]
        waiting = list(range(len(prompts)))[::-1]
        running: dict[int, tuple[int, int]] = {}  # sequence -> (prompt, last token)
        start = time.perf_counter()

        def took(sequence: int, number: int, token: int) -> None:
            record, now = records[number], time.perf_counter() - start
            record.first_token_s = record.first_token_s or now
            record.output_tokens = (record.output_tokens or 0) + 1
            running[sequence] = (number, token)
            if record.output_tokens == workload.max_tokens:
                record.end_s = now
                del running[sequence]
                llama.drop(sequence)
                progress(1)

        while waiting or running:
            for sequence in set(range(sequences)) - set(running):
                if waiting:
                    number = waiting.pop()
                    took(sequence, number, llama.start(sequence, prompts[number]))
            for sequence, token in llama.step({seq: token for seq, (_, token) in running.items()}).items():
                took(sequence, running[sequence][0], token)
        duration = time.perf_counter() - start
    return {"records": records, "duration_s": duration, "padded_tokens": 0, "details": {}}
