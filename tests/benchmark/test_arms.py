from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mlxserve.benchmark.arms import ARMS, BASELINES, Arm, Workload, run_arm
from mlxserve.benchmark.report import table
from mlxserve.cli import main
from mlxserve.config import EngineConfig, ModelConfig
from mlxserve.errors import MlxserveError
from tests.tiny import make_llama, make_tokenizer

NAMES = {arm.name: arm for arm in (*ARMS, *BASELINES)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = make_llama(tmp_path / "tiny", max_position_embeddings=4096)
    make_tokenizer(directory)
    return directory


def test_an_arm_changes_only_what_it_is_about() -> None:
    workload = Workload(model=ModelConfig(dtype="float32"), engine=EngineConfig(max_num_seqs=3))
    assert NAMES["transformers"].applied(workload) == workload
    changed = NAMES["mlx-reference"].applied(workload)
    assert (changed.model.backend, changed.model.metal.kernels, changed.model.dtype) == ("mlx", "off", "float32")
    assert not NAMES["no-prefix-cache"].applied(workload).engine.prefix_caching
    assert Workload.from_json(json.loads(json.dumps(asdict(changed)))) == changed


def test_what_an_arm_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxserve.benchmark.arms.APPLE", False)
    assert NAMES["metal"].missing(Path("m")) == "needs Apple Silicon"
    assert Arm(name="x", title="x", needs="no_such_library").missing(Path("m")) == "needs the library no_such_library"
    assert Arm(name="x", title="x", gguf_only=True).missing(Path("m")) == "reads .gguf files only"
    assert Arm(name="x", title="x", gguf_only=True).missing(Path("m.gguf")) is None
    assert "X: not run, needs it" in table([{"title": "X", "missing": "needs it"}])


def test_a_failed_process_is_named_with_its_last_words() -> None:
    with pytest.raises(MlxserveError, match=r"the arm x failed: .*nowhere"):
        run_arm(Arm(name="x", title="x", backend="torch"), Workload(model=ModelConfig(model="nowhere")), lambda n: None)


def test_an_interrupt_ends_the_arms_process(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Recorded(subprocess.Popen[str]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    def interrupt(count: int) -> None:
        assert started[0].poll() is None
        raise KeyboardInterrupt

    monkeypatch.setattr("mlxserve.benchmark.arms.subprocess.Popen", Recorded)
    engine = EngineConfig(max_num_seqs=1)  # the first prompt ends long before the last
    workload = Workload(model=ModelConfig(model=str(model)), engine=engine, num_prompts=8, max_tokens=400)
    with pytest.raises(KeyboardInterrupt):
        run_arm(NAMES["torch"], workload, interrupt)
    assert started[0].returncode == -signal.SIGKILL


def test_arms_are_compared_and_a_failed_one_does_not_stop_the_others(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Arm(name="broken", title="broken", runner="nobody")
    monkeypatch.setattr("mlxserve.cli.bench.arms.ARMS", (broken, NAMES["torch"], NAMES["metal"]))
    monkeypatch.setattr("mlxserve.benchmark.arms.APPLE", False)
    out = tmp_path / "out.json"
    flags = ["--model", str(model), "--num-prompts", "2", "--max-tokens", "3", "--baseline", "llama.cpp"]
    assert main(["bench", *flags, "--json", str(out)]) == 1
    printed = capsys.readouterr().out
    assert "broken: the arm broken failed: KeyError: 'nobody'" in printed
    assert "mlxserve, Metal kernels: not run, needs Apple Silicon" in printed
    assert "llama.cpp, multi-sequence: not run, " in printed
    rows = {row["name"]: row for row in json.loads(out.read_text())["arms"]}
    torch = rows["torch"]
    assert (torch["requests"], torch["failed"], torch["padded_tokens"]) == (2, 0, 0)
    assert torch["output_tokens_per_s"] == pytest.approx(6 / torch["duration_s"])
    assert torch["peak_memory_mib"] > 50


@pytest.mark.parametrize("name", ["transformers", "mlx-lm"])
def test_a_baseline_gives_every_prompt_its_tokens(name: str, model: Path) -> None:
    if missing := NAMES[name].missing(model):
        pytest.skip(missing)
    done: list[int] = []
    engine = EngineConfig(max_num_seqs=2)
    workload = Workload(model=ModelConfig(model=str(model)), engine=engine, num_prompts=3, max_tokens=3)
    result = run_arm(NAMES[name], workload, done.append)
    assert sum(done) == 3
    assert [record.output_tokens for record in result.records] == [3, 3, 3]
    assert all(record.end_s and record.prompt_tokens for record in result.records)
    if name == "transformers":  # the first batch's two prompts differ in length, the second batch has one
        first, second, _ = (record.prompt_tokens or 0 for record in result.records)
        assert result.padded_tokens == abs(first - second)
        assert result.records[0].first_token_s is None
    else:
        assert all(record.first_token_s for record in result.records)
