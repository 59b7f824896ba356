"""The keys that clients may ask with, from all places that name some."""

from argparse import Namespace

from vllm import envs

from render_service.settings import RenderSettings
from shared_protocol.keys import KeyRing, key_ring


def client_keys(settings: RenderSettings, args: Namespace) -> KeyRing | None:
    """As in vLLM, ``VLLM_API_KEY`` counts where there is no ``--api-key``; None without any key."""
    return key_ring(args.api_key or [envs.VLLM_API_KEY or ""], settings.api_key_file)


def keys_error(settings: RenderSettings, args: Namespace) -> str | None:
    """Say which setting needs keys and has none; None if all is well."""
    if client_keys(settings, args) is not None:
        return None
    for name in ("max_requests_per_key", "requests_per_minute_per_key"):
        if getattr(settings, name):
            return f"--{name.replace('_', '-')} is of use with --api-key or --api-key-file only"
    return None
