"""The images that were decoded last: a chat sends those that it has again with each turn."""

from threading import Lock
from typing import Any, Final

from blake3 import blake3
from cachetools import LRUCache
from PIL import Image
from vllm.multimodal.media import ImageMediaIO, MediaWithBytes

_BYTES_A_PIXEL: Final = 4
"""Pillow keeps RGB in as much as RGBA."""


class DecodedImages:
    """Keeps images by the bytes of their files and by how they were to be read.

    Nobody gets the one that is kept: a model's processor may write on what it is given.
    """

    def __init__(self, most_bytes: int) -> None:
        """
        Args:
            most_bytes: of pixels; 0 keeps nothing.
        """
        self._most_bytes = most_bytes
        self._kept: LRUCache[Any, MediaWithBytes[Image.Image]] = LRUCache(most_bytes, _size)
        # Media are read in several threads.
        self._lock = Lock()

    def load(self, reader: ImageMediaIO, data: bytes) -> MediaWithBytes[Image.Image]:
        """Return what `reader` makes of the file `data`."""
        if not self._most_bytes:
            return reader.load_bytes(data)
        key = (blake3(data).digest(), reader.image_mode, reader.rgba_background_color)
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None:
            return _copy(kept, data)
        loaded = reader.load_bytes(data)
        if _size(loaded) <= self._most_bytes:
            with self._lock:
                self._kept[key] = _copy(loaded, b"")
        return loaded


def _copy(image: MediaWithBytes[Image.Image], data: bytes) -> MediaWithBytes[Image.Image]:
    return MediaWithBytes(image.media.copy(), data, image.io_config)


def _size(image: MediaWithBytes[Image.Image]) -> int:
    width, height = image.media.size
    size: int = width * height * _BYTES_A_PIXEL
    return size
