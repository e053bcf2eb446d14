"""Runs a model on a backend: the engine's ModelRunner.

One thread owns the device, and every job of every step runs there in order: a step is described, or already computed,
while the engine still deals with the one before. Knows no array library and nothing of requests.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic

from mlxserve.backends.base import Backend, KVPool, LoadedModel, Samples
from mlxserve.backends.batch import HostBatch, host_batch
from mlxserve.backends.sampling import SamplePlan, plan_samples
from mlxserve.config import EngineConfig
from mlxserve.engine.interfaces import Forward, ForwardBatch, ModelRunner, Pending, Sampled, SampleInputs
from mlxserve.models.ops import A, B
from mlxserve.models.spec import ModelSpec


def device_thread() -> ThreadPoolExecutor:
    """The thread that owns a device: the model is loaded and run on it, and nothing else touches its arrays."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")


class DeviceRunner(ModelRunner, Generic[A, B]):
    """Takes over ``device``, the thread that the model was loaded on.

    Raises ConfigError when the memory left does not hold a pool of two blocks a sequence.
    """

    def __init__(
        self, model: LoadedModel[A, B], backend: Backend[A, B], device: ThreadPoolExecutor, config: EngineConfig
    ) -> None:
        self.block_size = config.block_size
        self.num_blocks = pool_blocks(model.spec, backend, config)
        self._model = model
        self._backend = backend
        self._device = device
        pool = device.submit(backend.new_pool, model.spec, self.num_blocks, self.block_size).result()
        if model.library is None:
            device.submit(backend.warm_up, model.decoder, pool).result()
        self._pool: KVPool[A, B] | None = pool
        self._computing: Samples[A] | None = None  # the device thread's own: a step begun and not waited for

    def forward(self, batch: ForwardBatch, prev: Pending | None) -> _Forward[A, B]:
        assert prev is None or isinstance(prev, _Pending)
        assert prev is not None or not batch.late_tokens
        return _Forward(self, host_batch(batch, self.block_size), prev)

    def sample(self, forward: Forward, inputs: SampleInputs) -> _Pending[A, B]:
        assert isinstance(forward, _Forward)
        plan = plan_samples(inputs, self._model.spec.vocab)
        return _Pending(self, self._device.submit(self._sample, forward, plan))

    def close(self) -> None:
        self._device.shutdown(wait=True, cancel_futures=True)
        self._pool = None

    def _forward(self, host: HostBatch, prev: _Pending[A, B] | None) -> A:
        assert self._pool is not None, "closed"
        late = prev.samples.result().tokens if prev is not None and host.late_at.size else None
        busy = self._computing is not None
        return self._backend.forward(self._model.decoder, self._pool, host, late, busy)

    def _sample(self, forward: _Forward[A, B], plan: SamplePlan) -> Samples[A]:
        samples = self._backend.sample(forward.logits(), plan)
        self._computing = None if samples.result is not None else samples
        return samples

    def _finish(self, samples: Samples[A]) -> Sampled:
        if samples is self._computing:
            self._computing = None
        return samples.finish()


class _Forward(Forward, Generic[A, B]):
    def __init__(self, runner: DeviceRunner[A, B], host: HostBatch, prev: _Pending[A, B] | None) -> None:
        self._runner = runner
        self._host = host
        self._prev = prev
        self._future: Future[A] | None = None

    def start(self) -> None:
        assert self._future is None, "started twice"
        self._future = self._runner._device.submit(self._runner._forward, self._host, self._prev)

    def logits(self) -> A:
        """On the device's thread. Raises what the pass raised."""
        assert self._future is not None, "not started"
        return self._future.result()


class _Pending(Pending, Generic[A, B]):
    def __init__(self, runner: DeviceRunner[A, B], samples: Future[Samples[A]]) -> None:
        self.samples = samples
        self._runner = runner

    def wait(self) -> Sampled:
        samples = self.samples.result()
        if samples.result is not None:
            return samples.result
        return self._runner._device.submit(self._runner._finish, samples).result()


def pool_blocks(spec: ModelSpec, backend: Backend[A, B], config: EngineConfig) -> int:
    """Blocks of the pool: as asked for, or what the share of the free memory holds and the sequences can use."""
    if config.kv_blocks is not None:
        return config.kv_blocks
    useful = config.max_num_seqs * -(-spec.max_model_len // config.block_size)
    block_bytes = backend.bytes_per_block(spec, config.block_size)
    if not block_bytes:  # nothing of the model is in pages
        return useful
    budget = int(backend.free_memory() * config.memory_utilization)
    num_blocks = min(useful, budget // block_bytes)
    config.check_pool(num_blocks)
    return num_blocks
