"""What the render service can be told when it is started."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from shared_protocol.keys import key_file
from shared_protocol.startup.command_line import CommandLine
from shared_protocol.startup.connection_limits import MAX_HEAD_BYTES
from shared_protocol.startup.declared_settings import (
    address_network,
    http_url,
    limit,
    one_of,
    pem_file,
    port_number,
    positive_int,
    positive_seconds,
    setting,
)
from shared_protocol.startup.vllm_flags import Service
from shared_protocol.startup.vllm_parser import load_vllm


@dataclass(frozen=True, kw_only=True)
class RenderSettings:
    generate_url: tuple[str, ...] = setting(
        http_url,
        "A generate service, as http://HOST:PORT. Give the flag again for each further one.",
        many=True,
    )
    host: str = setting(
        str,
        "Address to listen on. As with `vllm serve`, the default is every interface (IPv4).",
        default="0.0.0.0",
    )
    port: int = setting(port_number, "Port to listen on.", default=8000)
    max_body_bytes: int = setting(
        positive_int,
        "Largest request body. The default, 64 MiB, holds a dozen photos of a phone in base64 and "
        "bounds what one client can make the service keep in memory.",
        default=64 * 2**20,
    )
    max_bodies_bytes: int = setting(
        positive_int,
        "Most bytes that the bodies of all requests at once may take, each until its request has "
        "ended; what is above it is answered 503. The default, 2 GiB, is 32 of the largest.",
        default=2**31,
    )
    max_concurrent_requests: int = setting(
        positive_int,
        "Most requests that are answered at a time; the next one gets 503 with Retry-After. The "
        "default is far more than the streams that one process keeps up with, and bounds what it "
        "keeps in memory.",
        default=2048,
    )
    max_generations_per_request: int = setting(
        positive_int,
        "Most choices, prompts and texts to embed of one request, each choice of each prompt "
        "counted; more are answered 400.",
        default=2048,
    )
    max_head_bytes: int = setting(
        positive_int,
        "Largest request line with headers; more are answered 431. Of h11, which "
        "--h11-max-incomplete-event-size selects, that flag is the limit.",
        default=MAX_HEAD_BYTES,
    )
    request_read_timeout_s: float = setting(
        positive_seconds,
        "How long a request may take to arrive, head and body: 408. The default is enough for the "
        "largest body at 5 Mbit/s.",
        default=120.0,
    )
    response_write_timeout_s: float = setting(
        positive_seconds,
        "How long a client may leave its answer unread before it is cut off and its request "
        "aborted.",
        default=60.0,
    )
    api_key_file: str = setting(
        key_file,
        "A file of keys, one a line, that are accepted beside those of --api-key. It is read again "
        "when it changes, so that keys change without a restart.",
        default="",
    )
    max_requests_per_key: int = setting(
        limit,
        "Most requests that one key may have answered at a time; the next one gets 429 with "
        "Retry-After. 0 is no limit.",
        default=0,
    )
    requests_per_minute_per_key: int = setting(
        limit,
        "Requests of one key per minute: as many may come at once, and then one for each part of "
        "a minute; more get 429 with Retry-After. 0 is no limit.",
        default=0,
    )
    ready_addresses: Literal["on", "off"] = setting(
        one_of("on", "off"),
        "Whether GET /ready, which anybody may ask, shows the addresses of the generate services, "
        "and why they are out of rotation. The log does in any case.",
        default="off",
    )
    wire: Literal["binary", "json"] = setting(
        one_of("binary", "json"),
        "Encoding of requests to generate. json is a third larger and far slower for media: it is "
        "there to be read by people.",
        default="binary",
    )
    generate_api_key: str = setting(
        str,
        "The credential that generate services want. Better as variable or file: others on the "
        "host can read a command line.",
        default="",
        secret=True,
    )
    generate_api_key_file: str = setting(
        key_file,
        "A file whose first line is that credential. It is read again when it changes.",
        default="",
    )
    generate_ca_file: str = setting(
        pem_file,
        "Certificates of the authorities that vouch for generate services (https://), as PEM. "
        "Without it, those of the Python package certifi.",
        default="",
    )
    generate_cert_file: str = setting(
        pem_file,
        "The certificate that this service shows to generate services, as PEM.",
        default="",
    )
    generate_key_file: str = setting(
        pem_file, "The private key of that certificate, as PEM.", default=""
    )
    connect_timeout_s: float = setting(
        positive_seconds,
        "How long a connection to a generate service may take to open.",
        default=3.0,
    )
    send_timeout_s: float = setting(
        positive_seconds,
        "How long a generate service may take to receive a request once it has asked for it. The "
        "default is what it allows itself (its --request-read-timeout-s): raise both for a slow "
        "network.",
        default=60.0,
    )
    probe_interval_s: float = setting(
        positive_seconds,
        "Time between two looks at a generate service's readiness.",
        default=0.3,
    )
    probe_timeout_s: float = setting(
        positive_seconds,
        "How long a generate service may take to answer such a look. One that takes longer gets no "
        "requests until it answers again, and those that it has not begun go elsewhere.",
        default=0.5,
    )
    replica_stall_s: float = setting(
        positive_seconds,
        "How long a generate service may answer no look at all before the requests that it has "
        "are given up. One that answers may take any time for its tokens.",
        default=20.0,
    )
    shutdown_grace_s: float = setting(
        positive_seconds,
        "How long what still runs may go on after a SIGTERM. Then streams end with an error, and "
        "the process ends. Five seconds less than the 30 after which Kubernetes kills.",
        default=25.0,
    )
    startup_timeout_s: float = setting(
        positive_seconds,
        "How long to wait at start for the first generate service to become ready: loading a "
        "large model takes minutes.",
        default=600.0,
    )
    allow_private_media_addresses: tuple[str, ...] = setting(
        address_network,
        "A network, such as 10.1.0.0/16, from which media may be fetched although its addresses "
        "are not public, or `all`. Give the flag again for each further one. Without it, nobody "
        "can have this service ask hosts that only it can reach.",
        default=(),
        many=True,
    )
    max_media_redirects: int = setting(
        positive_int,
        "How many redirects are followed from the URL of an item; each leads only where a URL may. "
        "The default is how many vLLM follows.",
        default=9,
    )
    media_fetch_timeout_s: float = setting(
        positive_seconds,
        "How long fetching one item may take, with the further attempts that vLLM makes after "
        "5, 10 or 30 s for an image, a sound or a video (`VLLM_IMAGE_FETCH_TIMEOUT` and its like). "
        "The default lets all three attempts for an image end.",
        default=120.0,
    )
    max_media_bytes: int = setting(
        positive_int,
        "Largest image, sound or video, as it is fetched or sent. The default, 256 MiB, is vLLM's "
        "(`VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB`); for a sound, vLLM's 25 MiB hold as well "
        "(`VLLM_MAX_AUDIO_CLIP_FILESIZE_MB`).",
        default=256 * 2**20,
    )
    image_formats: tuple[str, ...] = setting(
        str.upper,
        "A format of images that is read, as Pillow calls it; give the flag again for each further "
        "one. The default are those that browsers, cameras and phones (MPO) write. vLLM reads "
        "more, some of which, as QOI and FITS, Pillow decodes in Python: seconds for a million "
        "pixels, in which the service does nothing else.",
        default=(
            *("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TGA"),
            *("TIFF", "WEBP"),
        ),
        many=True,
    )
    max_image_pixels: int = setting(
        positive_int,
        "Most pixels of an image, or of a frame of a video, looked at before it is decoded. The "
        "default is vLLM's and Pillow's (`VLLM_MAX_IMAGE_PIXELS`), 0.5 GB as RGB.",
        default=178_956_970,
    )
    decoded_images_bytes: int = setting(
        limit,
        "Most memory of images that were decoded before, which a chat sends again with each turn. "
        "The default, 256 MiB, is 64 images of 1024 x 1024. 0 keeps none.",
        default=256 * 2**20,
    )
    max_audio_s: int = setting(
        positive_int,
        "Longest sound, in whole seconds. The default, ten minutes, is vLLM's "
        "(`VLLM_MAX_AUDIO_DECODE_DURATION_S`), and so is the bound on its decoded samples, "
        "256 MiB (`VLLM_MAX_AUDIO_DECODE_BYTES`).",
        default=600,
    )
    max_video_frames: int = setting(
        positive_int,
        "Most frames of a video file; all up to the last that the model looks at are decoded. The "
        "default are two hours with 60 in a second.",
        default=432_000,
    )
    max_video_decoded_bytes: int = setting(
        positive_int,
        "Most memory that the frames that a model looks at may take as RGB. The default, 5 GiB, "
        "holds 768 frames of 1920 x 1080, the most that vLLM takes for Qwen's models.",
        default=5 * 2**30,
    )


def parse_render_args(
    argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[RenderSettings, Namespace]:
    """Return our settings, and vLLM's arguments as its own parser makes them; exit if wrong."""
    return COMMAND_LINE.parse(argv, environ)


COMMAND_LINE: Final = CommandLine(
    service=Service.RENDER,
    about="The CPU tier: answers vLLM's OpenAI-compatible API, and has its tokens generated by one "
    "generate service or several. Loads no weights.",
    usage="--model MODEL --generate-url URL [--generate-url URL ...] [FLAG ...]",
    settings_class=RenderSettings,
    load_vllm=partial(load_vllm, "python -m render_service"),
)
