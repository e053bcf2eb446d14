"""lm-eval against the server, and the same requests answered by transformers on the same weights: equal scores.

Runs where transformers and torch are; lm-eval runs in the clients' venv, as the program that it is. What it asked and
what it was answered come from the samples that it logs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mlxserve.formats.checkpoint import embedded_model_path

PROGRAM = ".venv-clients/bin/lm_eval"
TASKS = "tests/clients/tasks"
SCORE_TOLERANCE = 0.01
LOGPROB_TOLERANCE = 0.05  # nats, of a whole continuation
FOUND = re.compile(r"(Paris|Rome|Tokyo|Berlin|Madrid|London|Cairo|Moscow|Oslo|Athens|\d+)")  # as tasks/answer.yaml

Sample = dict[str, Any]


class Reference:
    """transformers on the embedded weights, float32."""

    def __init__(self) -> None:
        # Prompts are short; two threads that wait for each other on a busy machine took forty times as long.
        torch.set_num_threads(1)
        path = embedded_model_path()
        self.tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        self.model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()

        self.known: dict[tuple[str, str], float] = {}

    def logprob(self, context: str, continuation: str) -> float:
        """Of the whole continuation; what was asked before is not computed again."""
        if (context, continuation) not in self.known:
            self.known[context, continuation] = self._logprob(context, continuation)
        return self.known[context, continuation]

    @torch.inference_mode()
    def _logprob(self, context: str, continuation: str) -> float:
        ids = self.tokenizer(context + continuation).input_ids
        start = len(self.tokenizer(context).input_ids)
        logprobs = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return sum(logprobs[i - 1, ids[i]].item() for i in range(start, len(ids)))

    @torch.inference_mode()
    def answer(self, question: str) -> str:
        messages = [{"role": "user", "content": question}]
        ids = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        out = self.model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)
        text = self.tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)
        return re.split(r"[\n.]", text)[0]


def lm_eval(kind: str, task: str, path: str, *more: str) -> tuple[dict[str, float], list[Sample]]:
    """The task's scores and samples."""
    model = [f"model={os.environ['MODEL']}", f"base_url={os.environ['BASE_URL']}{path}", "max_retries=1", *more]
    with tempfile.TemporaryDirectory() as out:
        command = [PROGRAM, "run", "--model", kind, "--model_args", ",".join(model), "--tasks", task]
        command += ["--include_path", TASKS, "--log_samples", "--output_path", out]
        if kind == "local-chat-completions":
            command.append("--apply_chat_template")
        subprocess.run(command, check=True)
        (results,) = Path(out).rglob("results_*.json")
        (samples,) = Path(out).rglob(f"samples_{task}_*.jsonl")
        scores = json.loads(results.read_text())["results"][task]
        return scores, [json.loads(line) for line in samples.read_text().splitlines()]


def check_choices(reference: Reference, tokenizer: str, *, as_ids: bool) -> None:
    more = (f"tokenizer={tokenizer}", f"tokenized_requests={as_ids}", "num_concurrent=2")
    scores, samples = lm_eval("local-completions", "mlxserve_choice", "/v1/completions", *more)
    right, right_by_length = 0, 0
    for sample in samples:
        asked = [(each["arg_0"], each["arg_1"]) for each in sample["arguments"].values()]
        want = [reference.logprob(context, continuation) for context, continuation in asked]
        got = [float(answer[0]) for answer in sample["filtered_resps"]]
        worst = max(abs(a - b) for a, b in zip(want, got, strict=True))
        assert worst <= LOGPROB_TOLERANCE, f"log-probabilities differ by {worst}"
        by_length = [logprob / len(choice) for logprob, choice in zip(want, sample["doc"]["choices"], strict=True)]
        right += want.index(max(want)) == sample["doc"]["label"]
        right_by_length += by_length.index(max(by_length)) == sample["doc"]["label"]
    same_score("acc", scores["acc,none"], right / len(samples))
    same_score("acc_norm", scores["acc_norm,none"], right_by_length / len(samples))


def check_answers(reference: Reference) -> None:
    scores, samples = lm_eval("local-chat-completions", "mlxserve_answer", "/v1/chat/completions", "num_concurrent=2")
    right = 0
    for sample in samples:
        found = FOUND.search(reference.answer(sample["doc"]["question"]))
        right += bool(found) and found[0] == sample["doc"]["answer"]
    same_score("exact_match", scores["exact_match,found"], right / len(samples))


def same_score(name: str, got: float, want: float) -> None:
    print(f"{name}: {got:.4f} here, {want:.4f} with transformers")
    assert abs(got - want) <= SCORE_TOLERANCE, name


def main() -> None:
    reference = Reference()
    with tempfile.TemporaryDirectory() as tokenizer:
        reference.tokenizer.save_pretrained(tokenizer)
        check_choices(reference, tokenizer, as_ids=True)
        check_choices(reference, tokenizer, as_ids=False)
    check_answers(reference)


if __name__ == "__main__":
    main()
