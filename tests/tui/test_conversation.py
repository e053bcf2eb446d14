"""Conversations on disk: one file each, whole or not at all, found again by any handle a person would use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxserve.errors import BadRequest
from mlxserve.tui.conversation import (
    Conversation,
    ConversationError,
    Message,
    Store,
    new_conversation,
    parse_sampling,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "kept")


def kept(store: Store, *texts: str) -> list[Conversation]:
    out = []
    for number, text in enumerate(texts):
        conversation = new_conversation()
        conversation.messages = [Message("user", text), Message("assistant", "ok")]
        store.save(conversation)
        conversation.updated = f"2026-01-01T00:00:{number:02}+00:00"
        path = store.path(conversation.id)
        path.write_text(json.dumps({**json.loads(path.read_text()), "updated": conversation.updated}))
        out.append(conversation)
    return out


def test_a_conversation_comes_back_as_it_was(store: Store) -> None:
    conversation = new_conversation("Be brief.", {"temperature": 0.2, "seed": 7})
    conversation.messages = [Message("user", "Grüße 🦙\nzwei"), Message("assistant", "<think>x</think>y", "z", "n")]
    store.save(conversation)
    assert store.load(conversation.id) == conversation
    assert conversation.title == "Grüße 🦙 zwei"
    assert [path.suffix for path in store.directory.iterdir()] == [".json"], "no half-written file is left"


def test_listing_and_finding(store: Store) -> None:
    old, new = kept(store, "About clocks", "About trains")
    assert [c.id for c in store.list()] == [new.id, old.id]
    for handle in ("", "1", "train", new.id):
        assert store.find(handle).id == new.id
    assert store.find("2").id == old.id
    with pytest.raises(ConversationError, match="No conversation matches 'boats'"):
        store.find("boats")
    with pytest.raises(ConversationError, match="No conversation in"):
        Store(store.directory / "none").find("")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"title": "x", "system": "", "sampling": {"temperature": 9}, "messages": [], "updated": ""}',
    ],
)
def test_a_damaged_file_is_one_clear_error_and_hides_no_other(store: Store, text: str) -> None:
    (good,) = kept(store, "fine")
    store.path("bad").write_text(text)
    with pytest.raises(ConversationError, match=r"bad\.json is no conversation"):
        store.load("bad")
    assert [c.id for c in store.list()] == [good.id]


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConversationError, match="cannot be kept in"):
        Store(tmp_path / "file").save(new_conversation())


def test_what_is_sent_has_no_reasoning_and_no_empty_answer() -> None:
    conversation = new_conversation("Be brief.")
    conversation.messages = [
        Message("user", "a"),
        Message("assistant", "<think>hm</think>b"),
        Message("user", "<think>mine</think>"),
        Message("assistant", ""),
    ]
    assert conversation.turns() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "<think>mine</think>"},
    ]
    assert conversation.last_user() == 2
    assert new_conversation().last_user() is None


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("heat", "1", "heat is none of temperature"),
        ("temperature", "hot", "temperature is 'hot', but must be a number"),
        ("temperature", "nan", "temperature is nan, but must be from 0 to 2"),
        ("temperature", "2.1", "must be from 0 to 2"),
        ("max_tokens", "1.5", "must be a whole number"),
        ("max_tokens", "0", "must be from 1"),
    ],
)
def test_bad_sampling_names_the_field_and_its_limits(name: str, text: str, match: str) -> None:
    with pytest.raises(BadRequest, match=match):
        parse_sampling(name, text)


@given(st.text(max_size=200))
def test_titles_are_one_short_line(text: str) -> None:
    from mlxserve.tui.conversation import _title

    title = _title(Conversation("x", messages=[Message("user", text)]))
    assert len(title) <= 60
    assert not set(title) & set("\r\n\t")
