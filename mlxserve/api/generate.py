"""The endpoints that generate text: a plan becomes a stream of frames, or one body folded from the same events.

Knows nothing of the fields of requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from starlette.types import Send

from mlxserve.api.endpoint import PostEndpoint
from mlxserve.api.events import Event, coalesce
from mlxserve.api.exchange import send_json, start
from mlxserve.api.frames import KEEP_ALIVE, Ending, error_event
from mlxserve.api.generation import Generation
from mlxserve.api.plan import Plan, Planner
from mlxserve.api.service import Service
from mlxserve.errors import GenerationFailed, MlxserveError

P = TypeVar("P")

_log = logging.getLogger(__name__)
_SCORED = 64  # tokens with log-probabilities that are rendered on the event loop
_FOLDED = 1024  # events that wait before an answer's choices are joined
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class GenerateEndpoint(PostEndpoint):
    """An ASGI app. Its client may leave in any state: what runs then ends within one step of the engine."""

    def __init__(self, service: Service, planner: Planner) -> None:
        super().__init__(service)
        self._planner = planner

    async def _answer(self, raw: bytes, send: Send) -> None:
        received = time.monotonic()
        service = self._service
        headers: dict[str, str] = {}
        try:
            plan = await service.offload(self._planner, service, raw, received)
            headers = {"x-request-id": plan.answer_id} | self._ignored(plan.ignored)
            generation = Generation(service.engine, service.text, plan.jobs, service.recorder, received)
            with service.in_flight(plan.answer_id, [job.request.request_id for job in plan.jobs]):
                async with generation:
                    first = await generation.take(service.settings.open_after_s if plan.stream else None)
                    if plan.stream:
                        await start(send, 200, b"text/event-stream; charset=utf-8", headers | _STREAM_HEADERS)
                        await self._stream(plan, generation, first, send)
                        return
                    body = await self._fold(plan, generation, first)
        except MlxserveError as error:
            await self._refuse(send, error, headers)
            return
        await send_json(send, 200, body, headers)

    async def _fold(self, plan: Plan, generation: Generation, events: list[Event]) -> bytes:
        limit = _FOLDED
        while not generation.finished:
            events += await generation.take()
            if len(events) > limit:
                events = coalesce(events)
                limit = 2 * len(events) + _FOLDED
        return await self._render(events, plan.shape.body, _ending(generation))

    async def _stream(self, plan: Plan, generation: Generation, events: list[Event], send: Send) -> None:
        """After the headers: a failure from here on is an error event, and the stream closes."""
        shape, settings = plan.shape, self._service.settings
        frames = shape.opening()
        try:
            while True:
                if len(events) > settings.coalesce_after:
                    events = coalesce(events)
                ending = _ending(generation) if generation.finished else None
                frames += await self._render(events, shape.frames, ending)
                if frames:
                    await send({"type": "http.response.body", "body": frames, "more_body": ending is None})
                if ending is not None:
                    return
                events = await generation.take(settings.keep_alive_s)
                frames = b"" if events else KEEP_ALIVE
        except Exception as error:  # headers are out: only the stream itself can tell the client
            known = error if isinstance(error, MlxserveError) else GenerationFailed("The server failed.")
            if known is not error:
                _log.exception("A stream failed")
            self._service.recorder.answered_error(known.status)
            await send({"type": "http.response.body", "body": error_event(known)})

    async def _render(self, events: list[Event], function: Callable[[list[Event], P], bytes], argument: P) -> bytes:
        """Many log-probabilities are written in a thread of the pool, the rest at once."""
        if sum(len(event.logprobs) for event in events if event.logprobs is not None) > _SCORED:
            return await self._service.offload(function, events, argument)
        return function(events, argument)


def _ending(generation: Generation) -> Ending:
    return Ending(generation.usage(), generation.cache_reports())
