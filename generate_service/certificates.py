"""TLS on the generate service, and who may ask it."""

import ssl
from typing import Any

from uvicorn.config import SSL_PROTOCOL_VERSION, create_ssl_context

from generate_service.settings import GenerateSettings


def tls_options(settings: GenerateSettings) -> dict[str, Any]:
    """What uvicorn is told of it; nothing without a certificate."""
    if not settings.tls_cert_file:
        return {}
    return {
        "ssl_certfile": settings.tls_cert_file,
        "ssl_keyfile": settings.tls_key_file or None,
        "ssl_ca_certs": settings.tls_client_ca_file or None,
        "ssl_cert_reqs": ssl.CERT_REQUIRED if settings.tls_client_ca_file else ssl.CERT_NONE,
    }


def certificates_error(settings: GenerateSettings) -> str | None:
    """Say why the settings make no sense together, or their files cannot be used."""
    options = tls_options(settings)
    if not options:
        for name in ("tls_key_file", "tls_client_ca_file"):
            if getattr(settings, name):
                return f"--{name.replace('_', '-')} is of use with --tls-cert-file only"
        return None
    try:
        create_ssl_context(
            options["ssl_certfile"],
            options["ssl_keyfile"],
            None,
            SSL_PROTOCOL_VERSION,
            options["ssl_cert_reqs"],
            options["ssl_ca_certs"],
            None,
        )
    except (OSError, ValueError) as error:
        return f"The certificates of --tls-cert-file cannot be used: {error}"
    return None
