"""POST /v1/completions: prompts -> a plan, events -> completions' frames and body."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import UNSET

from mlxserve.api.answers import CompletionAnswer, CompletionChoice, CompletionLogprobs
from mlxserve.api.decode import BodyDecoder
from mlxserve.api.events import Event, Job, coalesce
from mlxserve.api.frames import Ending, Head, Shape, encode, json_text
from mlxserve.api.logprobs import CompletionScores, Vocabulary
from mlxserve.api.plan import Plan, answer_id, now, usage_frames
from mlxserve.api.sampling import cap, check_length, sampling_params, stop_strings
from mlxserve.api.schemas import CompletionRequest
from mlxserve.api.service import Service
from mlxserve.errors import BadRequest
from mlxserve.types import ModelInfo, Request, SamplingParams

_MAX_TOKENS = 16  # OpenAI's default

_decode = BodyDecoder(CompletionRequest)

Prompt = str | list[int]


def plan_completion(service: Service, raw: bytes, arrival_s: float) -> Plan:
    """Raises MlxserveError."""
    decoded = _decode(raw, strict=service.settings.strict)
    body, info, caps = decoded.body, service.info, service.settings.caps
    model = service.check_model(body.model)
    params = _params(body, service)
    stop, usage = stop_strings(body, caps), usage_frames(body)
    prompts = _prompts(body)
    cap("prompt", len(prompts), caps.prompts, " prompts")
    cap("n", len(prompts) * params.n, caps.choices, " choices in all prompts together")
    name = answer_id(body, "cmpl")
    jobs = []
    for number, prompt in enumerate(prompts):
        ids = _token_ids(prompt, body.suffix, service, params)
        check_length(len(ids), params, info, "prompt")
        request = Request(
            request_id=name if len(prompts) == 1 else f"{name}/{number}",
            prompt=tuple(ids),
            params=params,
            salt=body.cache_salt or "",
            priority=body.priority or 0,
            timeout_s=body.timeout,
            cache_report=body.cache_report or False,
            arrival_s=arrival_s,
        )
        echo = _text(prompt, service) if body.echo else None
        jobs.append(Job(request=request, first_index=number * params.n, echo=echo, stop=stop))
    head = Head(id=name, created=now(), model=model, choices=len(prompts) * params.n, usage=usage)
    shape = CompletionShape(head, service.text.tokenizer)
    return Plan(answer_id=name, jobs=tuple(jobs), shape=shape, stream=body.stream or False, ignored=decoded.ignored)


def _params(body: CompletionRequest, service: Service) -> SamplingParams:
    if body.echo and body.suffix:
        raise BadRequest("echo and suffix are both given, but only one can be", param="echo")
    return sampling_params(
        body,
        service.info,
        service.settings.caps,
        max_tokens=_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
    )


def _prompts(body: CompletionRequest) -> list[Prompt]:
    """The four forms of ``prompt`` as a list of texts or of token ids. Raises BadRequest for an empty or mixed one."""
    given = body.prompt
    if isinstance(given, str):
        return [given]
    if not given:
        raise BadRequest("prompt is an empty list", param="prompt")
    ids = [item for item in given if isinstance(item, int)]
    if len(ids) == len(given):
        return [ids]
    prompts: list[Prompt] = [item for item in given if not isinstance(item, int)]
    if len(prompts) != len(given) or len({type(prompt) for prompt in prompts}) > 1:
        raise BadRequest("prompt mixes texts and token ids", param="prompt")
    return prompts


def _token_ids(prompt: Prompt, suffix: str | None, service: Service, params: SamplingParams) -> list[int]:
    fits = partial(check_length, params=params, info=service.info, param="prompt", or_more=True)
    if isinstance(prompt, list):
        _check_ids(prompt, service.info)
        ids = prompt
    else:
        ids = service.text.completion_prompt(prompt, fits)
    if suffix:
        fits(len(ids) + service.text.tokenizer.least_tokens(suffix))
        return _fill_in_the_middle(ids, suffix, service)
    if not ids:
        raise BadRequest("prompt is empty", param="prompt")
    return ids


def _check_ids(ids: list[int], info: ModelInfo) -> None:
    largest = max(ids, default=0)
    if largest >= info.vocab_size:
        raise BadRequest(f"prompt holds {largest}, but token ids are from 0 to {info.vocab_size - 1}", param="prompt")


def _fill_in_the_middle(ids: list[int], suffix: str, service: Service) -> list[int]:
    tokenizer = service.text.tokenizer
    if tokenizer.fim_tokens is None:
        raise BadRequest("suffix is not supported: the model has no fill-in-the-middle tokens", param="suffix")
    before, after, middle = tokenizer.fim_tokens
    return [before, *ids, after, *tokenizer.encode(suffix), middle]


def _text(prompt: Prompt, service: Service) -> str:
    return prompt if isinstance(prompt, str) else service.text.tokenizer.decode(prompt)


class CompletionShape(Shape):
    """A completion's answer."""

    def __init__(self, head: Head, vocabulary: Vocabulary) -> None:
        super().__init__(head, "text_completion")
        self._starts = [self._prefix + b'{"index":%d,"text":' % index for index in range(head.choices)]
        self._scores = [CompletionScores(vocabulary) for _ in range(head.choices)]

    def opening(self) -> bytes:
        return b""

    def frame(self, event: Event, end: bytes) -> bytes:
        if not (event.text or event.logprobs or event.finish_reason):
            return b""
        scores = b"null" if event.logprobs is None else encode(self._scores[event.index].take(event))
        reason = b"null" if event.finish_reason is None else b'"' + event.finish_reason.encode() + b'"'
        start = self._starts[event.index]
        return start + json_text(event.text) + b',"logprobs":' + scores + b',"finish_reason":' + reason + b"}" + end

    def body(self, events: Sequence[Event], ending: Ending) -> bytes:
        groups: dict[int, list[Event]] = {}
        for event in coalesce(events):  # an echo stays apart from what was generated
            groups.setdefault(event.index, []).append(event)
        head = self._head
        return encode(
            CompletionAnswer(
                id=head.id,
                created=head.created,
                model=head.model,
                choices=[self._choice(group) for _, group in sorted(groups.items())],
                usage=ending.usage_info(),
                cache_report=ending.cache_reports or UNSET,
            )
        )

    def _choice(self, group: list[Event]) -> CompletionChoice:
        last, take = group[-1], self._scores[group[-1].index].take
        assert last.finish_reason is not None
        return CompletionChoice(
            index=last.index,
            text="".join([event.text for event in group]),
            logprobs=_joined([scores for event in group if (scores := take(event)) is not None]),
            finish_reason=last.finish_reason,
        )


def _joined(parts: list[CompletionLogprobs]) -> CompletionLogprobs | None:
    if not parts:
        return None
    return CompletionLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[logprob for part in parts for logprob in part.token_logprobs],
        top_logprobs=[top for part in parts for top in part.top_logprobs],
        text_offset=[offset for part in parts for offset in part.text_offset],
    )
