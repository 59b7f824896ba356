"""The connector through which vLLM gets media, in place of its own: the rules hold for every item.

vLLM makes one for each request that has media, with the flags and the request's options for them.
"""

import asyncio
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import url2pathname

import torch
from PIL import Image
from urllib3.exceptions import LocationParseError
from vllm.entrypoints.speech_to_text.base import serving as speech_serving
from vllm.exceptions import (
    VLLMServerError,
    VLLMUnprocessableEntityError,
    VLLMValidationError,
)
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector, MediaIO
from vllm.multimodal.media.audio import load_audio
from vllm.multimodal.media.connector import global_thread_pool

from render_service import vllm_media_resampling
from render_service.media_rules import MediaRules
from render_service.vllm_decoded_images import DecodedImages
from render_service.vllm_media_fetch import GuardedConnection, MediaSessions
from render_service.vllm_media_io import check_no_playlist, guarded
from render_service.vllm_prompt_embeds import check_finite, load_tensor
from shared_protocol.errors import InternalError, InvalidRequest, Unprocessable

VLLMS_OWN: Final = "http"
"""The connector that vLLM takes unless ``VLLM_MEDIA_CONNECTOR`` names another one."""

MAX_URL_CHARACTERS: Final = 16 * 2**10
"""Of one that is no data URL; servers of HTTP take half of it."""

_MIB: Final = 2**20


class GuardedConnector(MediaConnector):
    def __init__(
        self,
        media_io_kwargs: dict[str, dict[str, Any]] | None = None,
        *,
        rules: MediaRules,
        sessions: MediaSessions,
        images: DecodedImages,
        allowed_local_media_path: str = "",
        allowed_media_domains: list[str] | None = None,
    ) -> None:
        super().__init__(
            media_io_kwargs,
            GuardedConnection(rules, sessions, allowed_media_domains or ()),
            allowed_local_media_path=allowed_local_media_path,
            allowed_media_domains=allowed_media_domains,
        )
        self._rules = rules
        self._images = images

    def load_from_url(
        self, url: str, media_io: MediaIO[Any], *, fetch_timeout: int | None = None
    ) -> Any:
        reader = guarded(media_io, self._rules, self._images)
        with _answered_by_vllm(reader.kind):
            _check_length(url)
            return super().load_from_url(url, reader, fetch_timeout=fetch_timeout)

    async def load_from_url_async(
        self, url: str, media_io: MediaIO[Any], *, fetch_timeout: int | None = None
    ) -> Any:
        reader = guarded(media_io, self._rules, self._images)
        with _answered_by_vllm(reader.kind):
            _check_length(url)
            return await super().load_from_url_async(url, reader, fetch_timeout=fetch_timeout)

    def _load_data_url(self, url: str, media_io: MediaIO[Any]) -> Any:
        if ";base64," not in url[: url.find(",") + 1]:
            raise InvalidRequest("A data URL of media has to be of the form `data:TYPE;base64,...`")
        return super()._load_data_url(url, media_io)

    def _load_file_url(self, url_spec: Any, media_io: MediaIO[Any]) -> Any:
        allowed = self.allowed_local_media_path
        if allowed is None:
            raise InvalidRequest("The URL of media must be one of HTTP, HTTPS or data.")
        path = Path(url2pathname((url_spec.netloc or "") + (url_spec.path or "")))
        try:
            path = path.resolve()
            if allowed in path.parents:
                return media_io.load_file(path)
        except (OSError, RuntimeError) as error:  # Links that lead round are a RuntimeError.
            raise InvalidRequest("The file cannot be read.") from error
        # What vLLM says, without the paths.
        raise ValueError(
            "The file path <path> must be a subpath of `--allowed-local-media-path <path>`."
        )

    def fetch_image_embedding(self, data: str) -> torch.Tensor:
        return _embedding(data, "image_embeds")

    async def fetch_image_embedding_async(self, data: str) -> torch.Tensor:
        return await _in_thread(self.fetch_image_embedding, data)

    def fetch_audio_embedding(self, data: str) -> torch.Tensor:
        return _embedding(data, "audio_embeds")

    async def fetch_audio_embedding_async(self, data: str) -> torch.Tensor:
        return await _in_thread(self.fetch_audio_embedding, data)

    def fetch_video_embedding(self, data: str) -> torch.Tensor:
        return _embedding(data, "video_embeds")

    async def fetch_video_embedding_async(self, data: str) -> torch.Tensor:
        return await _in_thread(self.fetch_video_embedding, data)


def _check_length(url: str) -> None:
    if len(url) > MAX_URL_CHARACTERS and not url[:5].lower() == "data:":
        raise InvalidRequest(f"The URL has more than {MAX_URL_CHARACTERS} characters.")


def _embedding(data: str, field: str) -> torch.Tensor:
    tensor = load_tensor(data, field)
    check_finite(tensor, field)
    return tensor


async def _in_thread(load: Any, data: str) -> torch.Tensor:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(global_thread_pool, load, data)


@contextmanager
def _answered_by_vllm(kind: str) -> Iterator[None]:
    """Raise our errors as those of vLLM's that it answers alike."""
    field = f"{kind}_url"
    try:
        yield
    except Unprocessable as error:
        raise VLLMUnprocessableEntityError(error.message, parameter=field) from error
    except InvalidRequest as error:
        raise VLLMValidationError(error.message, parameter=field) from error
    except InternalError as error:
        raise VLLMServerError(error.message) from error
    except LocationParseError as error:
        raise VLLMValidationError("The media's URL is not valid.", parameter=field) from error


def install(rules: MediaRules, images: DecodedImages) -> MediaSessions:
    """Have vLLM get media by `rules` from now on; those that are among `images` are not read again.

    A connector that ``VLLM_MEDIA_CONNECTOR`` names is left alone: its rules are its own.

    Returns:
        What has to be closed at the end.
    """
    sessions = MediaSessions(rules.addresses)
    connector = functools.partial(GuardedConnector, rules=rules, sessions=sessions, images=images)
    MEDIA_CONNECTOR_REGISTRY.register(VLLMS_OWN)(connector)
    speech_serving.load_audio = load_upload
    vllm_media_resampling.install()
    _tell_vllm(rules)
    return sessions


def load_upload(path: Any, **options: Any) -> Any:
    """vLLM's reader of sounds that were uploaded, which no connector has seen."""
    try:
        check_no_playlist(path.getvalue())
        return load_audio(path, **options)
    except InvalidRequest as error:
        raise VLLMValidationError(error.message, parameter="file") from error


def _tell_vllm(rules: MediaRules) -> None:
    """Set vLLM's own limits to ours, unless the operator has set them to less."""
    for name, limit in (
        ("VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB", -(-rules.max_bytes // _MIB)),
        ("VLLM_MAX_IMAGE_PIXELS", rules.max_image_pixels),
        ("VLLM_MAX_AUDIO_DECODE_DURATION_S", rules.max_audio_s),
    ):
        if int(os.environ.get(name, limit)) >= limit:
            os.environ[name] = str(limit)
    # Pillow warns beyond it, and refuses beyond twice of it.
    Image.MAX_IMAGE_PIXELS = rules.max_image_pixels
