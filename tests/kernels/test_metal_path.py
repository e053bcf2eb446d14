"""The whole server on its Metal path, simulated: process, HTTP, engine, MLX backend, kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from openai import OpenAI

from mlxserve import LLM
from tests.e2e.server import ServerProcess, running_server

FLAGS = ("--model", "smollm2-135m", "--max-num-seqs", "2", "--max-model-len", "512", "--kv-blocks", "64")
QUESTION, OTHER = "Tell me a long story about a fox.", "Name three colours."


def answer(server: ServerProcess, question: str) -> str:
    """The text of the first 16 greedy tokens."""
    with OpenAI(base_url=f"{server.base_url}/v1", api_key="unused", max_retries=0, timeout=200) as client:
        done = client.chat.completions.create(
            model="smollm2-135m",
            messages=[{"role": "user", "content": question}],
            max_tokens=16,
            temperature=0,
        )
    assert done.usage is not None
    assert done.usage.completion_tokens == 16
    return str(done.choices[0].message.content)


@pytest.fixture(scope="module")
def torch_answers() -> list[str]:
    """Of the torch backend with the checkpoint's weights as they are: what it rounds them to for speed moves logits by
    more than many tokens are apart."""
    with LLM("smollm2-135m", backend="torch", cpu_weights="float32", max_model_len=512) as llm:
        prompts = [llm.chat_prompt([{"role": "user", "content": question}]) for question in (QUESTION, OTHER)]
        return [c.text for c in llm.generate(prompts, temperature=0, max_tokens=16)]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kv_write", ["scatter", "inplace"])
def test_greedy_tokens_are_the_torch_backends(kv_write: str, torch_answers: list[str]) -> None:
    flags = (*FLAGS, "--backend", "mlx", "--kv-write", kv_write)
    with running_server(*flags, env={"MLXSERVE_KERNELS": "sim"}) as server:
        assert any("Metal kernels, simulated" in line for line in server.lines), server.lines
        got = answer(server, QUESTION)
    assert got == torch_answers[0]
    assert got != torch_answers[1], "another question's tokens would be told apart"


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MLXSERVE_KERNELS", "fast", "must be one of auto, on, off, sim"),
        ("MLXSERVE_KERNELS", "on", "MLX finds no GPU here"),
        ("MLXSERVE_KERNEL_TABLE", "gone.json", "cannot be read"),
    ],
)
def test_a_wrong_setting_is_one_line(name: str, value: str, words: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mlxserve", "generate", "--backend", "mlx", "--max-tokens", "1", "-p", "hello"],
        env={**os.environ, "MLXSERVE_KERNELS": "sim", name: value},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
