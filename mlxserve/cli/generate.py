"""``mlxserve generate``: one prompt in, its completion on stdout."""

from __future__ import annotations

import argparse
import sys

from mlxserve.cli.options import add_engine_options, add_model_options, engine_config, model_config
from mlxserve.cli.progress import notice
from mlxserve.llm import LLM
from mlxserve.types import SamplingParams


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-p", "--prompt", required=True, help="the text to continue, or with --chat the message")
    parser.add_argument("--chat", action="store_true", help="answer the prompt as a chat message")
    parser.add_argument("--max-tokens", type=int, metavar="N", default=256, help="default: 256")
    parser.add_argument("--temperature", type=float, metavar="T", default=0.0, help="default: 0, greedy")
    parser.add_argument("--top-p", type=float, metavar="P", default=1.0)
    parser.add_argument("--top-k", type=int, metavar="K", default=0, help="0: no limit")
    parser.add_argument("--seed", type=int, metavar="N", help="default: another one each time")
    parser.add_argument("--no-stream", action="store_true", help="print the text once it is complete")
    add_model_options(parser)
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    params = SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        seed=args.seed,
    )
    with LLM.from_config(model_config(args), engine_config(args), notify=notice) as llm:
        prompt = llm.chat_prompt([{"role": "user", "content": args.prompt}]) if args.chat else args.prompt
        pieces = llm.stream(prompt, params, starts_text=args.chat)
        if args.no_stream:
            pieces = iter(["".join(pieces)])
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
        print()
    return 0
