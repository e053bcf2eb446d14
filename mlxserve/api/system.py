"""The endpoints that ask nothing of the model: what is served, how it is doing, and cancelling."""

from __future__ import annotations

import msgspec
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from mlxserve.api.answers import Cancelled, Health, ModelCard, ModelList
from mlxserve.api.metrics import flat
from mlxserve.api.schemas import ChatRequest, CompletionRequest
from mlxserve.api.service import Service
from mlxserve.api.unsupported import UNSUPPORTED
from mlxserve.errors import MlxserveError, ModelNotFound


class UnknownRequest(MlxserveError):
    """No request of this id is under way."""

    status = 404
    type = "invalid_request_error"


class JsonResponse(Response):
    """A msgspec type, or plain data, as JSON."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return msgspec.json.encode(content)


class SystemEndpoints:
    """Plain request handlers over one service."""

    def __init__(self, service: Service, started: int) -> None:
        """``started``: seconds since the epoch, shown as the models' ``created``."""
        self._service = service
        self._started = started

    def _card(self, name: str) -> ModelCard:
        length = self._service.info.max_model_len
        return ModelCard(id=name, created=self._started, owned_by="mlxserve", max_model_len=length)

    async def models(self, request: Request) -> Response:
        return JsonResponse(ModelList(data=[self._card(name) for name in self._service.settings.served_names]))

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name not in self._service.settings.served_names:
            raise ModelNotFound(name[:100])
        return JsonResponse(self._card(name))

    async def health(self, request: Request) -> Response:
        """503 and why when the engine has not been heard of in the last seconds."""
        service = self._service
        info, reason = service.info, service.engine.healthy()
        answer = Health(
            status="ok" if reason is None else "unavailable",
            reason=reason,
            model=service.settings.served_names[0],
            quant=info.quantization,
            block_size=info.block_size,
            kv_blocks_total=info.num_blocks,
            max_batch=info.max_num_seqs,
            last_step_age_s=round(service.engine.stats().last_step_age_s, 3),
        )
        return JsonResponse(answer, status_code=200 if reason is None else 503)

    def _flat(self) -> dict[str, object]:
        service = self._service
        return flat(service.engine.stats(), service.settings.served_names[0], service.recorder)

    async def stats(self, request: Request) -> Response:
        return JsonResponse(self._flat())

    async def metrics(self, request: Request) -> Response:
        """Prometheus text; the flat JSON of /stats for who accepts only that."""
        accept = request.headers.get("accept", "")
        if "application/json" in accept and "text/" not in accept and "*/*" not in accept:
            return JsonResponse(self._flat())
        encode, content_type = choose_encoder(accept)
        return Response(encode(self._service.registry), headers={"content-type": content_type})

    async def cancel(self, request: Request) -> Response:
        """The request's choices finish with what they have and finish_reason "abort"."""
        name = request.path_params["id"]
        if not self._service.cancel(name):
            raise UnknownRequest(f"No request {name[:128]!r} is under way.", param="id", code="request_not_found")
        return JsonResponse(Cancelled(id=name))

    async def capabilities(self, request: Request) -> Response:
        service = self._service
        info, text = service.info, service.text
        return JsonResponse(
            {
                "model": {
                    "names": service.settings.served_names,
                    "quantization": info.quantization,
                    "backend": info.backend,
                    "dtype": info.dtype,
                    "vocab_size": info.vocab_size,
                    "max_model_len": info.max_model_len,
                    "eos_token_ids": info.eos_token_ids,
                    "default_sampling": info.default_sampling,
                },
                "features": {
                    "chat": text.template is not None,
                    "fill_in_the_middle": text.tokenizer.fim_tokens is not None,
                    "logprobs": True,
                    "prompt_logprobs": True,
                    "prefix_cache": info.prefix_cache,
                    "prefix_cache_salt": True,
                    "tools": False,
                    "response_format": ["text"],
                },
                "parameters": {
                    "/v1/chat/completions": _names(ChatRequest),
                    "/v1/completions": _names(CompletionRequest),
                },
                "refused_parameters": sorted(UNSUPPORTED),
                "unknown_parameters": "refused" if service.settings.strict else "reported in x-mlxserve-ignored",
                "caps": {
                    **msgspec.to_builtins(service.settings.caps),
                    "body_bytes": service.settings.body_limit,
                    "tokens": min(info.max_model_len, info.num_blocks * info.block_size),
                },
            }
        )


def _names(kind: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind)]
