"""``mlxserve kv-demo``: the block manager by hand, with its tables, reference counts and cache after each step."""

from __future__ import annotations

import argparse
import cmd
import sys
from collections.abc import Callable

from mlxserve.config import EngineConfig
from mlxserve.engine.kv_manager import PagedKVManager
from mlxserve.engine.sequence import RequestState, Sequence, make_choices
from mlxserve.errors import ConfigError
from mlxserve.types import Request, SamplingParams

TOUR = """\
add a 1 2 3 4 5 6
add b 1 2 3 4 9
fork a c
grow a 7 8 9
free a
add d 1 2 3 4 5 6 7 8 1
free b
free c
free d
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", type=int, default=8, metavar="N", help="blocks in the pool (default: 8)")
    parser.add_argument("--block-size", type=int, default=4, metavar="N", help="tokens a block holds (default: 4)")
    parser.add_argument("--no-cache", action="store_true", help="without the prefix cache")
    parser.add_argument("--tour", action="store_true", help="show a prepared series of steps")


def run(args: argparse.Namespace) -> int:
    if args.blocks < 1:
        raise ConfigError("--blocks", args.blocks, "must be at least 1")
    EngineConfig(block_size=args.block_size)  # says what is wrong with a block size
    demo = KVDemo(PagedKVManager(args.blocks, args.block_size, not args.no_cache))
    if args.tour:
        for line in TOUR.splitlines():
            print(f"> {line}")
            demo.onecmd(line)
    else:
        demo.use_rawinput = sys.stdin.isatty()
        demo.prompt = "> " if demo.use_rawinput else ""
        demo.cmdloop()
    return 0


class KVDemo(cmd.Cmd):
    """Reads steps and does them to a real KVManager; every step ends with ``check`` and a picture of the state."""

    intro = "Steps: add NAME TOKEN..., grow NAME TOKEN..., fork NAME NEW, free NAME, show, quit. Tokens are numbers."

    def __init__(self, kv: PagedKVManager) -> None:
        super().__init__()
        self._kv = kv
        self._sequences: dict[str, Sequence] = {}

    def do_add(self, line: str) -> None:
        """add NAME TOKEN...: a prompt; what the cache has of it is shared, the rest is computed."""
        self._do(line, self._add)

    def do_grow(self, line: str) -> None:
        """grow NAME TOKEN...: decoded tokens; a full block is published."""
        self._do(line, self._grow)

    def do_fork(self, line: str) -> None:
        """fork NAME NEW: a second sequence over the same blocks; the last, partial one is copied."""
        self._do(line, self._fork)

    def do_free(self, line: str) -> None:
        """free NAME: gives the blocks back; published ones stay cached until they are taken."""
        self._do(line, self._free)

    def do_show(self, line: str) -> None:
        """show: the tables and the pool."""
        self._show()

    def do_quit(self, line: str) -> bool:
        """quit"""
        return True

    do_EOF = do_quit

    def emptyline(self) -> bool:
        return False

    def default(self, line: str) -> None:
        print(f"there is no step {line.split()[0]!r}; help lists them")

    def _do(self, line: str, step: Callable[[str, list[str]], str | None]) -> None:
        name, *words = line.split() or [""]
        try:
            trouble = step(name, words)
        except ValueError:
            trouble = "tokens are whole numbers"
        if trouble:
            print(trouble)
            return
        self._kv.check()
        self._show()

    def _add(self, name: str, words: list[str]) -> str | None:
        if not name or name in self._sequences or not words:
            return "add needs a new name and at least one token"
        request = Request(request_id=name, prompt=tuple(map(int, words)), params=SamplingParams(seed=0))
        [seq] = make_choices(RequestState(request, 0.0), first_number=0, limit=1 << 20, stop_ids=frozenset())
        hit = self._kv.match(seq)
        if not self._kv.allocate(seq, len(seq.tokens), hit):
            return f"{len(seq.tokens)} tokens do not fit: {self._kv.available} blocks can be taken"
        self._sequences[name] = seq
        self._computed(seq)
        print(f"{hit.tokens} of {len(seq.tokens)} tokens were cached")
        return None

    def _grow(self, name: str, words: list[str]) -> str | None:
        seq = self._sequences.get(name)
        tokens = [int(word) for word in words]
        if seq is None or not tokens:
            return "grow needs the name of a sequence and at least one token"
        if not self._kv.allocate(seq, len(seq.tokens) + len(tokens)):
            return f"{len(tokens)} more tokens do not fit: {self._kv.available} blocks can be taken"
        for token in tokens:
            seq.append(token)
        self._computed(seq)
        return None

    def _fork(self, name: str, words: list[str]) -> str | None:
        parent = self._sequences.get(name)
        if parent is None or len(words) != 1 or words[0] in self._sequences:
            return "fork needs the name of a sequence and a new name"
        [child] = make_choices(parent.state, first_number=0, limit=1 << 20, stop_ids=frozenset())
        child.tokens = parent.tokens[:]
        copies = self._kv.fork(parent, child)
        if copies is None:
            return "no block can be taken for the copy"
        child.scheduled, child.computed = parent.scheduled, parent.computed
        self._sequences[words[0]] = child
        for copy in copies:
            print(f"block {copy.source} is copied to {copy.target}")
        return None

    def _free(self, name: str, words: list[str]) -> str | None:
        seq = self._sequences.pop(name, None)
        if seq is None:
            return "free needs the name of a sequence"
        self._kv.free(seq)
        return None

    def _computed(self, seq: Sequence) -> None:
        seq.scheduled = seq.computed = seq.target = len(seq.tokens)
        self._kv.publish(seq)

    def _show(self) -> None:
        for name, seq in self._sequences.items():
            size = self._kv.block_size
            blocks = [
                f"{block}:{list(seq.tokens[i * size : (i + 1) * size])}" for i, block in enumerate(seq.block_table)
            ]
            print(f"  {name}: {' '.join(blocks)}")
        states = ("free" if s == 0 else "cached" if s == 255 else f"refs {s}" for s in self._kv.states())
        print("  pool: " + ", ".join(f"{block} {state}" for block, state in enumerate(states)))
        used = self._kv.total - self._kv.available + self._kv.cached
        print(f"  used {used} (cached {self._kv.cached}) + free {self._kv.total - used} = {self._kv.total}")
