"""Starts servers, runs every client against them as a program of its own, and says which failed.

``python -m tests.clients.run [NAME...]``. A client is told the address by the environment variable BASE_URL; it passes
when its exit status is 0.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = Path(".venv-clients/bin/python").absolute()
MODEL = "smollm2-135m"
REAL = [sys.executable, "-m", "mlxserve", "serve", "--model", MODEL, "--port", "0"]
EXACT = [*REAL, "--cpu-weights", "float32"]  # as the oracle computes; the default rounds activations too
SHORT = [*REAL, "--max-model-len", "96"]
FAKE = [sys.executable, "-m", "tests.api.fake_process"]

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,Answered"


def script(name: str) -> list[str]:
    return [str(PYTHON), str(HERE / name)]


def fuzz(examples: int) -> list[str]:
    """The same requests in every run, but for those that cancel what an answer before was called."""
    return [
        str(PYTHON.with_name("schemathesis")),
        *("run", "{base}/openapi.json", "--phases", "examples,coverage,fuzzing", "--checks", CHECKS),
        *("--max-examples", str(examples), "--generation-deterministic"),
        *("--request-timeout", "60", "--suppress-health-check", "all", "--no-color"),
    ]


# name -> (server, client)
CLIENTS: dict[str, tuple[list[str], list[str]]] = {
    "openai": (REAL, script("use_openai.py")),
    "litellm": (REAL, script("use_litellm.py")),
    "langchain": (REAL, script("use_langchain.py")),
    "llm": (REAL, script("use_llm.py")),
    "lm-eval": (EXACT, [sys.executable, "-m", "tests.clients.lm_eval_scores"]),
    "schemathesis": (SHORT, fuzz(10)),
    "schemathesis-fake-engine": (FAKE, fuzz(40)),
}


@contextmanager
def serving(command: Sequence[str]) -> Iterator[str]:
    """The address of a server that is ready; its exit status after SIGTERM must be 0."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)
        try:
            yield wait_for_address(process, log)
        finally:
            process.terminate()
            status = process.wait(timeout=60)
        assert status == 0, f"the server ended with {status}"


def wait_for_address(process: subprocess.Popen[str], log: object, seconds: float = 120) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        printed = os.pread(log.fileno(), 1 << 16, 0).decode()  # type: ignore[attr-defined]
        if address := re.search(r"http://127\.0\.0\.1:\d+", printed):
            return address[0]
        time.sleep(0.1)
    raise RuntimeError(f"the server did not start:\n{printed}")


def run(name: str, base: str, command: Sequence[str]) -> bool:
    started = time.monotonic()
    environment = os.environ | {
        "BASE_URL": base,
        "MODEL": MODEL,
        "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks the internet
        "HF_HUB_OFFLINE": "1",
        "SCHEMATHESIS_HOOKS": str(HERE / "fuzz_hooks.py"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    result = subprocess.run(
        [part.format(base=base) for part in command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    passed = result.returncode == 0
    print(f"{name}: {'passed' if passed else 'FAILED'} in {time.monotonic() - started:.0f} s", flush=True)
    if not passed:
        print(f"exit status {result.returncode}\n{result.stdout[-6000:]}")
    return passed


def main(names: Sequence[str]) -> int:
    chosen = {name: pair for name, pair in CLIENTS.items() if not names or name in names}
    passed = []
    for server in (REAL, EXACT, SHORT, FAKE):
        theirs = {name: client for name, (theirs, client) in chosen.items() if theirs is server}
        if theirs:
            with serving(server) as base:
                passed += [run(name, base, client) for name, client in theirs.items()]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
