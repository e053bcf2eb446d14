"""Concurrent chats over HTTP: conversations behind one system prompt, streamed by a server process of our own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence

import httpx

from bench.engines import MODEL, Timing
from mlxserve.benchmark.prompts import Instruction

SERVER_FLAGS = ("--model", MODEL, "--backend", "torch")


def chat_streams(base_url: str, conversations: Sequence[Instruction], tokens: int) -> tuple[Timing, int]:
    """All of them at once, ``tokens`` tokens each; the times as the client saw them, and the prompt tokens in all."""
    return asyncio.run(_chat_streams(base_url, conversations, tokens))


async def _chat_streams(base_url: str, conversations: Sequence[Instruction], tokens: int) -> tuple[Timing, int]:
    async with httpx.AsyncClient(base_url=base_url, timeout=600) as client:
        started = time.perf_counter()
        streams = await asyncio.gather(*(_stream(client, one, tokens) for one in conversations))
        total_s = time.perf_counter() - started
    assert all(produced == tokens for _, produced, _ in streams), "an answer ended early"
    first_s = max(first for first, _, _ in streams) - started
    return Timing(first_s, len(streams), total_s, len(streams) * tokens), sum(prompt for _, _, prompt in streams)


async def _stream(client: httpx.AsyncClient, conversation: Instruction, tokens: int) -> tuple[float, int, int]:
    """When the first token came, and how many tokens were produced and in the prompt."""
    body = {
        "model": MODEL,
        "messages": conversation.messages(),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first_s = 0.0
    usage = {"completion_tokens": 0, "prompt_tokens": 0}
    async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                first_s = first_s or time.perf_counter()
                usage = json.loads(line[6:]).get("usage") or usage
    return first_s, usage["completion_tokens"], usage["prompt_tokens"]
