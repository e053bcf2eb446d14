"""Every attention implementation of the torch backend against the definition, and against each other in an engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mlxserve import LLM
from mlxserve.backends.batch import HostBatch
from mlxserve.backends.torch import tiles
from mlxserve.backends.torch.attention_demo import Toy, compare
from mlxserve.cli import main
from mlxserve.errors import ConfigError
from tests.tiny import make_llama


@pytest.mark.parametrize("window", [None, 5, 70])
@pytest.mark.parametrize("soft_cap", [None, 3.0])
@pytest.mark.parametrize(("context", "chunk", "block_size"), [(1, 1, 16), (65, 17, 4), (200, 32, 16), (130, 130, 128)])
def test_all_equal_the_definition(
    window: int | None, soft_cap: float | None, context: int, chunk: int, block_size: int
) -> None:
    spec = replace(Toy().spec, window=window, soft_cap=soft_cap)
    rows = compare(Toy(sequences=3, context=context, chunk=chunk, block_size=block_size, spec=spec))
    assert [row.name for row in rows] == ["reference", "batched", "paged"]
    assert all(row.difference < 2e-6 for row in rows), rows


def test_a_query_that_sees_one_key_less_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the tiles of "paged" and "reference" are shifted, those of "batched" are not."""
    right = tiles._tiles

    def shifted(host: HostBatch) -> list[tiles.Tile]:
        return [replace(tile, positions=tile.positions - 1) for tile in right(host)]

    monkeypatch.setattr(tiles, "_tiles", shifted)
    assert compare(Toy())[1].difference > 1e-3


def test_an_engine_gives_the_same_text_with_each(tmp_path: Path) -> None:
    model = str(make_llama(tmp_path / "tiny"))
    texts = set()
    for kind in ("auto", "paged", "batched", "reference"):
        with LLM(model, backend="torch", attention=kind, kv_blocks=64, prefill_chunk=16, max_num_seqs=4) as llm:
            made = llm.generate([list(range(5, 45)), [7, 8]], max_tokens=12, temperature=0, ignore_eos=True)
        texts.add(tuple(one.token_ids for one in made))
    assert len(texts) == 1


def test_mlx_chooses_its_own() -> None:
    with pytest.raises(ConfigError, match="--attention-backend is paged"):
        LLM("smollm2-135m", backend="mlx", attention="paged")


def test_the_demo_prints_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attn-demo", "--context", "40"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == ["attention", "reference", "batched", "paged"]
    assert main(["attn-demo", "--context", "0"]) == 2
