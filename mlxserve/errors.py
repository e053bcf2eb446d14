"""The closed set of errors a user can meet; each knows its HTTP status and its OpenAI error type.

A broken invariant of ours is an ``assert``, never one of these.
"""

from __future__ import annotations

from typing import ClassVar


class MlxserveError(Exception):
    """Base of every error that is shown to a user: one sentence naming the value and the limit."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> dict[str, dict[str, str | None]]:
        """The error object of OpenAI's API."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class BadRequest(MlxserveError):
    """A request field is malformed, out of range or not supported."""

    status = 400
    type = "invalid_request_error"


class ContextLengthExceeded(BadRequest):
    """The prompt, or the prompt and the tokens asked for, exceed the model's length or the KV pool."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class ModelNotFound(MlxserveError):
    """The request names a model that is not served."""

    status = 404
    type = "invalid_request_error"

    def __init__(self, name: str) -> None:
        super().__init__(f"The model {name!r} does not exist.", param="model", code="model_not_found")


class RequestTooLarge(MlxserveError):
    """The request body is larger than the server accepts."""

    status = 413
    type = "invalid_request_error"


class EngineUnavailable(MlxserveError):
    """The engine is not running, is shutting down, or died below this request."""

    status = 503
    type = "engine_unavailable"


class GenerationFailed(MlxserveError):
    """This request's computation failed; others are unaffected."""

    status = 500
    type = "server_error"


class RequestTimeout(MlxserveError):
    """The request's own ``timeout`` passed before it finished."""

    status = 408
    type = "timeout"


class ConfigError(MlxserveError):
    """A command-line flag or setting is invalid: the program ends with exit status 2."""

    def __init__(self, flag: str, value: object, limit: str) -> None:
        super().__init__(f"{flag} is {value}, but {limit}", param=flag)


class CheckpointError(MlxserveError):
    """A model's files are missing, damaged, inconsistent or not supported: exit status 2."""
