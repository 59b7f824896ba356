"""The wire is what it was when the golden files were written."""

from collections.abc import Callable

import msgspec
import pytest

from shared_protocol.binary_codec import decode_binary
from shared_protocol.frames import FrameReader
from shared_protocol.json_codec import decode_json
from shared_protocol.request import PROTOCOL_VERSION, GenerateRequest
from tests.shared_protocol.golden_files import (
    ANSWERS,
    FOLDER,
    MANIFEST,
    REQUESTS,
    differences,
)


def test_what_is_written_now_is_what_was_written_then() -> None:
    assert list(differences()) == []


@pytest.mark.parametrize(
    ("suffix", "decode"), [("json", decode_json), ("safetensors", decode_binary)]
)
@pytest.mark.parametrize("name", REQUESTS)
def test_golden_requests_are_read(
    name: str, suffix: str, decode: Callable[[bytes], GenerateRequest]
) -> None:
    assert decode((FOLDER / f"{name}.{suffix}").read_bytes()) == REQUESTS[name]


@pytest.mark.parametrize("name", ANSWERS)
def test_golden_answers_are_read(name: str) -> None:
    assert list(FrameReader().feed((FOLDER / f"{name}.frames").read_bytes())) == ANSWERS[name]


def test_the_manifest_names_the_version_spoken() -> None:
    versions = msgspec.json.decode((FOLDER / MANIFEST).read_bytes())
    assert versions.keys() == {"protocol_version", "msgspec", "vllm"}
    assert versions["protocol_version"] == PROTOCOL_VERSION
