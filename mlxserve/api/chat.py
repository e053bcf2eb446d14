"""POST /v1/chat/completions: messages -> a plan, events -> chat's frames and body."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import UNSET

from mlxserve.api.answers import ChatAnswer, ChatAnswerMessage, ChatChoice
from mlxserve.api.decode import BodyDecoder
from mlxserve.api.events import Event, Job, coalesce
from mlxserve.api.frames import Ending, Head, Shape, encode, json_text
from mlxserve.api.logprobs import Vocabulary, chat_logprobs
from mlxserve.api.plan import Plan, answer_id, now, usage_frames
from mlxserve.api.sampling import check_length, sampling_params, stop_strings
from mlxserve.api.schemas import ChatRequest, TemplateRequest, TokenizeRequest
from mlxserve.api.service import Service
from mlxserve.errors import BadRequest
from mlxserve.types import Request

_decode = BodyDecoder(ChatRequest)


def plan_chat(service: Service, raw: bytes, arrival_s: float) -> Plan:
    """Raises MlxserveError."""
    decoded = _decode(raw, strict=service.settings.strict)
    body, info, caps = decoded.body, service.info, service.settings.caps
    model = service.check_model(body.model)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    params = sampling_params(body, info, caps, max_tokens=max_tokens, logprobs=_logprobs(body))
    stop = stop_strings(body, caps)
    usage = usage_frames(body)
    fits = partial(check_length, params=params, info=info, param="messages", or_more=True)
    prompt = service.text.chat_prompt(**template_arguments(body), fits=fits)
    check_length(len(prompt), params, info, "messages")
    name = answer_id(body, "chatcmpl")
    request = Request(
        request_id=name,
        prompt=tuple(prompt),
        params=params,
        salt=body.cache_salt or "",
        priority=body.priority or 0,
        timeout_s=body.timeout,
        cache_report=body.cache_report or False,
        arrival_s=arrival_s,
    )
    job = Job(request=request, stop=stop, starts_text=not body.continue_final_message)
    head = Head(id=name, created=now(), model=model, choices=params.n, usage=usage)
    shape = ChatShape(head, service.text.tokenizer)
    return Plan(answer_id=name, jobs=(job,), shape=shape, stream=body.stream or False, ignored=decoded.ignored)


def _logprobs(body: ChatRequest) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise BadRequest("top_logprobs is allowed only when logprobs is true", param="top_logprobs")
    return None


def template_arguments(body: ChatRequest | TokenizeRequest | TemplateRequest) -> dict[str, Any]:
    """The arguments of TextProcessor.chat_prompt and render_chat."""
    kwargs = dict(body.chat_template_kwargs or {})
    if isinstance(body, ChatRequest) and body.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", body.reasoning_effort)
    return {
        "messages": body.messages,
        "add_generation_prompt": body.add_generation_prompt,
        "continue_final_message": body.continue_final_message or False,
        "kwargs": kwargs,
    }


class ChatShape(Shape):
    """A chat's answer."""

    def __init__(self, head: Head, vocabulary: Vocabulary) -> None:
        super().__init__(head, "chat.completion.chunk")
        self._vocabulary = vocabulary
        self._starts = [self._prefix + b'{"index":%d,"delta":' % index for index in range(head.choices)]

    def opening(self) -> bytes:
        role = b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        return b"".join([start + role + self._end for start in self._starts])

    def frame(self, event: Event, end: bytes) -> bytes:
        start, frame = self._starts[event.index], b""
        if event.text or event.logprobs:
            scores = b"null" if event.logprobs is None else encode(chat_logprobs(event, self._vocabulary))
            content = b'{"content":' + json_text(event.text) + b'},"logprobs":'
            frame = start + content + scores + b',"finish_reason":null}' + self._end
        if event.finish_reason is None:
            return frame
        return frame + start + b'{},"logprobs":null,"finish_reason":"' + event.finish_reason.encode() + b'"}' + end

    def body(self, events: Sequence[Event], ending: Ending) -> bytes:
        choices = []
        for event in sorted(coalesce(events), key=lambda event: event.index):
            assert event.finish_reason is not None
            choices.append(
                ChatChoice(
                    index=event.index,
                    message=ChatAnswerMessage(content=event.text),
                    logprobs=chat_logprobs(event, self._vocabulary),
                    finish_reason=event.finish_reason,
                )
            )
        head = self._head
        return encode(
            ChatAnswer(
                id=head.id,
                created=head.created,
                model=head.model,
                choices=choices,
                usage=ending.usage_info(),
                cache_report=ending.cache_reports or UNSET,
            )
        )
