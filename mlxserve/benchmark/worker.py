"""The process of one arm: reads a job from stdin, writes progress and the result as JSON lines on stdout.

Each runner loads its engine, warms it up, and then measures from the submission of all prompts.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlxserve.benchmark import baselines
from mlxserve.benchmark.arms import Workload
from mlxserve.benchmark.prompts import Instruction, instructions
from mlxserve.benchmark.summary import RequestRecord
from mlxserve.types import SamplingParams

Runner = Callable[[Workload, Callable[[int], None]], dict[str, Any]]

WARM_UP = Instruction("Warm up.", "Say hello.")


def run_engine(workload: Workload, progress: Callable[[int], None]) -> dict[str, Any]:
    """Ours, through the offline API."""
    from mlxserve.llm import LLM

    params = SamplingParams(max_tokens=workload.max_tokens, temperature=0, ignore_eos=True)
    with LLM.from_config(workload.model, workload.engine) as llm:
        llm.generate([llm.chat_prompt(WARM_UP.messages())], max_tokens=8, temperature=0)
        prompts = [llm.chat_prompt(one.messages()) for one in instructions(workload.num_prompts)]
        start = time.perf_counter()
        records = {llm.submit(prompt, params): RequestRecord() for prompt in prompts}
        while llm.core.has_work():
            deltas = llm.core.step()
            now = time.perf_counter() - start
            for delta in deltas:
                record = records[delta.request_id]
                record.output_tokens = (record.output_tokens or 0) + len(delta.token_ids)
                if record.first_token_s is None and delta.token_ids:
                    record.first_token_s = now
                if delta.usage is not None:
                    record.end_s = now
                    record.prompt_tokens = delta.usage.prompt_tokens
                    record.cached_tokens = delta.usage.cached_tokens
                    progress(1)
        duration = time.perf_counter() - start
        details = {"backend": llm.info.backend, "quantization": llm.info.quantization, "dtype": llm.info.dtype}
    return {"records": list(records.values()), "duration_s": duration, "padded_tokens": 0, "details": details}


RUNNERS: dict[str, Runner] = {
    "engine": run_engine,
    "transformers": baselines.run_transformers,
    "mlx_lm": baselines.run_mlx_lm,
    "llama_cpp": baselines.run_llama_cpp,
}


def _peak_memory() -> int:
    """Bytes. On Linux ru_maxrss would begin with the peak of the process that forked this one."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    job = json.load(sys.stdin)
    out = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints must not mix with the protocol

    def say(event: Mapping[str, Any]) -> None:
        print(json.dumps(event), file=out, flush=True)

    run = RUNNERS[job["runner"]]
    result = run(Workload.from_json(job["workload"]), lambda count: say({"done": count}))
    result["records"] = [asdict(record) for record in result["records"]]
    result["peak_memory_bytes"] = _peak_memory()
    say(result)


if __name__ == "__main__":
    main()
