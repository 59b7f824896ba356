"""Sounds and films to put into requests; the same arguments give the same bytes."""

import base64
import io
import wave
from fractions import Fraction
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from tests.pictures import data_url, png

Part = dict[str, Any]

_FRAMES_PER_SECOND = Fraction(4)


def image_part(seed: int, width: int, height: int) -> Part:
    return {"type": "image_url", "image_url": {"url": data_url(png(seed, width, height))}}


def audio_part(seed: int, seconds: float, rate: int = 16_000) -> Part:
    data = base64.b64encode(wav(seed, seconds, rate)).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def video_part(seed: int, frames: int, width: int, height: int, **film: Any) -> Part:
    """Of `mp4`."""
    content = base64.b64encode(mp4(seed, frames, width, height, **film)).decode()
    return {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{content}"}}


def samples(seed: int, seconds: float, rate: int) -> NDArray[np.int16]:
    """Tones that change ten times a second, so that no two stretches sound alike."""
    draw = np.random.default_rng(seed)
    times = np.arange(round(seconds * rate)) / rate
    pitches = draw.uniform(100, 3000, size=int(seconds * 10) + 1)[(times * 10).astype(int)]
    tones = 0.4 * np.sin(2 * np.pi * pitches * times) + 0.05 * draw.standard_normal(len(times))
    scaled: NDArray[np.int16] = (np.clip(tones, -1, 1) * 32767).astype(np.int16)
    return scaled


def wav(seed: int, seconds: float, rate: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(samples(seed, seconds, rate).tobytes())
    return file.getvalue()


def mp4(
    seed: int,
    frames: int,
    width: int,
    height: int,
    *,
    sound: bool = False,
    frames_per_second: Fraction = _FRAMES_PER_SECOND,
) -> bytes:
    """Coarse coloured noise, another one each frame; with `sound`, tones as long as it lasts."""
    draw = np.random.default_rng(seed)
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as film:
        # One thread: with several, the bytes differ from run to run.
        pictures = film.add_stream("mpeg4", rate=frames_per_second, options={"threads": "1"})
        pictures.width, pictures.height, pictures.pix_fmt = width, height, "yuv420p"
        track = film.add_stream("aac", rate=16_000, layout="mono") if sound else None
        for _ in range(frames):
            blocks = draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)
            pixels = np.kron(blocks, np.ones((height // 4, width // 4, 1), dtype=np.uint8))
            film.mux(pictures.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        film.mux(pictures.encode(None))
        if track is not None:
            waves = samples(seed, float(frames / frames_per_second), 16_000)
            heard = av.AudioFrame.from_ndarray(waves[None], format="s16", layout="mono")
            heard.sample_rate, heard.time_base, heard.pts = 16_000, Fraction(1, 16_000), 0
            film.mux(track.encode(heard))
            film.mux(track.encode(None))
    return file.getvalue()
