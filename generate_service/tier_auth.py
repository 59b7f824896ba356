"""Who may have tokens generated: render services, known by the credential between the tiers."""

from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from generate_service.settings import GenerateSettings
from shared_protocol.error_answer import answer_error
from shared_protocol.errors import Unauthorized
from shared_protocol.keys import KeyRing, credential_error, key_ring

OPEN_PATHS: Final = frozenset({"/health", "/ready", "/version", "/metrics"})
"""What says how the service is, for whoever watches it; all else needs the credential."""


def tier_keys(settings: GenerateSettings) -> KeyRing | None:
    """The credentials that are accepted; None where none was set."""
    return key_ring([settings.generate_api_key], settings.generate_api_key_file)


def tier_keys_error(settings: GenerateSettings) -> str | None:
    """Say why the settings make no sense together."""
    return credential_error(settings.generate_api_key, settings.generate_api_key_file)


class TierAuth:
    """ASGI middleware: answers 401 without the credential, before anything of a body is read."""

    def __init__(
        self, app: ASGIApp, *, keys: KeyRing | None, on_refusal: Callable[[int], None]
    ) -> None:
        """
        Args:
            keys: None where no credential was set: everybody may ask.
            on_refusal: called with the status of each refusal.
        """
        self._app = app
        self._keys = keys
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            self._keys is None
            or scope["type"] != "http"
            or scope["path"] in OPEN_PATHS
            or self._keys.holder(scope) is not None
        ):
            await self._app(scope, receive, send)
        else:
            self._on_refusal(Unauthorized.status)
            await answer_error(send, Unauthorized("The credential between the tiers is required"))
