"""Every row of the matrix against transformers, on both backends, in every way of cutting its tokens into steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from mlxserve import loader
from mlxserve.errors import CheckpointError
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.models.families import FAMILIES, model_spec
from mlxserve.models.spec import AttentionSpec, MlpSpec, ModelSpec, MoeSpec, Rope
from tests.models import document
from tests.models.harness import BACKENDS, MODES, Logits, Model, difference, oracle
from tests.models.matrix import BASE, CASES, Case, make

TOLERANCE = 1e-4

Subject = tuple[Case, Path, list[Logits]]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.id)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    case = request.param
    path = make(case, tmp_path_factory.mktemp(case.family))
    return case, path, oracle(path, case.token_ids())


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_equal_transformers(subject: Subject, backend: str) -> None:
    """NUM-06: prompts shorter and longer than the window of 8, at once, in chunks and token by token."""
    case, path, want = subject
    model = Model(open_checkpoint(str(path)), backend, max_model_len=case.max_model_len)
    for mode in MODES:
        assert difference(model.logits(case.token_ids(), mode), want) < TOLERANCE, mode


Change = Callable[[ModelSpec], ModelSpec]


def attention(change: Callable[[AttentionSpec], AttentionSpec]) -> Change:
    return lambda m: replace(m, layers=tuple(replace(y, attention=change(y.attention)) for y in m.layers))


def mlp(change: Callable[[MlpSpec | MoeSpec], MlpSpec | MoeSpec]) -> Change:
    return lambda m: replace(m, layers=tuple(replace(y, mlp=change(y.mlp)) for y in m.layers))


def base_doubled(rope: Rope | None) -> Rope | None:
    n = len(rope.inv_freq) if rope else 0
    return rope and replace(rope, inv_freq=tuple(f * 2 ** (-i / n) for i, f in enumerate(rope.inv_freq)))


def every_layer_rotated(m: ModelSpec) -> ModelSpec:
    rope = m.layers[0].attention.rope
    return attention(lambda a: replace(a, rope=rope))(m)


CONTROLS: dict[str, Change] = {
    "rope base doubled": attention(lambda a: replace(a, rope=base_doubled(a.rope))),
    "rope factor": attention(lambda a: replace(a, rope=a.rope and replace(a.rope, factor=a.rope.factor * 1.02))),
    "no layer without positions": every_layer_rotated,
    "window one wider": attention(lambda a: replace(a, window=a.window and a.window + 1)),
    "window one narrower": attention(lambda a: replace(a, window=a.window and a.window - 1)),
    "no attention soft cap": attention(lambda a: replace(a, soft_cap=None)),
    "no logit soft cap": lambda m: replace(m, logit_soft_cap=None),
    "attention scale": attention(lambda a: replace(a, scale=a.scale * 1.02)),
    "norm offset": lambda m: replace(m, norm_offset=m.norm_offset + 0.02),
    "embedding scale": lambda m: replace(m, embedding_scale=m.embedding_scale * 1.05),
    "residual scale": lambda m: replace(m, residual_scale=m.residual_scale * 1.02),
    "logit scale": lambda m: replace(m, logit_scale=m.logit_scale * 1.02),
    "expert weights' sum": mlp(lambda y: replace(y, normalise=not y.normalise) if isinstance(y, MoeSpec) else y),
    "one expert less": mlp(lambda y: replace(y, top_k=y.top_k - 1) if isinstance(y, MoeSpec) else y),
    "other activation": mlp(lambda y: replace(y, act="silu" if y.act == "gelu_tanh" else "gelu_tanh")),
}


def test_checks_can_fail(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: one thing of the spec is changed at a time, and the comparison must show it."""
    case, path, want = subject
    changed = 0
    for name, change in CONTROLS.items():
        spec = loader.model_spec(open_checkpoint(str(path)).config, case.max_model_len)
        broken_spec = change(spec)
        if broken_spec == spec:
            continue
        changed += 1
        with monkeypatch.context() as patch:
            patch.setattr(loader, "model_spec", lambda *_, wrong=broken_spec: wrong)
            broken = Model(open_checkpoint(str(path)), "torch")
        assert difference(broken.logits(case.token_ids(), "prefill"), want) > 10 * TOLERANCE, name
    assert changed >= 8


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen3", "model.layers.2.self_attn.k_norm.weight"),
        ("qwen2", "model.layers.1.self_attn.q_proj.bias"),
        ("gemma2", "model.layers.0.pre_feedforward_layernorm.weight"),
        ("olmo2", "model.layers.3.self_attn.q_norm.weight"),
        ("phi3", "model.layers.0.self_attn.qkv_proj.weight"),
        ("mixtral", "model.layers.1.block_sparse_moe.experts.5.w2.weight"),
        ("qwen3_moe", "model.layers.1.mlp.experts.7.up_proj.weight"),
    ],
)
def test_a_tensor_of_the_family_is_never_replaced(family: str, name: str, tmp_path: Path) -> None:
    """NUM-07: one norm, bias or expert is missing, and the error names it."""
    path = make(next(c for c in CASES if c.id == family), tmp_path)
    tensors = load_file(path / "model.safetensors")
    del tensors[name]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=re.escape(name)):
        Model(open_checkpoint(str(path)), "torch")


@pytest.mark.parametrize(
    ("family", "change", "named"),
    [
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("gemma2", {"layer_types": ["full_attention", "chunked_attention"] * 2}, "layer_types"),
        ("gemma2", {"layer_types": ["full_attention"]}, "layer_types"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3_text", {"hidden_activation": "gelu_tanh_fast"}, "hidden_activation"),
        ("qwen3_moe", {"num_experts_per_tok": 0}, "num_experts_per_tok"),
        ("qwen3_moe", {"num_experts_per_tok": 99}, "num_experts_per_tok"),
        ("mixtral", {"num_local_experts": "8"}, "num_local_experts"),
        ("mistral", {"sliding_window": -1}, "sliding_window"),
        ("mistral", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("granite", {"logits_scaling": 0}, "logits_scaling"),
    ],
)
def test_an_option_that_is_not_supported_is_named(family: str, change: dict[str, Any], named: str) -> None:
    case = next(c for c in CASES if c.id == family)
    with pytest.raises(CheckpointError, match=named):
        model_spec({**BASE, "model_type": family, **case.config, **change})


def test_mistral_without_the_key_has_a_window() -> None:
    spec = model_spec({**BASE, "model_type": "mistral"})
    assert {layer.attention.window for layer in spec.layers} == {4096}


def test_every_family_is_in_the_matrix() -> None:
    assert {case.family for case in CASES} == set(FAMILIES)
    assert all(any(c.family == family and not c.option and c.models for c in CASES) for family in FAMILIES)


def test_the_document_is_the_matrix() -> None:
    assert document.DOCUMENT.read_text() == document.text(), "run: python -m tests.models.document"
