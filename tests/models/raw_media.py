"""Media in the forms and states in which clients send them."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import soundfile  # type: ignore[import-untyped]
from PIL import Image

from tests.models.media import Part, mp4, samples, wav
from tests.pictures import png

_ORIENTATION = 0x0112
_TURNED_RIGHT = 6


def raw_media(http: str) -> Iterator[tuple[str, Part]]:
    """Yield content parts by name.

    Args:
        http: address at which `files()` are served.
    """
    for name, data in files().items():
        kind, _, subtype = _TYPES[name.rpartition(".")[2]].partition("/")
        yield f"{name} in a data URL", _part(kind, _data_url(f"{kind}/{subtype}", data))
        yield f"{name} by HTTP", _part(kind, f"{http}/{name}")
    yield "audio as base64", _input_audio(wav(3, 0.7, 16_000), "wav")
    picture = _part("image", _data_url("image/png", png(4, 80, 60)))
    yield "image with a uuid", picture | {"uuid": "picture-4"}
    yield "the same uuid again", picture | {"uuid": "picture-4"}
    yield "half a picture", _part("image", _data_url("image/png", png(5)[:400]))
    yield "no picture", _part("image", _data_url("image/png", b"not a picture"))
    yield "no sound", _input_audio(b"not a sound", "wav")
    yield "no film", _part("video", _data_url("video/mp4", b"not a film"))
    yield "nothing at that address", _part("image", f"{http}/nothing.png")


_TYPES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "webp": "image/webp",
    "gif": "image/gif",
    "wav": "audio/wav",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
}


def files() -> dict[str, bytes]:
    return {**_pictures(), **_sounds(), "film.mp4": mp4(6, 6, 64, 64)}


def _pictures() -> dict[str, bytes]:
    colour = Image.open(io.BytesIO(png(1, 96, 64))).convert("RGB")
    clear = colour.copy()
    clear.putalpha(Image.linear_gradient("L").resize(colour.size))
    deep = Image.fromarray(np.arange(96 * 64, dtype=np.uint16).reshape(64, 96) * 10)
    turned = Image.Exif()
    turned[_ORIENTATION] = _TURNED_RIGHT
    return {
        "colour.png": _saved(colour, "PNG"),
        "colour.jpg": _saved(colour, "JPEG"),
        "colour.webp": _saved(colour, "WEBP"),
        "colour.gif": _saved(colour, "GIF"),
        "grey.png": _saved(colour.convert("L"), "PNG"),
        "palette.png": _saved(colour.convert("P"), "PNG"),
        "transparent.png": _saved(clear, "PNG"),
        "four-colours.jpg": _saved(colour.convert("CMYK"), "JPEG"),
        "sixteen-bits.png": _saved(deep, "PNG"),
        "turned.jpg": _saved(colour, "JPEG", exif=turned),
    }


def _saved(picture: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, format=form, **options)
    return file.getvalue()


def _sounds() -> dict[str, bytes]:
    stereo = np.stack([samples(1, 0.8, 44_100), samples(2, 0.8, 44_100)], axis=1)
    return {
        "telephone.wav": wav(1, 0.9, 8_000),
        "stereo.wav": _sound(stereo, 44_100, "WAV"),
        "odd-rate.flac": _sound(samples(3, 0.8, 22_051), 22_051, "FLAC"),
        "stereo.mp3": _sound(stereo, 44_100, "MP3"),
    }


def _sound(waves: Any, rate: int, form: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, waves, rate, format=form)
    return file.getvalue()


def _part(kind: str, url: str) -> Part:
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


def _input_audio(data: bytes, form: str) -> Part:
    return {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(data).decode(), "format": form},
    }


def _data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
