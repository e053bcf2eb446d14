"""Deterministic prompt sets. Knows nothing of engines or tokenizers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

SYSTEM_PROMPT = (
    "You are a careful assistant. Answer in plain words, keep to what was asked, say so when you are not sure, and "
    "never invent a source. Use short sentences. When a list helps, make a list of at most five points. When numbers "
    "are asked for, give the unit. When code is asked for, give one block of code and one sentence about it. "
) * 3

_SHORT = (
    "What is the capital of {topic}?",
    "Name three things one should know about {topic}.",
    "Write one sentence about {topic}.",
    "Is {topic} worth a visit? Answer yes or no, and why.",
)
_LONG = (
    "Here are my notes about {topic}.\n{notes}\nSummarise them in two sentences.",
    "Read these records of {topic} and say which one stands out.\n{notes}",
)
_TOPICS = ("Norway", "Kenya", "Peru", "Japan", "Iceland", "Portugal", "Canada", "Vietnam", "Egypt", "Chile", "Nepal")
_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information"
).split()


@dataclass(frozen=True, slots=True)
class Instruction:
    """One conversation: a system prompt that all share, and a question of its own."""

    system: str
    user: str

    def messages(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]


def instructions(count: int) -> list[Instruction]:
    """Short and long instructions in turn, behind one system prompt; the same ones every time."""
    made = []
    for i in range(count):
        topic = _TOPICS[i % len(_TOPICS)]
        if i % 2:
            notes = "\n".join(f"- {words(random.Random(97 * i + j), 9)}" for j in range(12))
            user = _LONG[i // 2 % len(_LONG)].format(topic=topic, notes=notes)
        else:
            user = _SHORT[i // 2 % len(_SHORT)].format(topic=topic)
        made.append(Instruction(SYSTEM_PROMPT, f"{user} (question {i})"))
    return made


def words(rng: random.Random, count: int) -> str:
    """``count`` common words: about as many tokens in any vocabulary."""
    return " ".join(rng.choices(_WORDS, k=count))


def unique_prompts(lengths: Sequence[int], shared_share: float, seed: int, run: str = "") -> list[str]:
    """A prompt of about each length, in tokens. The first ``shared_share`` of each is the same text; the rest begins
    with a tag of its own, so that no more than that can come from a prefix cache. ``run``, a name of this run, begins
    every prompt, so that nothing comes from a run before it."""
    rng = random.Random(seed)
    shared = words(random.Random(seed + 1), max(lengths, default=0)).split()
    prompts = []
    for number, length in enumerate(lengths):
        common = shared[: round(length * shared_share)]
        tag = f"[{run}-{number:x}-{rng.getrandbits(32):08x}]"
        own = words(rng, max(1, length - len(common))).split()
        prompts.append(" ".join([f"[{run}]", *common, tag, *own] if common else [tag, *own]))
    return prompts
