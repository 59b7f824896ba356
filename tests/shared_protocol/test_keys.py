"""Keys, and files of them that change while they are used."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from shared_protocol import keys
from shared_protocol.keys import KeyFile, KeyRing, key_file, key_ring


@pytest.fixture(autouse=True)
def no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_LOOK_INTERVAL_S", 0.0)


def asking(authorization: str | None) -> dict[str, Any]:
    given = [] if authorization is None else [(b"authorization", authorization.encode())]
    return {"headers": [(b"host", b"test"), *given]}


def replace_file(path: Path, text: str) -> None:
    """As Kubernetes and careful editors do: the new one is complete when it is there."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


@pytest.mark.parametrize(
    ("authorization", "accepted"),
    [
        ("Bearer first", True),
        ("bearer second", True),
        ("Bearer  first ", True),
        ("Bearer third", False),
        ("Bearer firs", False),
        ("Bearer first2", False),
        ("Bearer", False),
        ("Bearer ", False),
        ("Basic first", False),
        ("first", False),
        ("", False),
        (None, False),
        ("Bearer schlüssel", True),
    ],
)
def test_who_is_accepted(authorization: str | None, accepted: bool) -> None:
    ring = KeyRing(["first", "second", "schlüssel"])
    assert (ring.holder(asking(authorization)) is not None) == accepted


def test_a_key_of_other_characters_is_compared_as_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes("\ufeffschlüssel\nключ\n".encode())
    ring = key_ring([], key_file(str(file)))
    assert ring is not None
    for key in ("schlüssel", "ключ"):
        headers = [(b"authorization", f"Bearer {key}".encode())]
        assert ring.holder({"headers": headers}) is not None
    latin = [(b"authorization", "Bearer schlüssel".encode("latin-1"))]
    assert ring.holder({"headers": latin}) is None


def test_holders_differ() -> None:
    ring = KeyRing(["first", "second"])
    first, second = (ring.holder(asking(f"Bearer {key}")) for key in ("first", "second"))
    assert first != second
    assert ring.holder(asking("Bearer first")) == first
    assert first is not None
    assert b"first" not in first


def test_without_any_key_there_is_no_ring() -> None:
    assert key_ring(["", ""], "") is None
    assert key_ring(["", "a"], "") is not None


def test_keys_rotate(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("old\n\n")
    ring = key_ring(["fixed"], str(file))
    assert ring is not None

    def accepted() -> list[str]:
        return [
            key
            for key in ("fixed", "old", "new")
            if ring.holder(asking(f"Bearer {key}")) is not None
        ]

    assert accepted() == ["fixed", "old"]
    replace_file(file, "old\nnew\n")
    assert accepted() == ["fixed", "old", "new"]
    replace_file(file, "  new  \r\n")
    assert accepted() == ["fixed", "new"]
    file.unlink()
    assert accepted() == ["fixed", "new"]
    file.write_text("\n")
    assert accepted() == ["fixed"]


def test_the_file_is_not_looked_at_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_LOOK_INTERVAL_S", 60.0)
    file = tmp_path / "keys"
    file.write_text("old")
    read = KeyFile(str(file))
    replace_file(file, "new")
    assert read.keys == ("old",)


def test_keys_are_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "keys"
    file.write_text("secret-one")
    read = KeyFile(str(file))
    replace_file(file, "secret-two\nsecret-three")
    assert read.keys == ("secret-two", "secret-three")
    file.write_bytes(b"secret-\xff\xfe-four")
    assert read.keys == ("secret-two", "secret-three")
    assert "it holds 2 keys" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b" \n", "holds no key"),
        (b"\xff\xfe", "is not a text of keys, one a line: line 1 is not UTF-8"),
        (b"first\n\xc3\xa4\nschl\xfcssel\n", "line 3 is not UTF-8"),
    ],
)
def test_files_that_stop_the_start(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        key_file(str(file))
