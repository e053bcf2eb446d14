"""What schemathesis is told of this API: bodies that can be answered, and what their answers must show.

Of the bodies that fit the schema nearly all are refused for what a schema cannot say (a token id past the vocabulary,
``stream_options`` without ``stream``, more tokens than the context holds), so that answers would go unchecked. The
valid ones are therefore cut to what the served model can do; those that break the schema stay as they are. Loaded by
the variable SCHEMATHESIS_HOOKS.
"""

from __future__ import annotations

import json
from typing import Any

import schemathesis

ANSWERED = ("POST /v1/chat/completions", "POST /v1/completions", "POST /apply-template", "POST /tokenize")
LEAST_SHARE = 0.8  # of the different valid requests to each of these that must have been answered
# Their values mean something only beside others, or end the request early; the rest of the schema's fields are kept.
DROPPED = ("best_of", "timeout", "suffix", "request_id", "continue_final_message", "chat_template_kwargs", "min_tokens")
MAX_TOKENS, MAX_TEXT, MAX_CHOICES, FIRST_IDS = 8, 16, 3, 200
LARGEST = {"max_tokens": MAX_TOKENS, "max_completion_tokens": MAX_TOKENS, "n": MAX_CHOICES}

Body = dict[str, Any]


@schemathesis.hook
def map_case(context: Any, case: Any) -> Any:
    if case.operation.label in ANSWERED and case.meta.generation.mode.is_positive and isinstance(case.body, dict):
        body = answerable(case.body)
        if case.operation.label.startswith("POST /v1"):
            body.setdefault("max_tokens", MAX_TOKENS)
        elif case.operation.label == "POST /tokenize" and ("prompt" in body) == ("messages" in body):
            body = {"prompt": "Hi"} | {name: value for name, value in body.items() if name != "messages"}
        case.body = body
    return case


def answerable(body: Body) -> Body:
    """The same request, as far as the served model can do it."""
    kept = {name: value for name, value in body.items() if name not in DROPPED and value is not None}
    for name, most in LARGEST.items():
        if name in kept:
            kept[name] = min(kept[name], most)
    if not kept.get("stream"):
        kept.pop("stream_options", None)
    if kept.get("logprobs") is not True:
        kept.pop("top_logprobs", None)
    if "stop" in kept:
        stop = [kept["stop"]] if isinstance(kept["stop"], str) else kept["stop"]
        kept["stop"] = [text[:MAX_TEXT] for text in stop if text][:4]
    if "stop_token_ids" in kept:
        kept["stop_token_ids"] = ids(kept["stop_token_ids"])
    if "logit_bias" in kept:
        kept["logit_bias"] = {str(token): bias for token, bias in enumerate(kept["logit_bias"].values())}
    if "messages" in kept:
        kept["messages"] = [message(each) for each in kept["messages"][:2]]
    if "prompt" in kept:
        kept["prompt"] = prompt(kept["prompt"])
    return kept


def ids(given: list[float]) -> list[int]:
    """An integral float is an integer to a schema."""
    return [int(token) % FIRST_IDS for token in given[:MAX_TEXT]]


def message(given: Body) -> Body:
    content = given.get("content")
    if isinstance(content, list):
        content = [{"type": "text", "text": str(part.get("text") or "")[:MAX_TEXT]} for part in content[:2]]
    elif content is not None:
        content = content[:MAX_TEXT]
    return {"role": given.get("role", "user"), "content": content or "Hi"}


def prompt(given: str | list[Any]) -> str | list[Any]:
    """One form throughout, as a prompt has to be."""
    if isinstance(given, str) or not given:
        return given[:MAX_TEXT] or "Hi"
    alike = [item for item in given if type(item) is type(given[0])][:MAX_CHOICES]
    if isinstance(alike[0], str):
        return [text[:MAX_TEXT] or "Hi" for text in alike]
    if isinstance(alike[0], list):
        return [ids(each) or [1] for each in alike]
    return ids(alike)


@schemathesis.check
class Answered:
    """A good share of the requests for text was answered: else the checks above have seen refusals only."""

    def __init__(self) -> None:
        self.answered: dict[str, dict[str, bool]] = {label: {} for label in ANSWERED}

    def after_response(self, ctx: Any, response: Any, case: Any) -> None:
        if case.operation.label in ANSWERED and case.meta.generation.mode.is_positive:
            asked = json.dumps(case.body, sort_keys=True, default=str)
            self.answered[case.operation.label][asked] = response.status_code == 200

    def after_run(self, ctx: Any) -> None:
        for label, answered in self.answered.items():
            said = f"{label}: {sum(answered.values())} of {len(answered)} valid requests answered"
            print(said)
            assert sum(answered.values()) >= LEAST_SHARE * max(1, len(answered)), said
