"""What the endpoints share: the engine, the text processor, the settings, and the requests under way.

Knows nothing of the shapes of requests and answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from prometheus_client import CollectorRegistry

from mlxserve.api.metrics import EngineCollector, Recorder
from mlxserve.api.settings import ApiSettings
from mlxserve.engine.interfaces import AsyncEngine
from mlxserve.errors import BadRequest, ModelNotFound
from mlxserve.text.processor import TextProcessor
from mlxserve.types import ModelInfo

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger(__name__)
_REMEMBERED = 1000  # names of unknown fields, so that each is logged once and a client cannot fill the memory


class Service:
    """One per app; for the event loop's thread, except ``check_model``."""

    def __init__(self, engine: AsyncEngine, text: TextProcessor, info: ModelInfo, settings: ApiSettings) -> None:
        self.engine = engine
        self.text = text
        self.info = info
        self.settings = settings
        self.registry = CollectorRegistry()
        self.recorder = Recorder(self.registry)
        self.registry.register(EngineCollector(engine, info, self.recorder))
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="mlxserve-text")
        self._in_flight: dict[str, tuple[str, ...]] = {}
        self._logged: set[str] = set()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def offload(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs what takes long for a big input in a thread of the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def check_model(self, name: str | None) -> str:
        """The served name that a request means. Names are compared and nothing else: no file, no network.

        Raises ModelNotFound.
        """
        names = self.settings.served_names
        if name is None:
            return names[0]
        if name not in names:
            raise ModelNotFound(name if len(name) <= 100 else name[:100] + "...")
        return name

    @contextmanager
    def in_flight(self, answer_id: str, engine_ids: Sequence[str]) -> Iterator[None]:
        """Makes the answer's engine requests cancellable by its id. Raises BadRequest when the id is taken."""
        if answer_id in self._in_flight:
            raise BadRequest(f"request_id {answer_id!r} is in use by a request under way", param="request_id")
        self._in_flight[answer_id] = tuple(engine_ids)
        try:
            yield
        finally:
            del self._in_flight[answer_id]

    def cancel(self, answer_id: str) -> bool:
        """Ends an answer's engine requests; its choices then finish with "abort". False when it is not under way."""
        engine_ids = self._in_flight.get(answer_id)
        for engine_id in engine_ids or ():
            self.engine.abort(engine_id)
        return engine_ids is not None

    def report_ignored(self, names: Sequence[str]) -> None:
        """Logs each unknown field's name once."""
        for name in names:
            if name not in self._logged and len(self._logged) < _REMEMBERED:
                self._logged.add(name)
                _log.warning("Requests have a field that nothing reads: %.100r", name)
