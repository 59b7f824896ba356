"""How sounds of strange sample rates are resampled, so that they cost no more than others.

vLLM resamples by torchaudio, whose kernel has a row for each place that a sample can have between
those of the other rate: for 16,000 Hz it has 76 thousand numbers from 44,100 Hz, and 706 million
from 44,101 Hz. A tenth of a second at 7,999 Hz took 4 GB and 7 s of CPU time, and vLLM keeps the
last 32 kernels, that one of 0.5 GB.
"""

import io
import math
from typing import Any, Final, TypeAlias

import av
import numpy as np
from numpy.typing import NDArray
from vllm.multimodal import audio as vllm_audio
from vllm.multimodal.audio import (
    resample_audio_pyav,
    resample_audio_soxr,
    resample_audio_torchaudio,
)
from vllm.multimodal.media import audio as vllm_media_audio
from vllm.multimodal.media.audio import load_audio_pyav

from shared_protocol.errors import InvalidRequest

MAX_SAMPLE_RATE: Final = 768_000
"""The highest of sound cards. FFmpeg's filter grows with the rate: 17 GB for 2**31 Hz."""

MAX_KERNEL_NUMBERS: Final = 2**20
"""4 MiB, so that the 32 kernels that vLLM keeps are at most 128 MiB. The largest for a rate that
is in use, 11,025 Hz, has 291,200 with 16,000 Hz and 582,400 with 32,000 Hz."""

PIECE_SAMPLES: Final = 2**20
"""Of a long sound resampled to a rate that divides its own: for each place where the kernel lies,
torch copies the samples below it, 14 times the sound, 1.7 GB for ten minutes at 48,000 Hz."""

# Of torchaudio's Resample, as vLLM makes it.
_ZERO_CROSSINGS: Final = 6
_ROLLOFF: Final = 0.99

Samples: TypeAlias = NDArray[np.floating[Any]]


def check_sample_rate(rate: float) -> None:
    """
    Raises:
        InvalidRequest: for one that no sound has.
    """
    if not 1 <= rate <= MAX_SAMPLE_RATE:
        raise InvalidRequest(
            f"The sound has a sample rate of {rate:.0f} Hz. Rates from 1 Hz to {MAX_SAMPLE_RATE} "
            "Hz are read."
        )


def kernel_numbers(rate: int, target: int) -> int:
    """How many numbers torchaudio's kernel between two rates has."""
    common = math.gcd(rate, target)
    stride, rows = rate // common, target // common
    width = math.ceil(_ZERO_CROSSINGS * stride / (min(stride, rows) * _ROLLOFF))
    return rows * (2 * width + stride)


def resample(audio: Samples, *, orig_sr: float, target_sr: float) -> Samples:
    """Resample as vLLM does, or by soxr if that would take a large kernel.

    A sound of such a rate is answered rather than refused: some old files have one, and soxr needs
    no more for them than for others. It is among vLLM's own methods; what the model hears differs a
    little from what it hears in vLLM.
    """
    if not audio.shape[-1]:
        # torchaudio fails on it, which would be a 500; nothing is nothing at any rate.
        return audio
    rate, target = round(orig_sr), round(target_sr)
    if kernel_numbers(rate, target) <= MAX_KERNEL_NUMBERS:
        if rate % target == 0:
            return _in_pieces(audio, rate, target)
        own: Samples = resample_audio_torchaudio(audio, orig_sr=orig_sr, target_sr=target_sr)
        return own
    made = resample_audio_soxr(audio, orig_sr=orig_sr, target_sr=target_sr)
    # soxr rounds where torchaudio rounds up; the model's tokens are counted by the samples.
    length = -(-audio.shape[-1] * target // rate)
    samples = np.zeros((*audio.shape[:-1], length), made.dtype)
    samples[..., : made.shape[-1]] = made
    return samples


def _in_pieces(audio: Samples, rate: int, target: int) -> Samples:
    """Resample to a rate that divides the sound's, to the numbers that the whole would give."""
    stride = rate // target
    piece = PIECE_SAMPLES // stride * stride
    # As far as the kernel reaches on either side, and to where it would lie in the whole.
    around = (_ZERO_CROSSINGS + 1) * stride
    made = []
    for begin in range(0, max(1, audio.shape[-1]), piece):
        before = min(begin, around)
        samples = resample_audio_torchaudio(
            audio[..., begin - before : begin + piece + around], orig_sr=rate, target_sr=target
        )
        made.append(samples[..., before // stride : (before + piece) // stride])
    return np.concatenate(made, axis=-1)


def _resample_pyav(audio: Samples, *, orig_sr: float, target_sr: float) -> Samples:
    check_sample_rate(orig_sr)
    own: Samples = resample_audio_pyav(audio, orig_sr=orig_sr, target_sr=target_sr)
    return own


def _load_pyav(path: Any, *, sr: float | None = 22050, **options: Any) -> Any:
    """vLLM's reader by FFmpeg, of uploads and of films' sounds, which resamples while it reads."""
    if sr is not None:
        _check_track(path)
    return load_audio_pyav(path, sr=sr, **options)


def _check_track(path: Any) -> None:
    """Ask of the rate as vLLM is about to, of the track that it takes."""
    try:
        with av.open(path) as container:
            rates = [track.rate for track in container.streams.audio[:1]]
    except av.error.FFmpegError:
        rates = []  # vLLM says what is wrong with it.
    finally:
        if isinstance(path, io.BytesIO):
            path.seek(0)
    for rate in rates:
        check_sample_rate(rate)


def install() -> None:
    """Have vLLM resample by these functions: sounds of chats, of uploads and in films."""
    vllm_audio.resample_audio_torchaudio = resample
    vllm_media_audio.resample_audio_pyav = _resample_pyav
    vllm_media_audio.load_audio_pyav = _load_pyav
