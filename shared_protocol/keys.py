"""Keys by which callers are known: from the command line, and from a file that may change.

A key is UTF-8, in a file as in the header of a request; those of other characters than ASCII's are
not understood by every client. No key is ever logged or shown, nor is a part of one.
"""

import hashlib
import logging
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

logger = logging.getLogger(__name__)

_LOOK_INTERVAL_S: Final = 1.0

KeyDigest = bytes


def key_file(text: str) -> str:
    """Read a setting: the path of a file that holds a key on each of its lines."""
    try:
        keys = _read_keys(Path(text))
    except OSError as error:
        raise ValueError(f"{text!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{text!r} is not a text of keys, one a line: line {line} is not UTF-8"
        ) from None
    if not keys:
        raise ValueError(f"{text!r} holds no key")
    return text


def _read_keys(path: Path) -> tuple[str, ...]:
    # With or without the mark that some editors put in front, which no key begins with.
    lines = path.read_bytes().decode("utf-8-sig").splitlines()
    return tuple(line.strip() for line in lines if line.strip())


class KeyFile:
    """The keys in a file, one a line; read again, within a second, when the file changes.

    A file that cannot be read any more changes nothing; one without keys leaves none.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._version = self._look()
        self._keys = _read_keys(self._path)
        self._looked_at = time.monotonic()

    @property
    def keys(self) -> tuple[str, ...]:
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_INTERVAL_S:
            self._looked_at = now
            self._read_if_changed()
        return self._keys

    def _read_if_changed(self) -> None:
        try:
            version = self._look()
            if version == self._version:
                return
            keys = _read_keys(self._path)
        except (OSError, UnicodeDecodeError):
            logger.exception("the keys are those that were read before")
            return
        self._version, self._keys = version, keys
        logger.info("%s has changed: it holds %d keys", self._path, len(keys))

    def _look(self) -> tuple[int, int, int]:
        found = os.stat(self._path)
        return found.st_mtime_ns, found.st_size, found.st_ino


class KeyRing:
    """The keys that are accepted.

    As in vLLM, it is digests that are compared, all of them, and in constant time: how long the
    answer takes says nothing about a key.
    """

    def __init__(self, keys: Iterable[str], file: KeyFile | None = None) -> None:
        self._fixed = tuple(keys)
        self._file = file
        self._digested: tuple[str, ...] = ()
        self._digests: list[KeyDigest] = []

    def holder(self, scope: Mapping[str, Any]) -> KeyDigest | None:
        """The digest of the key that an ASGI request carries; None if it is not accepted."""
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        digest = hashlib.sha256(key.strip()).digest()
        accepted = False
        for known in self._known():
            accepted |= secrets.compare_digest(digest, known)
        return digest if accepted else None

    def _known(self) -> list[KeyDigest]:
        keys = self._fixed + (self._file.keys if self._file else ())
        if keys != self._digested:
            self._digested = keys
            self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]
        return self._digests


def credential_error(key: str, file: str) -> str | None:
    """Say why the two settings of the credential between the services make no sense together."""
    if key and file:
        return "--generate-api-key and --generate-api-key-file are two words for one credential"
    return None


def key_ring(keys: Iterable[str], file: str) -> KeyRing | None:
    """The ring of both sources, of which either may be empty; None if both are."""
    given = tuple(key for key in keys if key)
    if not given and not file:
        return None
    return KeyRing(given, KeyFile(file) if file else None)
