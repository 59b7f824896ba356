"""Looking at media before vLLM decodes them: what they are, and how large they would become."""

import functools
import io
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import cv2
import pybase64
from PIL import Image
from vllm.exceptions import VLLMError, VLLMValidationError
from vllm.multimodal.image import open_image
from vllm.multimodal.media import AudioMediaIO, ImageMediaIO, MediaIO, VideoMediaIO
from vllm.multimodal.video import VideoLoader

from render_service.media_playlists import is_playlist
from render_service.media_rules import MediaRules
from render_service.vllm_decoded_images import DecodedImages
from render_service.vllm_media_resampling import check_sample_rate
from shared_protocol.errors import InvalidRequest, TandemError

logger = logging.getLogger(__name__)

_CHANNELS: Final = 3
_BROKEN: Final = "is of no known format, is broken or is cut short."
_JPEG_SEQUENCE: Final = "video/jpeg"


class GuardedMedia(MediaIO[Any]):
    """What reads media of one kind, behind checks of their bytes.

    Args:
        reader: vLLM's.
        check: raises for bytes that `reader` is not to see.
    """

    def __init__(
        self,
        kind: str,
        reader: MediaIO[Any],
        check: Callable[[bytes], object],
        *,
        max_bytes: int,
    ) -> None:
        super().__init__()
        self.kind = kind
        self._reader = reader
        self._check = check
        self._max_bytes = max_bytes

    def get_max_bytes(self) -> int | None:
        own: int | None = self._reader.get_max_bytes()
        return own

    def load_bytes(self, data: bytes) -> Any:
        self._check_size(len(data))
        with _reading(self.kind):
            self._check(data)
            return self._load(data)

    def _load(self, data: bytes) -> Any:
        return self._reader.load_bytes(data)

    def load_base64(self, media_type: str, data: str) -> Any:
        self._check_size(len(data) * 3 // 4 - data.count("=", -2))
        if self.kind == "video" and media_type.lower() == _JPEG_SEQUENCE:
            with _reading(self.kind):
                return self._reader.load_base64(media_type, data)
        try:
            decoded = pybase64.b64decode(data, validate=True)
        except ValueError as error:
            raise VLLMValidationError(f"The data of the {self.kind} are not base64.") from error
        return self.load_bytes(decoded)

    def load_file(self, filepath: Path) -> Any:
        # Neither a device nor a pipe, whose reading would not end.
        if not filepath.is_file():
            raise InvalidRequest("There is no such file.")
        self._check_size(filepath.stat().st_size)
        return self.load_bytes(filepath.read_bytes())

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise InvalidRequest(
                f"The {self.kind} has {size} bytes, more than the {self._max_bytes} allowed.",
            )


class GuardedImage(GuardedMedia):
    """What reads images, each of them once."""

    def __init__(self, reader: ImageMediaIO, images: DecodedImages, rules: MediaRules) -> None:
        super().__init__(
            "image", reader, lambda data: _check_image(data, rules), max_bytes=rules.max_bytes
        )
        self._images = images

    def _load(self, data: bytes) -> Any:
        return self._images.load(self._reader, data)


class GuardedSound(GuardedMedia):
    """What reads sounds, at the rate that they have."""

    def load_bytes(self, data: bytes) -> Any:
        samples, rate = super().load_bytes(data)
        check_sample_rate(rate)
        return samples, rate


@contextmanager
def _reading(kind: str) -> Iterator[None]:
    """Say of an error that it was the client's file; each library has its own kinds of them."""
    try:
        yield
    except (VLLMError, TandemError, MemoryError, ImportError):
        raise
    except Exception as error:
        # Of sounds and films vLLM says itself what is wrong; of images it repeats Pillow.
        if isinstance(error, ValueError) and kind != "image":
            raise
        # One short line: anybody can send as many broken files as they like.
        logger.info("an item could not be read as %s: %.200r", kind, error)
        raise VLLMValidationError(f"The {kind} {_BROKEN}") from error


def guarded(reader: MediaIO[Any], rules: MediaRules, images: DecodedImages) -> GuardedMedia:
    """Put checks in front of one of vLLM's three readers of media.

    Args:
        images: those that were read before.
    """
    match reader:
        case ImageMediaIO():
            return GuardedImage(reader, images, rules)
        case AudioMediaIO():
            return GuardedSound("audio", reader, check_no_playlist, max_bytes=rules.max_bytes)
        case VideoMediaIO():
            reader.video_loader = _guarded_loader(reader.video_loader.__class__, rules)()
            reader.image_io = _guarded_frames(reader.image_io, rules)
            return GuardedMedia("video", reader, check_no_playlist, max_bytes=rules.max_bytes)
    raise TypeError(f"{type(reader).__name__} reads media of no known kind")


def check_no_playlist(data: bytes) -> None:
    """
    Raises:
        InvalidRequest: for what FFmpeg would follow to elsewhere.
    """
    if is_playlist(data):
        raise InvalidRequest("The media are no sound or film, but say where one is.")


def _check_image(data: bytes, rules: MediaRules) -> tuple[int, int]:
    """Look at an image's header; return its width and height."""
    try:
        with open_image(io.BytesIO(data)) as image:
            form, (width, height) = image.format, image.size
    except Image.DecompressionBombError as error:
        raise InvalidRequest(
            f"The image has more than the {rules.max_image_pixels} pixels that are allowed.",
        ) from error
    if width * height > rules.max_image_pixels:
        raise InvalidRequest(
            f"The image has {width} x {height} pixels, more than the {rules.max_image_pixels} "
            "that are allowed.",
        )
    if form not in rules.image_formats:
        raise InvalidRequest(
            f"Images of the format {form} are not read here. Send one of "
            f"{', '.join(sorted(rules.image_formats))}.",
        )
    return width, height


def _guarded_frames(reader: ImageMediaIO, rules: MediaRules) -> GuardedMedia:
    """What reads the frames of one film that came as images, and counts what they take."""
    left = rules.max_video_decoded_bytes

    def check(data: bytes) -> None:
        nonlocal left
        width, height = _check_image(data, rules)
        left -= width * height * _CHANNELS
        if left < 0:
            raise _too_much_film(rules)

    return GuardedMedia("image", reader, check, max_bytes=rules.max_bytes)


@functools.cache
def _guarded_loader(loader: type[VideoLoader], rules: MediaRules) -> type[VideoLoader]:
    class GuardedLoader(loader):
        """One of vLLM's loaders, which asks before it looks at frames and keeps them."""

        @classmethod
        def _prepare_source(cls, source: Any) -> Any:
            if source.total_frames_num > rules.max_video_frames:
                raise InvalidRequest(
                    f"The video has {source.total_frames_num} frames, more than the "
                    f"{rules.max_video_frames} allowed.",
                )
            return super()._prepare_source(source)

        @classmethod
        def read_frames(cls, cap: Any, frame_idx: list[int], *args: Any, **kwargs: Any) -> Any:
            pixels = cap.get(cv2.CAP_PROP_FRAME_WIDTH) * cap.get(cv2.CAP_PROP_FRAME_HEIGHT)
            if len(frame_idx) * pixels * _CHANNELS > rules.max_video_decoded_bytes:
                raise _too_much_film(rules)
            return super().read_frames(cap, frame_idx, *args, **kwargs)

    return GuardedLoader


def _too_much_film(rules: MediaRules) -> InvalidRequest:
    return InvalidRequest(
        f"The video's frames take more than the {rules.max_video_decoded_bytes} bytes allowed. "
        "Send a smaller picture or a shorter film.",
    )
