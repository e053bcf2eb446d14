"""The real model against transformers on the same weights, in float32, through the whole engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from mlxserve import LLM, SamplingParams
from tests.e2e import oracle

NEAR_TIE = 1e-3  # logits closer than this may be ordered either way by another order of additions

PROMPTS = [
    "The capital of France is",
    "1 2 3 4 5 6",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Q: What is the boiling point of water?\nA:",
    "The quick brown fox",
    "A B C D E F G",
    "Dear Sir or Madam,\n\nI am writing to",
    "SELECT name, age FROM users WHERE",
    "Les sanglots longs des violons de l'automne",
    "🦙🦙🦙🦙🦙🦙🦙🦙🦙🦙",
    '{"name": "Ada", "born": 1815, "field":',
    "Ingredients:\n- 2 eggs\n- 100 g flour\n-",
    "The three laws of motion were formulated by",
    "x",
    "In 1969, Neil Armstrong",
    "<html>\n<head>\n<title>",
    "To be, or not to be, that is",
    "你好，世界。今天天气",
    "Summarise the following list.\n" + "".join(f"{i}. item number {i} costs {i * 7 % 13} coins\n" for i in range(60)),
]
ITEMS = " ".join(f"item {i} is {i * 7 % 13};" for i in range(69))


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("smollm2-135m", backend="torch", dtype="float32", cpu_weights="float32") as llm:
        yield llm


def assert_greedy(prompt: list[int], output: list[int]) -> None:
    """Every token is the oracle's best after what came before it; a near-tie counts for both."""
    logits = oracle.logits(prompt + output)[len(prompt) - 1 : -1]
    best = logits.max(-1).values
    chosen = logits[torch.arange(len(output)), torch.tensor(output)]
    wrong = (best - chosen > NEAR_TIE).nonzero().flatten().tolist()
    assert not wrong, f"token {wrong[0]} of {output} is not the best one"


def test_the_prompts_are_long_and_short(llm: LLM) -> None:
    lengths = [len(llm.text.completion_prompt(prompt)) for prompt in PROMPTS]
    assert len(PROMPTS) == 20
    assert max(lengths) > 600
    assert min(lengths) == 1


def test_tokens_are_the_oracles(llm: LLM) -> None:
    for prompt in PROMPTS:
        assert llm.text.completion_prompt(prompt) == oracle.oracle_tokenizer()(prompt)["input_ids"]


def test_greedy_equals_transformers(llm: LLM) -> None:
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=64, temperature=0, ignore_eos=True))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert len(output.token_ids) == 64
        assert_greedy(llm.text.completion_prompt(prompt), list(output.token_ids))


def test_a_wrong_token_would_be_seen(llm: LLM) -> None:
    prompt = llm.text.completion_prompt(PROMPTS[0])
    [output] = llm.generate([PROMPTS[0]], SamplingParams(max_tokens=8, temperature=0))
    spoilt = list(output.token_ids)
    spoilt[5] = (spoilt[5] + 1) % llm.info.vocab_size
    with pytest.raises(AssertionError, match="not the best one"):
        assert_greedy(prompt, spoilt)


def test_prompt_logprobs_equal_transformers(llm: LLM) -> None:
    ids = llm.text.completion_prompt(ITEMS)[:480]
    assert len(ids) == 480
    [output] = llm.generate([ids], SamplingParams(max_tokens=0, prompt_logprobs=0))
    want = oracle.logits(ids).log_softmax(-1)[torch.arange(479), torch.tensor(ids[1:])]
    assert output.prompt_logprobs is not None
    got = torch.tensor([entry.logprob for entry in output.prompt_logprobs[1:] if entry is not None])
    assert (got - want).abs().max() < 0.01


def test_mlx_equals_torch(llm: LLM) -> None:
    pytest.importorskip("mlx.core")
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    with LLM("smollm2-135m", backend="mlx", dtype="float32", max_model_len=512) as on_mlx:
        for output in on_mlx.generate(PROMPTS[:3], params):
            assert_greedy(llm.text.completion_prompt(PROMPTS[output.prompt_index]), list(output.token_ids))
            assert len(output.token_ids) == 24
