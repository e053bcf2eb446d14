"""GGUF files of every architecture and type against transformers on the checkpoint that they were made from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind
from safetensors.numpy import load_file, save_file

from mlxserve.errors import CheckpointError
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.formats.gguf import read_gguf
from mlxserve.formats.gguf_architectures import ARCHITECTURES
from mlxserve.formats.gguf_blocks import EXPANDED
from mlxserve.models.families import model_spec
from tests.formats.gguf_files import draw_blocks
from tests.models import gguf_files
from tests.models.gguf_matrix import CASES, NARROW
from tests.models.harness import BACKENDS, Logits, Model, difference, oracle
from tests.models.matrix import Case, make

TOLERANCE = 1e-4
Subject = tuple[Case, Path, list[Logits]]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.id)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    case = request.param
    path = make(case, tmp_path_factory.mktemp(case.family))
    return case, path, oracle(path, case.token_ids())


def plain(family: str) -> Case:
    return next(case for case in CASES if case.id == family)


# Rows of 256, as the K-quants need; this architecture's rows stay in their order.
QWEN2_WIDE = Case(
    "qwen2", config={"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 2}
)
MIXED = {
    "attn_q": Kind.Q4_K,
    "attn_k": Kind.Q5_K,
    "attn_v": Kind.Q6_K,
    "ffn_gate": Kind.Q4_K,
    "ffn_up": Kind.Q5_0,
    "ffn_down": Kind.Q6_K,
    "token_embd": Kind.Q6_K,
}


def quantised(kind: Kind | None, tmp_path: Path) -> tuple[Path, list[Logits]]:
    """A file whose matrices are drawn in ``kind`` (None: MIXED, else Q5_K), and transformers' logits with the values
    that the ``gguf`` package says they have."""
    path = make(QWEN2_WIDE, tmp_path)
    values: dict[bytes, np.ndarray] = {}

    def quantize(name: str, tensor: np.ndarray) -> tuple[np.ndarray, Kind]:
        own = kind or MIXED.get(name.split(".")[-2], Kind.Q5_K)
        raw = draw_blocks(own, tensor.shape, 2 / 16, seed=len(values))
        values[tensor.tobytes()] = gguf.dequantize(raw, own)
        return raw, own

    file = gguf_files.write(path, tmp_path / "m.gguf", quantize)
    stored = load_file(path / "model.safetensors")
    save_file(
        {name: values.get(t.tobytes(), t) for name, t in stored.items()}, path / "model.safetensors", {"format": "pt"}
    )
    return file, oracle(path, QWEN2_WIDE.token_ids())


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_equal_transformers(subject: Subject, backend: str, tmp_path: Path) -> None:
    """NUM-09: names, row order, norms and every number of the metadata."""
    case, path, want = subject
    model = Model(
        open_checkpoint(str(gguf_files.write(path, tmp_path / "m.gguf"))), backend, max_model_len=case.max_model_len
    )
    for mode in ("prefill", "mixed"):
        assert difference(model.logits(case.token_ids(), mode), want) < TOLERANCE, mode


def test_every_architecture_has_a_case() -> None:
    assert {gguf_files.ARCHITECTURES[case.family] for case in CASES} == set(ARCHITECTURES)


@pytest.mark.parametrize("family", ["llama", "granite", "smollm3", "qwen2", "qwen3", "olmo2"])
def test_rows_in_the_other_order_would_be_seen(family: str, tmp_path: Path) -> None:
    """The control: permuted where the converter does not, or left alone where it does."""
    case = plain(family)
    path = make(case, tmp_path)
    wrong = gguf_files.ARCHITECTURES[family] not in gguf_files.INTERLEAVED
    model = Model(open_checkpoint(str(gguf_files.write(path, tmp_path / "m.gguf", permute=wrong))), "torch")
    assert difference(model.logits(case.token_ids(), "prefill"), oracle(path, case.token_ids())) > 100 * TOLERANCE


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text"])
def test_norms_stored_without_the_one_would_be_seen(family: str, tmp_path: Path) -> None:
    case = plain(family)
    path = make(case, tmp_path)
    model = Model(open_checkpoint(str(gguf_files.write(path, tmp_path / "m.gguf", norm_offset=False))), "torch")
    assert difference(model.logits(case.token_ids(), "prefill"), oracle(path, case.token_ids())) > 100 * TOLERANCE


# Its reader leaves some numbers at their defaults; with these it overlooks nothing.
GEMMA_DEFAULTS = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
READ_BY_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "llama": NARROW,
    "mistral": NARROW,
    "qwen2": NARROW,
    "qwen3": {"head_dim": 128},
    "qwen3_moe": {"head_dim": 128, "moe_intermediate_size": 768},
    "gemma2": GEMMA_DEFAULTS,
    "gemma3_text": {**GEMMA_DEFAULTS, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    "phi3": NARROW,
}


@pytest.mark.parametrize("family", READ_BY_TRANSFORMERS)
def test_transformers_reads_the_file_likewise(family: str, tmp_path: Path) -> None:
    """The second oracle: its own reader of GGUF files, for the architectures that it has."""
    import torch
    from transformers import AutoModelForCausalLM

    own = {"rope_parameters": None, **READ_BY_TRANSFORMERS[family]}
    case = replace(plain(family), config={**plain(family).config, **own})
    path = gguf_files.write(make(case, tmp_path), tmp_path / "m.gguf")
    other = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="m.gguf", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.inference_mode():
        want = [other(torch.tensor([ids])).logits[0].numpy() for ids in case.token_ids()]
    assert difference(Model(open_checkpoint(str(path)), "torch").logits(case.token_ids(), "prefill"), want) < TOLERANCE


TYPES = (Kind.Q2_K, Kind.Q3_K, Kind.Q4_0, Kind.Q4_K, Kind.Q5_0, Kind.Q5_1, Kind.Q5_K, Kind.Q6_K, Kind.Q8_0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [*TYPES, None], ids=lambda kind: kind.name if kind else "mixed")
def test_quantised_logits_equal_transformers_on_the_same_values(
    kind: Kind | None, backend: str, tmp_path: Path
) -> None:
    """One type throughout, and as in a Q4_K_M or Q5_K_M file other ones within q|k|v and gate|up."""
    file, want = quantised(kind, tmp_path)
    checkpoint = open_checkpoint(str(file))
    assert difference(Model(checkpoint, backend).logits(QWEN2_WIDE.token_ids(), "prefill"), want) < TOLERANCE
    if kind is None:
        assert checkpoint.source.quantization == "q5_k, q6_k as float"
    else:
        assert checkpoint.source.quantization == kind.name.lower() + " as float" * (kind in EXPANDED)


def test_a_model_is_made_of_values_that_matter(tmp_path: Path) -> None:
    """The control: the scales of one projection doubled."""
    file, want = quantised(Kind.Q4_K, tmp_path)
    info = read_gguf(file).tensors["blk.1.attn_k.weight"]
    data = bytearray(file.read_bytes())
    for at in range(info.start, info.start + info.nbytes, 144):
        data[at : at + 2] = (2 * np.frombuffer(data[at : at + 2], np.float16)).astype(np.float16).tobytes()
    file.write_bytes(data)
    model = Model(open_checkpoint(str(file)), "torch")
    assert difference(model.logits(QWEN2_WIDE.token_ids(), "prefill"), want) > 100 * TOLERANCE


def refused(tmp_path: Path, family: str, **metadata: float | str) -> str:
    path = make(plain(family), tmp_path)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(str(gguf_files.write(path, tmp_path / "m.gguf", **metadata)))
    return caught.value.message


@pytest.mark.parametrize(
    ("family", "metadata", "named"),
    [
        ("olmo2", {"attention__sliding_window": 8}, "olmo2.attention.sliding_window is 8"),
        ("qwen2", {"attention__sliding_window": 8}, "qwen2.attention.sliding_window is 8"),
        ("qwen3", {"attention__value_length": 16}, "qwen3.attention.value_length is 16"),
        ("qwen3", {"rope__dimension_count": 64}, "64 of 32 rotary dimensions"),
        ("gemma3_text", {"attention__sliding_window_pattern": 4}, "sliding_window_pattern is 4, but only 6"),
        ("qwen2", {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}, "original_context_length"),
        (
            "qwen2",
            {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__yarn_attn_factor": 0.5},
            "yarn_attn_factor is 0.5, but only 1.0 is supported",
        ),
        ("qwen2", {"rope__scaling__type": "longrope"}, "RoPE scaling 'longrope'"),
    ],
)
def test_what_a_family_does_not_have_is_named(
    family: str, metadata: dict[str, Any], named: str, tmp_path: Path
) -> None:
    assert named in refused(tmp_path, family, **metadata)


def test_the_window_of_a_file_that_has_one_as_long_as_its_context_hides_nothing(tmp_path: Path) -> None:
    path = make(plain("qwen2"), tmp_path)
    file = gguf_files.write(path, tmp_path / "m.gguf", attention__sliding_window=128)
    spec = model_spec(open_checkpoint(str(file)).config)
    assert {layer.attention.window for layer in spec.layers} == {None}


@pytest.mark.parametrize(("family", "layers"), [("gemma2", 46), ("gemma3_text", 62)])
def test_gemma_27b_scales_its_queries_by_another_width(family: str, layers: int, tmp_path: Path) -> None:
    path = make(plain(family), tmp_path)
    small = model_spec(open_checkpoint(str(gguf_files.write(path, tmp_path / "s.gguf"))).config)
    config = json.loads((path / "config.json").read_text()) | {"num_hidden_layers": layers}
    (path / "config.json").write_text(json.dumps(config))
    large = model_spec(open_checkpoint(str(gguf_files.write(path, tmp_path / "l.gguf"))).config)
    assert (small.layers[0].attention.scale, large.layers[0].attention.scale) == (32**-0.5, 16**-0.5)
    assert open_checkpoint(str(tmp_path / "s.gguf")).config["torch_dtype"] == "bfloat16"


def test_gemma_3_without_a_window_has_full_attention_everywhere(tmp_path: Path) -> None:
    path = make(plain("gemma3_text"), tmp_path)
    config = json.loads((path / "config.json").read_text()) | {"sliding_window": None}
    (path / "config.json").write_text(json.dumps(config))
    spec = model_spec(open_checkpoint(str(gguf_files.write(path, tmp_path / "m.gguf"))).config)
    assert {layer.attention.window for layer in spec.layers} == {None}
