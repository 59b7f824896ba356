"""Sounds of every sample rate: as vLLM resamples them, by a cheaper method, or refused."""

import base64
import io
import math
import struct
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from vllm.exceptions import VLLMValidationError
from vllm.multimodal import audio
from vllm.multimodal.audio import AudioResampler, resample_audio_pyav, resample_audio_torchaudio
from vllm.multimodal.media import AudioMediaIO
from vllm.multimodal.media import audio as media_audio
from vllm.multimodal.media.audio import load_audio, load_audio_pyav
from vllm.multimodal.parse import MultiModalDataParser

from render_service import vllm_media_resampling
from render_service.media_rules import media_rules
from render_service.settings import RenderSettings
from render_service.vllm_decoded_images import DecodedImages
from render_service.vllm_media_connector import GuardedConnector, load_upload
from render_service.vllm_media_fetch import MediaSessions
from render_service.vllm_media_resampling import (
    MAX_KERNEL_NUMBERS,
    MAX_SAMPLE_RATE,
    PIECE_SAMPLES,
    install,
    kernel_numbers,
)
from tests.models.media import samples, wav

# Torch warns of it whenever vLLM turns oneDNN off to resample.
pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning")

RULES = media_rules(RenderSettings(generate_url=("http://generate:1",)))

# What telephones, discs, films, sound cards and codecs use, and the sums and halves of those.
ORDINARY = (
    *(6_000, 7_350, 8_000, 11_025, 12_000, 14_700, 16_000, 18_900, 22_050, 24_000, 32_000),
    *(37_800, 44_100, 47_250, 48_000, 50_000, 64_000, 88_200, 96_000, 176_400, 192_000),
    *(352_800, 384_000, 705_600, 768_000),
)
ODD = (5_512, 7_999, 11_027, 22_051, 22_254, 44_101, 191_999, 767_999)
TOO_HIGH = (MAX_SAMPLE_RATE + 1, 1_000_003, 67_108_859, 2**31 - 1)
TARGETS = (16_000, 24_000)
"""The rates at which the models of vLLM hear."""

Sound = NDArray[np.floating[Any]]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "resample_audio_torchaudio", resample_audio_torchaudio)
    monkeypatch.setattr(media_audio, "resample_audio_pyav", resample_audio_pyav)
    monkeypatch.setattr(media_audio, "load_audio_pyav", load_audio_pyav)
    install()


@pytest.fixture
def no_torchaudio(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(orig: int, target: int) -> None:
        raise AssertionError(f"a kernel for {orig} and {target}")

    monkeypatch.setattr(audio, "_get_torchaudio_resampler", refuse)


def tone(rate: int, seconds: float = 0.5) -> Sound:
    return np.sin(2 * np.pi * 440 * np.arange(round(rate * seconds)) / rate).astype(np.float32)


def resampled(sound: Sound, rate: int, target: int = 16_000) -> Sound:
    made: Sound = AudioResampler(target).resample(sound, orig_sr=rate)
    return made


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rate", ORDINARY)
def test_ordinary_rates_are_resampled_as_by_vllm(rate: int, target: int) -> None:
    sound = samples(1, 0.3, rate).astype(np.float32) / 2**15
    theirs = resample_audio_torchaudio(sound, orig_sr=rate, target_sr=target)
    assert np.array_equal(resampled(sound, rate, target), theirs)


@pytest.mark.usefixtures("no_torchaudio")
@pytest.mark.parametrize(
    ("rate", "target"),
    [
        (rate, target)
        for rate in ODD
        for target in TARGETS
        if kernel_numbers(rate, target) > MAX_KERNEL_NUMBERS
    ],
)
def test_odd_rates_are_heard_without_a_kernel(rate: int, target: int) -> None:
    made = resampled(tone(rate), rate, target)
    expected = tone(target)
    within = slice(len(expected) // 4, -len(expected) // 4)
    assert made.dtype == np.float32
    assert np.abs(made[: len(expected)][within] - expected[within]).max() < 0.01


def test_an_odd_rate_sounds_as_by_vllm() -> None:
    """Of 5,512 Hz, the kernel is just too large, and can be had for comparing."""
    sound = tone(5_512)
    theirs = resample_audio_torchaudio(sound, orig_sr=5_512, target_sr=16_000)
    made = resampled(sound, 5_512)
    assert not np.array_equal(made, theirs)
    assert np.abs(made[200:-200] - theirs[200:-200]).max() < 0.01


@pytest.mark.usefixtures("no_torchaudio")
def test_as_many_samples_as_by_vllm() -> None:
    """The model's tokens are counted by them."""
    draw = np.random.default_rng(1)
    for rate in (*ODD, *draw.integers(1_000, 768_000, 30).tolist()):
        if kernel_numbers(rate, 16_000) <= MAX_KERNEL_NUMBERS:
            continue
        for count in (0, 1, 2, *draw.integers(1, 20_000, 5).tolist()):
            sound = draw.standard_normal((2, count)).astype(np.float32)
            expected = math.ceil(count * 16_000 / rate)
            assert resampled(sound[0], rate).shape == (expected,), (rate, count)
            assert resampled(sound, rate).shape == (2, expected), (rate, count)


@pytest.mark.parametrize("target", [*TARGETS, 44_100])
@pytest.mark.parametrize("rate", [1, 3, 250, *ORDINARY])
def test_the_size_of_a_kernel_is_known_beforehand(rate: int, target: int) -> None:
    assert kernel_numbers(rate, target) <= MAX_KERNEL_NUMBERS
    if rate != target:
        kernel = audio._get_torchaudio_resampler(rate, target).kernel
        assert kernel.numel() == kernel_numbers(rate, target)


def test_what_is_kept_of_kernels() -> None:
    """Whatever rates are sent, by whoever wants the worst of them."""
    kept = audio._get_torchaudio_resampler.cache_parameters()["maxsize"]
    sizes = (kernel_numbers(rate, 16_000) for rate in range(1, MAX_SAMPLE_RATE + 1))
    worst = sorted(size for size in sizes if size <= MAX_KERNEL_NUMBERS)[-kept:]
    assert sum(worst) * 4 <= 128 * 2**20


@pytest.mark.parametrize("rate", [8_000, 44_100, 44_101, 48_000])
@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_a_sound_of_no_samples(rate: int, shape: tuple[int, ...]) -> None:
    assert resampled(np.zeros(shape, np.float32), rate).shape == shape


@pytest.mark.parametrize("rate", [32_000, 48_000, 96_000, 192_000, 768_000])
def test_long_sounds_in_pieces(monkeypatch: pytest.MonkeyPatch, rate: int) -> None:
    lengths = []

    def recording(sound: Sound, **rates: float) -> Any:
        lengths.append(sound.shape[-1])
        return resample_audio_torchaudio(sound, **rates)

    monkeypatch.setattr(vllm_media_resampling, "resample_audio_torchaudio", recording)
    draw = np.random.default_rng(1)
    for length in (1, 1_000, PIECE_SAMPLES + 1, 2 * PIECE_SAMPLES + 77_777):
        sound = draw.standard_normal(length).astype(np.float32)
        theirs = resample_audio_torchaudio(sound, orig_sr=rate, target_sr=16_000)
        assert np.array_equal(resampled(sound, rate), theirs), length
    assert len(lengths) == 1 + 1 + 2 + 3
    assert max(lengths) < PIECE_SAMPLES * 1.001


def of_rate(rate: int) -> bytes:
    """A sound of 100 ms whose header tells of another rate."""
    file = bytearray(wav(1, 0.1, 8_000))
    file[24:32] = struct.pack("<II", rate, min(2 * rate, 2**32 - 1))
    return bytes(file)


def matroska(rate: int) -> bytes:
    """What soundfile cannot read, so that FFmpeg does."""
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as film:
        track = film.add_stream("pcm_s16le", rate=rate, layout="mono")
        heard = av.AudioFrame.from_ndarray(
            samples(1, 0.1, 160_000)[None], format="s16", layout="mono"
        )
        heard.sample_rate, heard.time_base, heard.pts = rate, Fraction(1, rate), 0
        film.mux(track.encode(heard))
        film.mux(track.encode(None))
    return file.getvalue()


def fetch(data: bytes) -> tuple[Sound, float]:
    connector = GuardedConnector(
        images=DecodedImages(0), rules=RULES, sessions=MediaSessions(RULES.addresses)
    )
    url = f"data:audio/wav;base64,{base64.b64encode(data).decode()}"
    sound: tuple[Sound, float] = connector.fetch_audio(url)
    return sound


@pytest.mark.usefixtures("no_torchaudio")
@pytest.mark.parametrize("make", [of_rate, matroska])
@pytest.mark.parametrize("rate", ODD)
def test_a_sound_in_a_chat(make: Any, rate: int) -> None:
    sound = fetch(make(rate))
    theirs, _ = AudioMediaIO().load_bytes(make(rate))
    assert np.array_equal(sound[0], theirs)
    parser = MultiModalDataParser(target_sr=16_000)
    heard = parser.parse_mm_data({"audio": [sound]})["audio"].get(0)
    assert len(heard) == math.ceil(len(theirs) * 16_000 / rate)


@pytest.mark.parametrize("make", [of_rate, matroska])
@pytest.mark.parametrize("rate", TOO_HIGH)
def test_rates_that_nothing_records_at(make: Any, rate: int) -> None:
    data = make(rate)
    with pytest.raises(VLLMValidationError, match=f"{rate} Hz.* 768000 Hz") as refused:
        fetch(data)
    assert refused.value.parameter == "audio_url"
    with pytest.raises(VLLMValidationError, match=f"{rate} Hz.* 768000 Hz") as refused:
        load_upload(io.BytesIO(data), sr=16_000)
    assert refused.value.parameter == "file"


@pytest.mark.parametrize("rate", [0, 2**31, 2**32 - 1])
def test_rates_that_are_none(rate: int) -> None:
    with pytest.raises((VLLMValidationError, ValueError)):
        fetch(of_rate(rate))


@pytest.mark.parametrize("rate", TOO_HIGH)
def test_the_sound_of_a_film(rate: int) -> None:
    """Those who look for it in the film that they were given take FFmpeg, by this function."""
    assert media_audio.load_audio_pyav is not load_audio_pyav
    with pytest.raises(Exception, match=f"{rate} Hz"):
        media_audio.load_audio_pyav(io.BytesIO(matroska(rate)))
    data = matroska(44_101)
    ours = media_audio.load_audio_pyav(io.BytesIO(data))
    assert np.array_equal(ours[0], load_audio_pyav(io.BytesIO(data))[0])


@pytest.mark.parametrize("make", [of_rate, matroska])
@pytest.mark.parametrize("rate", [8_000, 44_100, *ODD])
def test_uploads_are_resampled_as_by_vllm(
    monkeypatch: pytest.MonkeyPatch, make: Any, rate: int
) -> None:
    """FFmpeg's filter grows with the rate alone."""
    with monkeypatch.context() as unguarded:
        unguarded.setattr(media_audio, "resample_audio_pyav", resample_audio_pyav)
        unguarded.setattr(media_audio, "load_audio_pyav", load_audio_pyav)
        theirs = outcome(load_audio, make(rate))
    ours = outcome(load_upload, make(rate))
    assert type(ours) is type(theirs)
    assert np.array_equal(ours, theirs)


def outcome(load: Any, data: bytes) -> Any:
    try:
        return load(io.BytesIO(data), sr=16_000)[0]
    except ValueError as error:
        return str(error)
