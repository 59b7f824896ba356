"""What is in a file of media: looked at before it is decoded, and refused in words for a client."""

import base64
import io
import random
import resource
import struct
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from vllm import envs
from vllm.entrypoints.speech_to_text.base import serving as speech_serving
from vllm.exceptions import VLLMValidationError
from vllm.multimodal import audio
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY
from vllm.multimodal.media import audio as media_audio
from vllm.multimodal.media.audio import load_audio

from render_service import vllm_media_resampling
from render_service.media_rules import MediaRules, media_rules
from render_service.settings import RenderSettings
from render_service.vllm_decoded_images import DecodedImages
from render_service.vllm_media_connector import VLLMS_OWN, GuardedConnector, install
from render_service.vllm_media_fetch import MediaSessions
from tests.models.media import mp4, wav
from tests.models.raw_media import files
from tests.models.supplied_media import encoded
from tests.pictures import png

RULES = media_rules(RenderSettings(generate_url=("http://generate:1",)))


def connector(rules: MediaRules = RULES, **options: Any) -> GuardedConnector:
    return GuardedConnector(
        rules=rules,
        sessions=MediaSessions(rules.addresses),
        images=DecodedImages(0),
        **options,
    )


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def fetch(kind: str, data: bytes, rules: MediaRules = RULES, media_type: str = "a/b") -> Any:
    return getattr(connector(rules), f"fetch_{kind}")(data_url(data, media_type))


def refusal(kind: str, data: bytes, rules: MediaRules = RULES, **options: Any) -> str:
    with pytest.raises((VLLMValidationError, ValueError)) as refused:
        fetch(kind, data, rules, **options)
    message = str(refused.value.args[0])
    assert "/" not in message
    assert "0x" not in message
    assert "Traceback" not in message
    return message


def test_a_broken_picture_takes_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        refusal("image", b"no picture" * 100)
    (record,) = caplog.records
    assert record.exc_info is None
    assert "UnidentifiedImageError" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 300


KINDS = {"png": "image", "jpg": "image", "webp": "image", "gif": "image", "mp4": "video"}


@pytest.mark.parametrize("name", files())
def test_ordinary_files_are_read(name: str) -> None:
    assert fetch(KINDS.get(name.rpartition(".")[2], "audio"), files()[name]) is not None


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width: int, height: int, *more: bytes) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = chunk(b"IDAT", zlib.compress(bytes(100)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + b"".join(more) + rows + chunk(b"IEND", b"")


def webp_of(width: int, height: int) -> bytes:
    canvas = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    animation = b"ANIM" + struct.pack("<IIH", 6, 0, 0)
    still = saved(Image.new("RGB", (8, 8)), "WEBP", lossless=True)[12:]
    frame = bytes(6) + struct.pack("<I", 7)[:3] + struct.pack("<I", 7)[:3] + bytes(4) + still
    body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + canvas + animation
    body += b"ANMF" + struct.pack("<I", len(frame)) + frame
    return b"RIFF" + struct.pack("<I", len(body)) + body


def saved(picture: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def text_of(size: int) -> bytes:
    return png_of(8, 8, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(size))))


def profile_of(size: int) -> bytes:
    return png_of(8, 8, chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(size))))


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="http://10.0.0.1/a.png"/></svg>'
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n"

BOMBS = {
    "a PNG of 20,000 x 20,000": png_of(20_000, 20_000),
    "a PNG of 2,000 million x 2,000 million": png_of(2**31 - 1, 2**31 - 1),
    "a PNG of nothing": png_of(0, 0),
    "a WebP of 16,383 x 16,383": webp_of(16_383, 16_383),
    "a PNG with a text of 500 MB": text_of(5 * 10**8),
    "a PNG with a profile of 500 MB": profile_of(5 * 10**8),
    "SVG": SVG,
    "PostScript": POSTSCRIPT,
    "HTML": b"<html><img src=/a.png></html>",
    "a film": mp4(1, 2, 16, 16),
    "an archive": b"PK\x03\x04" + bytes(100),
    "nothing": b"",
    "one byte": b"\x89",
    "half a PNG": png(1)[:400],
    "half a JPEG": saved(Image.effect_noise((64, 64), 50).convert("RGB"), "JPEG")[:500],
    "a TIFF that is its own next page": b"II*\0\x08\0\0\0\0\0\x08\0\0\0",
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS)
def test_bombs_and_what_is_no_picture(data: bytes) -> None:
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    refusal("image", data)
    assert time.monotonic() - begun < 2
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 100 * 2**10, f"{grown_kib} KiB"


def test_pixels() -> None:
    rules = replace(RULES, max_image_pixels=64 * 64)
    assert fetch("image", png(1, 64, 64), rules).size == (64, 64)
    assert "65 x 64 pixels" in refusal("image", png(1, 65, 64), rules)


def test_formats() -> None:
    qoi = saved(Image.new("RGB", (8, 8)), "QOI")
    assert "QOI" in refusal("image", qoi)
    assert fetch("image", qoi, replace(RULES, image_formats=frozenset({"QOI"}))).size == (8, 8)


@pytest.mark.parametrize("form", sorted(RULES.image_formats))
def test_every_format_that_is_read_unless_told_otherwise(form: str) -> None:
    picture = Image.new("RGB", (32, 32))
    options = {"save_all": True, "append_images": [picture]} if form == "MPO" else {}
    data = saved(picture, form, **options)
    assert Image.open(io.BytesIO(data)).format == form
    assert fetch("image", data).size == (32, 32)


def test_of_an_animation_the_first_frame_is_decoded() -> None:
    frames = [Image.new("P", (500, 500), shade % 250) for shade in range(300)]
    gif = saved(frames[0], "GIF", save_all=True, append_images=frames[1:], optimize=False)
    begun = time.monotonic()
    assert fetch("image", gif).size == (500, 500)
    assert time.monotonic() - begun < 0.2


def test_a_polyglot_is_what_it_is_read_as() -> None:
    both = png(1, 32, 32) + b"#EXTM3U\nhttp://10.0.0.1/\n"
    assert fetch("image", both).size == (32, 32)
    refusal("video", both)
    refusal("audio", both)


def test_bytes() -> None:
    for kind, data in (("image", png(1)), ("audio", wav(1, 0.2, 8_000)), ("video", files_film())):
        fetch(kind, data, replace(RULES, max_bytes=len(data)))
        rules = replace(RULES, max_bytes=len(data) - 1)
        assert str(len(data) - 1) in refusal(kind, data, rules)


def files_film() -> bytes:
    return files()["film.mp4"]


PLAYLISTS = {
    "session": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\n"
    b"m=audio 50004 RTP/AVP 0\n",
    "hls": b"#EXTM3U\n#EXTINF:10,\nhttp://10.0.0.1/a.ts\n#EXT-X-ENDLIST\n",
    "hls after a mark": b"\xef\xbb\xbf#EXTM3U\nfile:///etc/passwd\n\0\0",
    "concat": b"ffconcat version 1.0\nfile 'file:///etc/passwd'\n",
    "dash": b"<?xml version='1.0'?>"
    + b" " * 5000
    + b"<MPD><BaseURL>http://10.0.0.1</BaseURL></MPD>",
    "asx": b"<ASX><ENTRY><REF HREF='http://10.0.0.1/a.wmv'/></ENTRY></ASX>",
}


@pytest.mark.parametrize("kind", ["audio", "video"])
@pytest.mark.parametrize("data", PLAYLISTS.values(), ids=PLAYLISTS)
def test_playlists_are_not_followed(kind: str, data: bytes) -> None:
    begun = time.monotonic()
    assert "say where one is" in refusal(kind, data)
    assert time.monotonic() - begun < 0.5


BROKEN_SOUNDS = {
    "nothing": b"",
    "half a header": wav(1, 0.1, 8_000)[:20],
    "no sound": b"not a sound",
    "a picture": png(1),
    "a length that lies": wav(1, 0.1, 8_000)[:40] + b"\xff\xff\xff\x7f" + bytes(1600),
    "no rate": wav(1, 0.1, 8_000)[:24] + bytes(8) + wav(1, 0.1, 8_000)[32:],
}  # fmt: skip


@pytest.mark.parametrize("data", BROKEN_SOUNDS.values(), ids=BROKEN_SOUNDS)
def test_broken_sounds(data: bytes) -> None:
    """A file that says more than it has is read as far as it goes, as vLLM does."""
    try:
        samples, _ = fetch("audio", data)
    except (VLLMValidationError, ValueError):
        refusal("audio", data)
    else:
        assert samples.nbytes < 10**6


def test_long_sounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MAX_AUDIO_DECODE_DURATION_S", "2")
    assert fetch("audio", wav(1, 1.9, 8_000)) is not None
    assert "maximum allowed duration" in refusal("audio", wav(1, 2.1, 8_000))


def test_many_channels() -> None:
    """Sixty thousand of them, said by a header of 44 bytes."""
    head = bytearray(wav(1, 0.1, 8_000))
    head[22:24] = struct.pack("<H", 60_000)
    refusal("audio", bytes(head))


def avi_of(frames: int) -> bytes:
    """A film of four frames whose header tells of another number."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="avi") as film:
        stream = film.add_stream("mjpeg", rate=4)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuvj420p"
        for shade in range(4):
            picture = np.full((64, 64, 3), shade * 50, np.uint8)
            film.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        film.mux(stream.encode())
    data = bytearray(file.getvalue())
    at = data.index(b"strh") + 8 + 32
    assert struct.unpack_from("<I", data, at) == (4,)
    struct.pack_into("<I", data, at, frames)
    return bytes(data)


def test_frames_of_a_film() -> None:
    assert fetch("video", mp4(1, 6, 32, 32), replace(RULES, max_video_frames=6)) is not None
    assert "6 frames" in refusal("video", mp4(1, 6, 32, 32), replace(RULES, max_video_frames=5))


def test_a_number_of_frames_that_lies() -> None:
    begun = time.monotonic()
    for told in (4, 2**31 - 1):
        frames, _ = fetch("video", avi_of(told)).media
        assert len(frames) == 4
    assert time.monotonic() - begun < 5


def test_memory_of_a_film() -> None:
    size = 6 * 32 * 32 * 3
    assert fetch("video", mp4(1, 6, 32, 32), replace(RULES, max_video_decoded_bytes=size))
    tight = replace(RULES, max_video_decoded_bytes=size - 1)
    assert "frames take more" in refusal("video", mp4(1, 6, 32, 32), tight)


def frames_url(*pictures: bytes) -> str:
    frames = ",".join(base64.b64encode(picture).decode() for picture in pictures)
    return f"data:video/jpeg;base64,{frames}"


def test_a_film_of_pictures() -> None:
    jpeg = saved(Image.new("RGB", (32, 32)), "JPEG")
    film = connector().fetch_video(frames_url(jpeg, jpeg))
    assert film.media[0].shape == (2, 32, 32, 3)
    rules = replace(RULES, max_video_decoded_bytes=32 * 32 * 3)
    with pytest.raises(VLLMValidationError, match="frames take more"):
        connector(rules).fetch_video(frames_url(jpeg, jpeg))
    with pytest.raises(VLLMValidationError, match="pixels"):
        connector().fetch_video(frames_url(png_of(20_000, 20_000)))
    with pytest.raises(VLLMValidationError):
        connector().fetch_video(frames_url(SVG))


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
def test_files_of_the_host(kind: str, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link.png").symlink_to("/etc/hostname")
    (inside / "endless").symlink_to("/dev/zero")
    (inside / "round").symlink_to(inside / "round")
    (inside / "folder").mkdir()
    outside = tmp_path / "out.png"
    outside.write_bytes(png(1))
    for options in ({}, {"allowed_local_media_path": str(inside)}):
        for path in (
            *("inside/link.png", "inside/endless", "inside/folder", "inside/round", "inside/a"),
            *("out.png", "inside/" + "a" * 300),
        ):
            read = getattr(connector(RULES, **options), f"fetch_{kind}")
            with pytest.raises((VLLMValidationError, ValueError)) as refused:
                read((tmp_path / path).as_uri())
            assert str(tmp_path) not in str(refused.value.args[0])


def test_an_allowed_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    reading = connector(allowed_local_media_path=str(tmp_path))
    assert reading.fetch_image((tmp_path / "a.png").as_uri()).size == (64, 64)


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
def test_embeddings(kind: str) -> None:
    import torch

    fetch_embedding = getattr(connector(), f"fetch_{kind}_embedding")
    rows = torch.randn(4, 8)
    assert torch.equal(fetch_embedding(encoded(rows)), rows)
    assert fetch_embedding(encoded(torch.tensor([1, 4, 4]))).tolist() == [1, 4, 4]
    for wrong in (
        "AAAA",
        "!",
        encoded(rows * torch.nan),
        encoded(rows / 0),
        encoded(rows.to_sparse()),
    ):
        with pytest.raises(VLLMValidationError) as refused:
            fetch_embedding(wrong)
        assert refused.value.parameter == f"{kind}_embeds"


def test_vllm_makes_the_connector_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = MEDIA_CONNECTOR_REGISTRY.name2class
    monkeypatch.setitem(registry, VLLMS_OWN, registry[VLLMS_OWN])
    monkeypatch.setattr(speech_serving, "load_audio", load_audio)
    monkeypatch.setattr(audio, "resample_audio_torchaudio", audio.resample_audio_torchaudio)
    for name in ("resample_audio_pyav", "load_audio_pyav"):
        monkeypatch.setattr(media_audio, name, getattr(media_audio, name))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
    for name in ("VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB", "VLLM_MAX_AUDIO_DECODE_DURATION_S"):
        monkeypatch.setenv(name, "100000")
    monkeypatch.setenv("VLLM_MAX_IMAGE_PIXELS", "5")

    install(RULES, DecodedImages(0))

    assert (envs.VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB, envs.VLLM_MAX_IMAGE_PIXELS) == (256, 5)
    assert envs.VLLM_MAX_AUDIO_DECODE_DURATION_S == 600
    made = MEDIA_CONNECTOR_REGISTRY.load(
        envs.VLLM_MEDIA_CONNECTOR,
        media_io_kwargs=None,
        allowed_local_media_path="",
        allowed_media_domains=None,
    )
    assert isinstance(made, GuardedConnector)
    assert speech_serving.load_audio(io.BytesIO(wav(1, 0.5, 16_000)), sr=16_000)
    with pytest.raises(VLLMValidationError, match="say where one is"):
        speech_serving.load_audio(io.BytesIO(PLAYLISTS["session"]), sr=16_000)
    assert audio.resample_audio_torchaudio is vllm_media_resampling.resample


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", files())
def test_mutants_are_read_or_refused(name: str) -> None:
    """By an error that vLLM answers with 400, and in no other way."""
    data, chance = files()[name], random.Random(5)
    kind = KINDS.get(name.rpartition(".")[2], "audio")
    refused = 0
    for _ in range(100):
        mutant = bytearray(data)
        for _ in range(chance.randrange(1, 5)):
            place = chance.randrange(
                min(len(mutant), 400 if chance.random() < 0.7 else len(mutant))
            )
            mutant[place : place + chance.randrange(5)] = chance.randbytes(chance.randrange(5))
        if chance.random() < 0.2:
            del mutant[chance.randrange(1, len(mutant)) :]
        try:
            fetch(kind, bytes(mutant))
        except (VLLMValidationError, ValueError):
            refused += 1
    assert refused
