"""The offline API over a tiny random checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxserve import LLM, SamplingParams
from mlxserve.errors import BadRequest, CheckpointError, ConfigError, ContextLengthExceeded
from tests.tiny import make_llama


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    directory = tmp_path_factory.mktemp("llm") / "tiny"
    make_llama(directory)
    with LLM(str(directory), backend="torch", max_num_seqs=2, kv_blocks=32, block_size=4) as llm:
        yield llm


def test_completions_are_in_the_prompts_order(llm: LLM) -> None:
    prompts = [[5, 6, 7], [8], [9, 10]]
    together = llm.generate(prompts, max_tokens=6, temperature=0, ignore_eos=True)
    assert [one.prompt_index for one in together] == [0, 1, 2]
    alone = [llm.generate([prompt], max_tokens=6, temperature=0, ignore_eos=True)[0] for prompt in prompts]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert [one.usage.completion_tokens for one in together] == [6, 6, 6]


def test_choices_of_one_prompt_stay_together(llm: LLM) -> None:
    made = llm.generate([[5, 6], [7, 8]], max_tokens=8, n=3, seed=3, ignore_eos=True)
    assert [(one.prompt_index, one.index) for one in made] == [(p, i) for p in range(2) for i in range(3)]
    assert len({one.token_ids for one in made[:3]}) > 1


def test_logprobs_come_with_the_tokens(llm: LLM) -> None:
    [one] = llm.generate([[5, 6, 7]], max_tokens=4, temperature=0, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    assert one.logprobs is not None
    assert [entry.token_id for entry in one.logprobs] == list(one.token_ids)
    assert all(entry.top[0][0] == entry.token_id for entry in one.logprobs)
    assert one.prompt_logprobs is not None
    assert one.prompt_logprobs[0] is None
    assert len(one.prompt_logprobs) == 3


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([], {}, "empty"),
        ([10**9], {}, "10\\d* *"),
        ([-1], {}, "-1"),
        ([5], {"max_tokens": 10**6}, "1000000"),
        ([5], {"temperature": -1}, "temperature is -1"),
    ],
)
def test_a_bad_prompt_leaves_nothing_running(llm: LLM, prompt: list[int], params: dict[str, int], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        llm.generate([[5, 6], prompt], **params)
    [after] = llm.generate([[5, 6]], max_tokens=3, temperature=0, ignore_eos=True)
    assert len(after.token_ids) == 3
    assert llm.core.stats().requests_active == 0


def test_a_text_whose_size_alone_is_too_much_is_not_tokenised(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(llm.text.tokenizer), "encode", lambda *args, **kwargs: pytest.fail("it was tokenised"))
    with pytest.raises(ContextLengthExceeded, match=r"at least \d+ tokens, but at most \d+ fit"):
        llm.generate(["x" * 1_000_000], max_tokens=1)


def test_a_stream_that_is_closed_early_leaves_nothing_running(llm: LLM) -> None:
    stream = llm.stream([5, 6, 7], SamplingParams(max_tokens=40, temperature=0, ignore_eos=True))
    next(stream)
    stream.close()
    [after] = llm.generate([[5, 6]], max_tokens=3, temperature=0, ignore_eos=True)
    assert len(after.token_ids) == 3
    stats = llm.core.stats()
    assert stats.kv_blocks_used == stats.kv_blocks_cached


def test_a_model_or_a_length_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        LLM(str(tmp_path / "nothing"))
    make_llama(tmp_path / "tiny")
    with pytest.raises(ConfigError, match="max-model-len"):
        LLM(str(tmp_path / "tiny"), backend="torch", max_model_len=10**6)
    with pytest.raises(ConfigError, match="block-size"):
        LLM(str(tmp_path / "tiny"), backend="torch", block_size=3)
