"""By what this service is known to generate services, and they to it."""

import ssl
from collections.abc import Callable

import httpx

from render_service.settings import RenderSettings
from shared_protocol.keys import KeyFile, credential_error


def sent_credential(settings: RenderSettings) -> Callable[[], str | None]:
    """What to ask for the credential of each request: the first line of its file, or the setting.

    Raises:
        OSError: if the file has gone since the settings were read.
    """
    if not settings.generate_api_key_file:
        fixed = settings.generate_api_key or None
        return lambda: fixed
    file = KeyFile(settings.generate_api_key_file)
    return lambda: next(iter(file.keys), None)


def tls_context(settings: RenderSettings) -> ssl.SSLContext:
    """What to ask generate services by https with.

    Raises:
        OSError: if a file cannot be read, or is no certificate or key (`ssl.SSLError`).
    """
    if settings.generate_ca_file:
        context = ssl.create_default_context(cafile=settings.generate_ca_file)
    else:
        # Neither here does the environment have a say.
        context = httpx.create_ssl_context(trust_env=False)
    if settings.generate_cert_file:
        context.load_cert_chain(settings.generate_cert_file, settings.generate_key_file or None)
    return context


def credentials_error(settings: RenderSettings) -> str | None:
    """Say why the settings make no sense together, or their files cannot be used."""
    given = (settings.generate_api_key, settings.generate_api_key_file)
    if (unusable := credential_error(*given)) is not None:
        return unusable
    if settings.generate_key_file and not settings.generate_cert_file:
        return "--generate-key-file is of use with --generate-cert-file only"
    try:
        tls_context(settings)
    except OSError as error:
        return f"The certificates for generate services cannot be used: {error}"
    return None
