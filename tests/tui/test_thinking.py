from __future__ import annotations

import pytest

from mlxserve.tui.thinking import split_thinking


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", "", False)),
        ("plain", ("", "plain", False)),
        ("<thi", ("", "", True)),
        ("  <think>a", ("a", "", True)),
        ("<think>a</think>\n\nb", ("a", "b", False)),
        ("opened in the prompt</think>b", ("opened in the prompt", "b", False)),
        ("a <think> later", ("", "a <think> later", False)),
        ("<b", ("", "<b", False)),
        ("\n", ("", "", True)),
        ("<think>a</think>b</think>c", ("a", "b</think>c", False)),
    ],
)
def test_split(text: str, expected: tuple[str, str, bool]) -> None:
    assert split_thinking(text) == expected


def test_a_growing_answer_only_ever_grows() -> None:
    """Once a character of the answer is shown it stays: the terminal appends."""
    text = " <think>Six <b> sevens</think>\n It is <think>42</think>."
    shown = ""
    for end in range(len(text) + 1):
        answer = split_thinking(text[:end]).answer
        assert answer.startswith(shown)
        shown = answer
    assert shown == "It is <think>42</think>."
