"""POST /tokenize, /detokenize and /apply-template: what the text processor does, without the engine."""

from __future__ import annotations

from msgspec import UNSET

from mlxserve.api.answers import PromptText, Tokens
from mlxserve.api.chat import template_arguments
from mlxserve.api.decode import BodyDecoder
from mlxserve.api.schemas import DetokenizeRequest, TemplateRequest, TokenizeRequest
from mlxserve.api.service import Service
from mlxserve.errors import BadRequest

_tokenize = BodyDecoder(TokenizeRequest)
_detokenize = BodyDecoder(DetokenizeRequest)
_template = BodyDecoder(TemplateRequest)


def tokenize(service: Service, raw: bytes) -> tuple[Tokens, tuple[str, ...]]:
    """The ids of a text or of a chat, as generation would see them. Raises MlxserveError."""
    decoded = _tokenize(raw, strict=service.settings.strict)
    body = decoded.body
    service.check_model(body.model)
    ids = _prompt_ids(body, service)
    tokenizer = service.text.tokenizer
    strings = [tokenizer.token_text(token) for token in ids] if body.return_token_strs else UNSET
    answer = Tokens(tokens=ids, count=len(ids), max_model_len=service.info.max_model_len, token_strs=strings)
    return answer, decoded.ignored


def _prompt_ids(body: TokenizeRequest, service: Service) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise BadRequest("Give either prompt or messages.", param="prompt")
    if body.prompt is not None:
        return service.text.completion_prompt(body.prompt)
    return service.text.chat_prompt(**template_arguments(body))


def detokenize(service: Service, raw: bytes) -> tuple[PromptText, tuple[str, ...]]:
    """The text of token ids; special tokens are no text. Raises MlxserveError."""
    decoded = _detokenize(raw, strict=service.settings.strict)
    service.check_model(decoded.body.model)
    tokens, limit = decoded.body.tokens, service.info.vocab_size - 1
    if tokens and max(tokens) > limit:
        raise BadRequest(f"tokens holds {max(tokens)}, but token ids are from 0 to {limit}", param="tokens")
    return PromptText(prompt=service.text.tokenizer.decode(tokens)), decoded.ignored


def apply_template(service: Service, raw: bytes) -> tuple[PromptText, tuple[str, ...]]:
    """A chat's prompt as text. Raises MlxserveError."""
    decoded = _template(raw, strict=service.settings.strict)
    service.check_model(decoded.body.model)
    rendered = service.text.render_chat(**template_arguments(decoded.body))
    return PromptText(prompt=rendered), decoded.ignored
