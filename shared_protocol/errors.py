"""The tree of errors that both services answer with.

The body is vLLM's: ``{"error": {"message", "type", "param", "code"}}``, where ``code`` is the
HTTP status.
"""

from typing import Any, ClassVar, Final

MAX_MESSAGE_LENGTH: Final = 1000
"""Messages quote what a client sent, which may be as long as a body."""


class TandemError(Exception):
    """An error that a client may read: its message leaks nothing of the host."""

    status: ClassVar[int] = 500
    error_type: ClassVar[str] = "InternalServerError"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        self.message = _shortened(message)
        self.param = None if param is None else _shortened(param)
        super().__init__(self.message)

    def headers(self) -> dict[str, str]:
        return {}

    def details(self) -> dict[str, Any]:
        """Members of the error object beside the four that every error has."""
        return {}

    def body(self) -> dict[str, Any]:
        error = {
            "message": self.message,
            "type": self.error_type,
            "param": self.param,
            "code": self.status,
        }
        return {"error": error | self.details()}


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_LENGTH else f"{text[:MAX_MESSAGE_LENGTH]}..."


class InternalError(TandemError):
    """A fault of ours. The cause goes to the log, never to the client."""


class InvalidRequest(TandemError):
    status = 400
    error_type = "BadRequestError"


class UnsupportedVersion(InvalidRequest):
    """The peer speaks another major version of the wire."""


class Unauthorized(TandemError):
    status = 401
    error_type = "AuthenticationError"

    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class UnknownModel(TandemError):
    status = 404
    error_type = "NotFoundError"


class RequestTimeout(TandemError):
    """The client took too long to send its request; nothing was begun."""

    status = 408
    error_type = "RequestTimeoutError"


class MissingFeatures(TandemError):
    """Items came without their data and are not held here; send them along."""

    status = 409
    error_type = "ConflictError"

    def __init__(self, hashes: list[str]) -> None:
        """
        Args:
            hashes: the name by which each was referred to, or else its hash.
        """
        super().__init__(
            f"{len(hashes)} multimodal item(s) came without their data and are not held here; "
            "send them with their data.",
            param="features.kwargs_data",
        )
        self.hashes = hashes

    def details(self) -> dict[str, Any]:
        return {"missing_hashes": self.hashes}


class PayloadTooLarge(TandemError):
    status = 413
    error_type = "PayloadTooLargeError"


class HeadTooLarge(TandemError):
    status = 431
    error_type = "RequestHeaderFieldsTooLargeError"


class Unprocessable(TandemError):
    """The request is well-formed, but what it points to cannot be had."""

    status = 422
    error_type = "UnprocessableEntityError"


class TooManyRequests(TandemError):
    """One client asks for more than its share; others may be answered all the same."""

    status = 429
    error_type = "RateLimitError"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after_s)}


class ReplicaFailed(InternalError):
    """A replica took the request and was lost before it answered; it is not sent again.

    Not a 502: a proxy in front may send again what was answered so, and the request may be what
    the replica died of.
    """


class Unavailable(TandemError):
    """Nobody took the request: trying again later, or elsewhere, is safe."""

    status = 503
    error_type = "ServiceUnavailableError"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after_s)}
