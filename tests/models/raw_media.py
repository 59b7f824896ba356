"""Media in the forms and states in which clients send them."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import soundfile  # type: ignore[import-untyped]
from PIL import Image

from tests.models.media import Part, mp4, samples, wav
from tests.models.media_server import MediaServer
from tests.pictures import png

_ORIENTATION = 0x0112
_TURNED_RIGHT = 6


def raw_media(server: MediaServer) -> Iterator[tuple[str, Part]]:
    """Yield content parts by name.

    Args:
        server: of `files()`.
    """
    for name, data in files().items():
        kind, _, subtype = _TYPES[name.rpartition(".")[2]].partition("/")
        yield f"{name} in a data URL", _part(kind, _data_url(f"{kind}/{subtype}", data))
        yield f"{name} by HTTP", _part(kind, f"{server.http}/{name}")
    for name in ("colour.png", "sound.wav", "film.mp4"):
        kind, _, _ = _TYPES[name.rpartition(".")[2]].partition("/")
        yield f"{name} by HTTPS", _part(kind, f"{server.https}/{name}")
        yield f"{name}, moved", _part(kind, f"{server.http}/moved/{name}")
        yield f"{name}, moved to HTTPS", _part(kind, f"{server.http}/secured/{name}")
        yield f"{name} of a stranger", _part(kind, f"{server.stranger}/{name}")
        yield f"{name} in circles", _part(kind, f"{server.http}/round")
        yield f"{name} of a broken server", _part(kind, f"{server.http}/broken")
    yield "audio as base64", _input_audio(wav(3, 0.7, 16_000), "wav")
    picture = _part("image", _data_url("image/png", png(4, 80, 60)))
    yield "image with a uuid", picture | {"uuid": "picture-4"}
    yield "the same uuid again", picture | {"uuid": "picture-4"}
    yield "nothing but the uuid", {"type": "image_url", "image_url": None, "uuid": "picture-4"}
    yield "no URL but the uuid", {"type": "image_url", "image_url": {}, "uuid": "picture-4"}
    yield "nothing but a new uuid", {"type": "image_url", "image_url": None, "uuid": "picture-9"}
    sound = _input_audio(wav(8, 0.5, 16_000), "wav")
    yield "sound with a uuid", sound | {"uuid": "sound-8"}
    yield "nothing but the sound's uuid", sound | {"uuid": "sound-8", "input_audio": None}
    film = _part("video", _data_url("video/mp4", mp4(9, 6, 64, 64)))
    yield "film with a uuid", film | {"uuid": "film-9"}
    yield "nothing but the film's uuid", film | {"uuid": "film-9", "video_url": None}
    yield "neither a URL nor a uuid", {"type": "image_url", "image_url": None}
    yield "half a picture", _part("image", _data_url("image/png", png(5)[:400]))
    yield "no picture", _part("image", _data_url("image/png", b"not a picture"))
    yield "no sound", _input_audio(b"not a sound", "wav")
    yield "no film", _part("video", _data_url("video/mp4", b"not a film"))
    yield "nothing at that address", _part("image", f"{server.http}/nothing.png")


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
        "sound.wav": wav(4, 0.9, 16_000),
        # Of other rates, for which vLLM wants torchaudio; without it, both answer 500.
        "telephone.wav": wav(1, 0.9, 8_000),
        "stereo.wav": _sound(stereo, 44_100, "WAV"),
        # One of those that the render service resamples as vLLM does.
        "odd-rate.flac": _sound(samples(3, 0.8, 18_900), 18_900, "FLAC"),
        "stereo.mp3": _sound(stereo, 44_100, "MP3"),
    }


def _sound(waves: Any, rate: int, form: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, waves, rate, format=form)
    return file.getvalue()


def options() -> Iterator[tuple[str, Part, dict[str, Any]]]:
    """Yield a name, a content part, and members of a chat that say how its media are read."""
    picture = _part("image", _data_url("image/png", png(1, 300, 200)))
    clear = _part("image", _data_url("image/png", _pictures()["transparent.png"]))
    film = _part("video", _data_url("video/mp4", mp4(6, 8, 64, 64)))
    yield from (
        ("fewer pixels", picture, {"mm_processor_kwargs": {"max_pixels": 28 * 28 * 6}}),
        ("more pixels", picture, {"mm_processor_kwargs": {"min_pixels": 28 * 28 * 12}}),
        ("another size", picture, {"mm_processor_kwargs": {"size": {"longest_edge": 4704}}}),
        ("unknown option", picture, {"mm_processor_kwargs": {"colour": "blue"}}),
        ("option of another type", picture, {"mm_processor_kwargs": {"max_pixels": "many"}}),
        ("two frames", film, {"media_io_kwargs": {"video": {"num_frames": 2}}}),
        ("one frame a second", film, {"media_io_kwargs": {"video": {"fps": 1, "num_frames": -1}}}),
        (
            "a black background",
            clear,
            {"media_io_kwargs": {"image": {"rgba_background_color": [0, 0, 0]}}},
        ),
        ("no colour", clear, {"media_io_kwargs": {"image": {"rgba_background_color": "none"}}}),
        ("in shades of grey", picture, {"media_io_kwargs": {"image": {"image_mode": "L"}}}),
        ("of another modality", picture, {"media_io_kwargs": {"audio": {"image_mode": "L"}}}),
        ("unknown way to read", picture, {"media_io_kwargs": {"image": {"eyes": 2}}}),
    )


def _part(kind: str, url: str) -> Part:
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


def _input_audio(data: bytes, form: str) -> Part:
    return {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(data).decode(), "format": form},
    }


def _data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
