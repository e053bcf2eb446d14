"""The composition root, and the offline Python API.

The one place that puts a checkpoint, a backend, the engine and the text side together; it decides nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from mlxserve.backends import get_backend
from mlxserve.backends.base import Backend, LoadedModel
from mlxserve.config import EngineConfig, ModelConfig, model_from_environment
from mlxserve.engine.core import Engine
from mlxserve.engine.kv_manager import PagedKVManager
from mlxserve.errors import ContextLengthExceeded, GenerationFailed
from mlxserve.formats.checkpoint import Checkpoint, open_checkpoint
from mlxserve.formats.quantize import quantized, requantised
from mlxserve.loader import checkpoint_dtype, load_model
from mlxserve.models.families import model_spec
from mlxserve.runner import DeviceRunner, device_thread
from mlxserve.text.load import load_text
from mlxserve.text.processor import TextProcessor
from mlxserve.types import Delta, FinishReason, ModelInfo, Request, SamplingParams, TokenLogprob, Usage

Progress = Callable[[int, int], None]  # tensors read so far, tensors in all
Notify = Callable[[str], None]  # told what takes long, in words for the user
Prompt = str | Sequence[int]
Conversation = Sequence[Mapping[str, Any]]  # OpenAI messages

_SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class Completion:
    """One choice of one prompt."""

    prompt_index: int
    index: int  # of the choice, below n
    text: str
    token_ids: tuple[int, ...]  # with the end-of-sequence or stop token, which is not in the text
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Assembly:
    """A loaded model behind an engine, with its text side."""

    checkpoint: Checkpoint
    model: LoadedModel[Any, Any]
    backend: Backend[Any, Any]
    runner: DeviceRunner[Any, Any]
    core: Engine
    text: TextProcessor
    info: ModelInfo


def open_model(model: ModelConfig) -> Checkpoint:
    """The checkpoint that ``model`` names, fetched from the hub if need be, and quantised as asked for when it is read.

    Raises CheckpointError.
    """
    if "/" not in model.model or Path(model.model).exists():
        checkpoint = open_checkpoint(model.model)
    else:
        from mlxserve.hub import Hub  # the hub's library takes half a second to import

        checkpoint = Hub().open_model(model.model)
    return quantized_as_asked(checkpoint, model)


def quantized_as_asked(checkpoint: Checkpoint, model: ModelConfig) -> Checkpoint:
    """The checkpoint as --quant and --group-size say. Raises CheckpointError."""
    if model.quant == "none":
        return checkpoint
    return quantized(checkpoint, 4 if model.quant == "int4" else 8, model.group_size)


def choose_backend(
    checkpoint: Checkpoint, model: ModelConfig, engine: EngineConfig, notify: Notify | None = None
) -> Backend[Any, Any]:
    """What ``assemble`` loads the checkpoint on. Raises ConfigError, and CheckpointError as ``model_spec`` does."""
    return get_backend(
        model.backend,
        model.dtype,
        checkpoint_dtype(checkpoint.config),
        attention=model.attention,
        deterministic=engine.deterministic,
        cpu_weights=model.cpu_weights,
        spec=lambda: model_spec(checkpoint.config, engine.max_model_len),
        metal=model.metal,
        notify=notify,
    )


def assemble(
    model: ModelConfig, engine: EngineConfig, progress: Progress | None = None, notify: Notify | None = None
) -> Assembly:
    """Loads a model and builds the engine over it. Raises CheckpointError and ConfigError."""
    checkpoint = open_model(model)
    text = load_text(checkpoint.tokenizer, checkpoint.eos_token_ids)
    if notify is not None and (warning := requantised(checkpoint)) is not None:
        notify(warning)
    backend = choose_backend(checkpoint, model, engine, notify)
    device = device_thread()
    loaded = device.submit(load_model, checkpoint, backend, engine.max_model_len, progress).result()
    spec = loaded.spec
    runner = DeviceRunner(loaded, backend, device, engine)
    core = Engine(
        runner,
        engine,
        eos_token_ids=text.tokenizer.eos_token_ids,
        max_model_len=spec.max_model_len,
        vocab_size=spec.vocab,
        kv=None if loaded.paged else PagedKVManager(runner.num_blocks, engine.block_size, False, sharing=False),
    )
    info = ModelInfo(
        name=checkpoint.name,
        quantization=checkpoint.source.quantization,
        backend=backend.name,
        dtype=backend.dtype,
        vocab_size=spec.vocab,
        max_model_len=spec.max_model_len,
        block_size=engine.block_size,
        num_blocks=runner.num_blocks,
        max_num_seqs=engine.max_num_seqs,
        eos_token_ids=text.tokenizer.eos_token_ids,
        default_sampling=_default_sampling(checkpoint.generation_config),
        prefix_cache=engine.prefix_caching and loaded.paged,
    )
    return Assembly(checkpoint, loaded, backend, runner, core, text, info)


def _default_sampling(generation_config: Mapping[str, Any]) -> dict[str, float]:
    """What the model's authors recommend, where the checkpoint has it."""
    return {
        name: generation_config[name]
        for name in _SAMPLING_DEFAULTS
        if isinstance(generation_config.get(name), int | float)
    }


class LLM:
    """A model in this process, for use without a server. Not thread-safe.

    ``options`` are fields of ModelConfig and EngineConfig: ``LLM("smollm2-135m", backend="torch", max_num_seqs=4)``.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        of_model = {f.name: options.pop(f.name) for f in fields(ModelConfig) if f.name in options}
        config = ModelConfig(model=model or model_from_environment(), **of_model)
        self._assemble(assemble(config, EngineConfig(**options)))

    @classmethod
    def from_config(
        cls, model: ModelConfig, engine: EngineConfig, progress: Progress | None = None, notify: Notify | None = None
    ) -> LLM:
        """The same from settings that exist already."""
        self = cls.__new__(cls)
        self._assemble(assemble(model, engine, progress, notify))
        return self

    def _assemble(self, parts: Assembly) -> None:
        self.core = parts.core
        self.text = parts.text
        self.info = parts.info
        self._runner = parts.runner
        self._ids = (f"offline-{number}" for number in itertools.count())

    def chat_prompt(self, messages: Conversation, **options: Any) -> list[int]:
        """The token ids of a conversation in the model's chat template; ``options`` as TextProcessor.chat_prompt."""
        return self.text.chat_prompt(list(messages), fits=self._fits, **options)

    def submit(self, prompt: Prompt, params: SamplingParams) -> str:
        """Queues one prompt and returns its request id; ``core.step()`` computes. Raises BadRequest."""
        ids = self.text.completion_prompt(prompt, self._fits) if isinstance(prompt, str) else prompt
        params.check(self.info.vocab_size)
        request = Request(request_id=next(self._ids), prompt=tuple(ids), params=params)
        self.core.add(request)
        return request.request_id

    def _fits(self, least: int) -> None:
        """Refuses a prompt that has at least so many tokens, before it is encoded; ``core.add`` counts them."""
        longest = min(self.info.max_model_len, self.info.num_blocks * self.info.block_size)
        if least > longest:
            raise ContextLengthExceeded(
                f"The prompt has at least {least} tokens, but at most {longest} fit the model and the KV pool",
                param="prompt",
            )

    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | None = None, **sampling: Any
    ) -> list[Completion]:
        """Continues all prompts together. The completions are in the prompts' order, the choices of each together.

        ``sampling`` are SamplingParams' fields, in place of ``params``. Raises BadRequest, with nothing left running.
        """
        assert params is None or not sampling, "either params or single fields"
        return self._complete([prompts] if isinstance(prompts, str) else prompts, params or SamplingParams(**sampling))

    def chat(
        self, conversations: Sequence[Conversation], params: SamplingParams | None = None, **sampling: Any
    ) -> list[Completion]:
        """Answers all conversations together, each a list of OpenAI messages; otherwise like ``generate``."""
        assert params is None or not sampling, "either params or single fields"
        prompts = [self.chat_prompt(conversation) for conversation in conversations]
        return self._complete(prompts, params or SamplingParams(**sampling), starts_text=True)

    def stream(self, prompt: Prompt, params: SamplingParams, *, starts_text: bool = False) -> Iterator[str]:
        """The text of one prompt's first choice, piece by piece. Closing the iterator ends the computation.

        ``starts_text``: the output is a text of its own, as a chat answer is, and does not continue the prompt's.
        """
        request_id = self.submit(prompt, params)
        output = self.text.output(starts_text=starts_text)
        try:
            while self.core.has_work():
                for delta in self.core.step():
                    if (delta.request_id, delta.index) != (request_id, 0):
                        continue  # another choice, or the end of a request that was given up earlier
                    _raise_failure(delta)
                    if text := output.push(_text_tokens(delta)).text:
                        yield text
            if rest := output.finish():
                yield rest
        finally:
            self.core.abort(request_id)

    def _complete(
        self, prompts: Sequence[Prompt], params: SamplingParams, *, starts_text: bool = False
    ) -> list[Completion]:
        submitted: list[str] = []
        try:
            for prompt in prompts:
                submitted.append(self.submit(prompt, params))
            deltas = self._deltas(submitted)
        except BaseException:  # an interrupt too: what was queued must not run on in the next call
            for request_id in submitted:
                self.core.abort(request_id)
            raise
        return [
            self._fold(number, index, [delta for delta in deltas[request_id] if delta.index == index], starts_text)
            for number, request_id in enumerate(submitted)
            for index in range(params.n)
        ]

    def _deltas(self, request_ids: Sequence[str]) -> dict[str, list[Delta]]:
        """Steps until nothing is left to do."""
        deltas: dict[str, list[Delta]] = {request_id: [] for request_id in request_ids}
        while self.core.has_work():
            for delta in self.core.step():
                if delta.request_id in deltas:  # else the end of a request that was given up earlier
                    _raise_failure(delta)
                    deltas[delta.request_id].append(delta)
        return deltas

    def _fold(self, prompt_index: int, index: int, deltas: Sequence[Delta], starts_text: bool) -> Completion:
        """One choice's deltas as a whole."""
        output = self.text.output(starts_text=starts_text)
        text = "".join(output.push(_text_tokens(delta)).text for delta in deltas) + output.finish()
        last = deltas[-1]
        assert last.finish_reason is not None
        assert last.usage is not None
        entries = [entry for delta in deltas for entry in delta.logprobs or ()]
        return Completion(
            prompt_index=prompt_index,
            index=index,
            text=text,
            token_ids=tuple(token for delta in deltas for token in delta.token_ids),
            finish_reason=last.finish_reason,
            usage=last.usage,
            logprobs=tuple(entries) if any(delta.logprobs is not None for delta in deltas) else None,
            prompt_logprobs=deltas[0].prompt_logprobs,
        )

    def close(self) -> None:
        """Ends the runner's threads and frees the pool."""
        self._runner.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _text_tokens(delta: Delta) -> tuple[int, ...]:
    """The tokens of a delta that are text: a stop token at the end is not."""
    return delta.token_ids[:-1] if delta.finish_reason == "stop" else delta.token_ids


def _raise_failure(delta: Delta) -> None:
    if delta.finish_reason == "error":
        raise GenerationFailed(delta.error or "the computation failed")
