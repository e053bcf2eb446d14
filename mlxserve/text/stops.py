"""Finds stop strings in a text that arrives in pieces. Knows nothing of tokens.

An Aho-Corasick automaton: its state is the longest end of the text that begins a stop string, so its depth is just
what has to be held back, and each character costs the same however the text was cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple


class Match(NamedTuple):
    """A stop string that ends at offset ``end`` of the text just fed and is ``length`` characters long."""

    end: int
    length: int


class _Node:
    __slots__ = ("children", "depth", "fail", "match")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.children: dict[str, _Node] = {}
        self.fail: _Node = self
        self.match = 0  # length of the longest stop string that ends here


def _automaton(stops: Iterable[str]) -> _Node:
    root = _Node(0)
    for stop in stops:
        assert stop, "an empty stop string matches everywhere"
        node = root
        for char in stop:
            node = node.children.setdefault(char, _Node(node.depth + 1))
        node.match = node.depth
    queue = deque(root.children.values())
    for node in queue:
        node.fail = root
    while queue:
        node = queue.popleft()
        for char, child in node.children.items():
            fail = node.fail
            while char not in fail.children and fail is not root:
                fail = fail.fail
            child.fail = fail.children.get(char, root)
            child.match = child.match or child.fail.match
            queue.append(child)
    return root


class StopMatcher:
    """The stop strings of one choice, and how far into them its text has come."""

    __slots__ = ("_node", "_root")

    def __init__(self, stops: Iterable[str]) -> None:
        self._root = self._node = _automaton(stops)

    @property
    def held(self) -> int:
        """How many characters at the end of the text may yet turn out to belong to a stop string."""
        return self._node.depth

    def feed(self, text: str, *, armed: bool = True) -> Match | None:
        """The match that ends first (of those, the longest), or None. Not ``armed``: what ends here does not count."""
        root, node = self._root, self._node
        if node is root and root.children.keys().isdisjoint(text):
            return None
        for end, char in enumerate(text, 1):
            while char not in node.children and node is not root:
                node = node.fail
            node = node.children.get(char, root)
            if node.match and armed:
                self._node = root
                return Match(end, node.match)
        while not node.children and node is not root:
            node = node.fail  # a whole stop string that did not count: only its end may begin another
        self._node = node
        return None
