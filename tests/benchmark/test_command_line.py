"""``mlxserve bench serve`` and ``sweep`` as a user runs them; bad values are one sentence before anything is sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxserve.cli import main
from tests.benchmark.foreign_server import ForeignServer, served
from tests.e2e.server import running_server
from tests.tiny import make_llama, make_tokenizer


def test_results_requests_and_picture_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, lines, picture = tmp_path / "o.json", tmp_path / "r.jsonl", tmp_path / "p.png"
    with served(ForeignServer()) as url:
        flags = ["--url", url, "--num-prompts", "4", "--output-tokens", "3", "--slo-ttft", "1000", "--slo-e2e", "0.1"]
        files = ["--json", str(out), "--requests", str(lines), "--plot", str(picture)]
        assert main(["bench", "serve", *flags, *files]) == 0
    assert "good req/s" in capsys.readouterr().out
    written = json.loads(out.read_text())
    assert written["result"]["requests"] == 4
    assert written["result"]["goodput_per_s"] == 0
    assert written["machine"]["cores"]
    assert [json.loads(line)["output_tokens"] for line in lines.read_text().splitlines()] == [3] * 4
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_trace_chooses_who_fails_and_why_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.jsonl"
    entries = [{"prompt": "429 a", "max_tokens": 1}, {"prompt": "429 b", "max_tokens": 1, "at": 0.1}]
    trace.write_text("\n".join(map(json.dumps, entries)))
    with served(ForeignServer()) as url:
        assert main(["bench", "serve", "--url", url, "--trace", str(trace)]) == 1
        assert "2 failed: HTTP 429: " in capsys.readouterr().out


def test_a_sweep_has_a_row_a_level(tmp_path: Path) -> None:
    out, picture = tmp_path / "o.json", tmp_path / "p.png"
    server = ForeignServer()
    with served(server) as url:
        flags = ["--url", url, "--num-prompts", "4", "--output-tokens", "2", "--levels", "1,4"]
        assert main(["bench", "sweep", *flags, "--json", str(out), "--plot", str(picture)]) == 0
    one, four = json.loads(out.read_text())["results"]
    assert (one["concurrency"], four["concurrency"]) == (1, 4)
    assert four["output_tokens_per_s"] > 2 * one["output_tokens_per_s"]
    assert len({body["prompt"] for body in server.bodies}) == 8
    assert picture.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["sweep", "--levels", "1,x"], "--levels is 1,x"),
        (["sweep", "--levels", "0"], "--levels is 0"),
        (["serve", "--num-prompts", "0"], "--num-prompts is 0"),
        (["serve", "--concurrency", "-1"], "--concurrency is -1"),
        (["serve", "--rate", "nan"], "--rate is nan"),
        (["serve", "--timeout", "0"], "--timeout is 0"),
        (["serve", "--shared-prefix", "1"], "--shared-prefix is 1"),
        (["serve", "--prompt-tokens", "9-3"], "--prompt-tokens is 9-3"),
        (["serve", "--slo-ttft", "0"], "--slo-ttft is 0"),
        (["serve", "--url", "localhost:8000"], "--url is localhost:8000"),
        (["serve", "--json", "no/such/place.json"], "--json is no/such/place.json"),
        (["serve", "--requests", "."], "--requests is ."),
        (["serve", "--plot", "picture.txt"], "--plot is picture.txt"),
        (["serve", "--trace", "no/such/trace"], "--trace is no/such/trace"),
        (["--num-prompts", "0"], "--num-prompts is 0"),
        (["--max-tokens", "0"], "--max-tokens is 0"),
        (["--model", "nowhere"], "nowhere"),
        (["--plot", "no/such/place.png"], "--plot is no/such/place.png"),
    ],
)
def test_bad_values_are_one_sentence(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *flags]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        "",
        "x",
        "[]",
        '{"prompt": "a"}',
        '{"prompt": 1, "max_tokens": 1}',
        '{"prompt": "a", "max_tokens": 0}',
        '{"prompt": "a", "max_tokens": 1, "at": -1}',
        '{"prompt": "a", "max_tokens": 1, "at": NaN}',
    ],
)
def test_a_bad_trace_is_one_sentence(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(line)
    assert main(["bench", "serve", "--trace", str(trace)]) == 2
    assert f"--trace is {trace}" in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "library"), [(["--plot", "p.png"], "matplotlib"), ([], "httpx")])
def test_the_extra_is_named_before_the_run(
    flags: list[str], library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mlxserve.cli.bench.outputs.importlib.util.find_spec", lambda name: None)
    assert main(["bench", "serve", *flags]) == 2
    assert f"needs {library}: pip install 'mlxserve[bench]'" in capsys.readouterr().err


def test_our_server_shares_what_it_is_told_to_and_nothing_else(tmp_path: Path) -> None:
    """The same seed twice: the second run finds nothing of the first in the prefix cache."""
    directory = make_llama(tmp_path / "tiny", max_position_embeddings=4096)
    make_tokenizer(directory)
    out = tmp_path / "o.json"
    flags = ["--num-prompts", "5", "--concurrency", "1", "--prompt-tokens", "100", "--output-tokens", "4"]
    shares = []
    with running_server("--model", str(directory), "--backend", "torch", "--kv-blocks", "600") as server:
        for extra in ([], [], ["--shared-prefix", "0.5"]):
            command = ["bench", "serve", "--url", server.base_url, *flags, "--ignore-eos", *extra, "--json", str(out)]
            assert main(command) == 0
            result = json.loads(out.read_text())["result"]
            assert result["failed"] == 0
            assert result["output_tokens_per_s"] == pytest.approx(20 / result["duration_s"])
            shares.append(result["cached_share"])
    assert shares[:2] == [0, 0]
    assert 0.25 < shares[2] <= 0.5  # of five prompts the first computes it
