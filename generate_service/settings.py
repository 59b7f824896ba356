"""What the generate service can be told when it is started."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from generate_service.item_identity import ITEM_HASHES
from shared_protocol.keys import key_file
from shared_protocol.startup.command_line import CommandLine
from shared_protocol.startup.declared_settings import (
    one_of,
    pem_file,
    port_number,
    positive_int,
    positive_seconds,
    setting,
    whole_number,
)
from shared_protocol.startup.vllm_flags import Service
from shared_protocol.startup.vllm_parser import load_vllm


@dataclass(frozen=True, kw_only=True)
class GenerateSettings:
    host: str = setting(
        str,
        "Address to listen on. As with `vllm serve`, the default is every interface (IPv4).",
        default="0.0.0.0",
    )
    port: int = setting(port_number, "Port to listen on.", default=8100)
    max_body_bytes: int = setting(
        positive_int,
        "Largest request body. Rendered media are much larger than what a client uploads: one "
        "image of 896 x 896 is 9.6 MB, so that the default, 1 GiB, holds about a hundred.",
        default=2**30,
    )
    max_bodies_bytes: int = setting(
        positive_int,
        "Most bytes that the bodies of all requests at once may take, each until its request has "
        "ended; what is above it is answered 503. The default, 8 GiB, is eight of the largest.",
        default=2**33,
    )
    generate_api_key: str = setting(
        str,
        "The credential by which render services are known: without it nobody gets more than "
        "/health, /ready, /version and /metrics. Better as variable or file: others on the host "
        "can read a command line.",
        default="",
        secret=True,
    )
    generate_api_key_file: str = setting(
        key_file,
        "A file of such credentials, one a line, each of which is accepted. It is read again when "
        "it changes.",
        default="",
    )
    tls_cert_file: str = setting(
        pem_file,
        "The certificate that this service shows, as PEM; with it, it speaks TLS only.",
        default="",
    )
    tls_key_file: str = setting(
        pem_file, "The private key of that certificate, as PEM.", default=""
    )
    tls_client_ca_file: str = setting(
        pem_file,
        "Certificates of the authorities that vouch for render services, as PEM. With it, nobody "
        "else is answered, and whoever asks for /health needs a certificate as well.",
        default="",
    )
    item_checks: str = setting(
        one_of("on", "off"),
        "Whether an image, a sound or a video has to be such as the model's own processor makes "
        "it. `off` is for a model whose processor makes items of more kinds than one, which are "
        "then refused; a wrong item may end the engine for everybody.",
        default="on",
    )
    item_hashes: str = setting(
        one_of(*ITEM_HASHES),
        "By which hash the engine's caches know an image, a sound or a video. `content`: one that "
        "this service makes of the item itself, so that nobody can have one item taken for "
        "another. `sent`: the one that came with it; only where nobody but your own render "
        "services reaches this service.",
        default="content",
    )
    held_items_bytes: int = setting(
        whole_number,
        "Most bytes of requests' bodies that are kept for their images, sounds and videos, so that "
        "the next turn of a chat need not send them again; the least recently used go. 0 keeps "
        "none. The default, 2 GiB, holds about two hundred images of 896 x 896.",
        default=2**31,
    )
    zero_kv_blocks: str = setting(
        one_of("on", "off"),
        "Whether blocks of the KV cache are zeroed before a request gets them. With `off`, as "
        "vLLM has it, a request whose numbers overflow can spoil later answers to others.",
        default="on",
    )
    on_engine_death: str = setting(
        one_of("exit", "restart"),
        "What follows when the engine dies. `exit`: the service ends with status 1, for a "
        "supervisor to start it again. `restart`: it stays, not ready, and starts the engine "
        "again, at most three times in a row; an engine that ran for ten minutes ends the row.",
        default="exit",
    )
    shutdown_grace_s: float = setting(
        positive_seconds,
        "How long requests may still run after SIGTERM; then their streams end with a failure. "
        "The default leaves five of the 30 seconds after which Kubernetes kills.",
        default=25.0,
    )
    max_concurrent_requests: int = setting(
        positive_int,
        "How many requests there may be at once, running and waiting; one more is answered 503. "
        "The default is eight times what vLLM's engine runs at once by its own default: what "
        "waits behind more would not be answered before its client gave up.",
        default=2048,
    )
    request_read_timeout_s: float = setting(
        positive_seconds,
        "How long a request may take to arrive, head and body. The default is what the largest "
        "body takes at 150 Mbit/s.",
        default=60.0,
    )
    answer_stall_timeout_s: float = setting(
        positive_seconds,
        "How long a client may leave its answer unread once the buffers of its connection are "
        "full. Then the connection is cut and the request aborted: what the engine makes "
        "meanwhile is kept in memory.",
        default=30.0,
    )
    retry_after_s: int = setting(
        positive_int,
        "Seconds after which a request that could not be taken is worth another try (Retry-After).",
        default=1,
    )


def parse_generate_args(
    argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[GenerateSettings, Namespace]:
    """Return our settings, and vLLM's arguments as its own parser makes them; exit if wrong."""
    return COMMAND_LINE.parse(argv, environ)


COMMAND_LINE: Final = CommandLine(
    service=Service.GENERATE,
    about="The GPU tier: holds the model in vLLM's engine and turns prompts that a render service "
    "prepared into tokens.",
    usage="--model MODEL [FLAG ...]",
    settings_class=GenerateSettings,
    load_vllm=partial(load_vllm, "python -m generate_service"),
)
