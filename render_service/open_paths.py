"""The paths that everybody may ask for, and that are always answered."""

from typing import Final

from starlette.types import Scope

STATUS_PATHS: Final = frozenset({"/health", "/ready", "/ping", "/version", "/metrics", "/load"})
"""How the service is."""

_KEYLESS_PATHS: Final = STATUS_PATHS | {
    # Open in vLLM as well, which guards only some prefixes; but not its /tokenize, which takes
    # chats, and would fetch and decode media for anybody.
    *("/detokenize", "/tokenizer_info"),
    *("/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"),
}
_KEYLESS_PREFIX: Final = "/static/"


def is_open(scope: Scope) -> bool:
    """Whether a request only asks how the service is."""
    return _path(scope) in STATUS_PATHS


def needs_key(scope: Scope) -> bool:
    """Whether a request needs a key where there are keys.

    All do but those in a closed list: an endpoint that a new vLLM brings is guarded. A browser
    sends no key along with the OPTIONS by which it asks whether it may ask.
    """
    if scope.get("method") == "OPTIONS":
        return False
    path = _path(scope)
    return path not in _KEYLESS_PATHS and not path.startswith(_KEYLESS_PREFIX)


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
