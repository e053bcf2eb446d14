"""Fields of other servers that change the output where they are honoured, and that this server does not have.

They are refused by name; a value that means the same as leaving the field out is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from mlxserve.errors import BadRequest

Fields = Mapping[str, msgspec.Raw]
Neutral = Callable[[object], bool]


def _is(*values: object) -> Neutral:
    return lambda value: any(type(value) is type(neutral) and value == neutral for neutral in values)


def _empty(value: object) -> bool:
    return value in ([], {}, "")


def _never(value: object) -> bool:
    return False


def _text_format(value: object) -> bool:
    return value == {"type": "text"}


UNSUPPORTED: Mapping[str, Neutral] = {
    # adapters and drafts
    "adapter": _never,
    "adapters": _empty,
    "lora": _never,
    "lora_adapter": _never,
    "lora_request": _never,
    "draft_model": _never,
    # constrained output
    "response_format": _text_format,
    "structured_outputs": _never,
    "guided_json": _never,
    "guided_regex": _never,
    "guided_choice": _never,
    "guided_grammar": _never,
    "guided_decoding_backend": _never,
    "guided_whitespace_pattern": _never,
    "grammar": _empty,
    "json_schema": _never,
    "regex": _never,
    "ebnf": _never,
    "structural_tag": _never,
    # tools
    "tools": _empty,
    "tool_choice": _is("none"),
    "functions": _empty,
    "function_call": _is("none"),
    # other samplers
    "use_beam_search": _is(False),
    "length_penalty": _is(1, 1.0),
    "typical_p": _is(1, 1.0),
    "tfs_z": _is(1, 1.0),
    "top_a": _is(0, 0.0),
    "mirostat": _is(0),
    "mirostat_mode": _is(0),
    "dry_multiplier": _is(0, 0.0),
    "xtc_probability": _is(0, 0.0),
    "dynatemp_range": _is(0, 0.0),
    "no_repeat_ngram_size": _is(0),
    "repeat_penalty": _is(1, 1.0),
    "allowed_token_ids": _never,
    "bad_words": _empty,
    "logits_processors": _empty,
    # other prompts and other answers
    "chat_template": _never,
    "prompt_embeds": _never,
    "prompt_logprobs": _never,
    "truncate_prompt_tokens": _never,
    "add_special_tokens": _never,
    "documents": _empty,
    "skip_special_tokens": _is(True),
    "include_stop_str_in_output": _is(False),
    "return_tokens_as_token_ids": _is(False),
    "return_token_ids": _is(False),
    "thinking_budget": _never,
    "modalities": _is(["text"]),
    "audio": _never,
    "web_search_options": _never,
    "verbosity": _is("medium"),
}


def refuse_unsupported(fields: Fields, known: frozenset[str]) -> None:
    """Raises BadRequest for a field of UNSUPPORTED that asks for something."""
    for name in fields.keys() & UNSUPPORTED.keys() - known:
        value = msgspec.json.decode(fields[name])
        if value is not None and not UNSUPPORTED[name](value):
            raise BadRequest(f"{name} is not supported by this server", param=name, code="unsupported_parameter")
