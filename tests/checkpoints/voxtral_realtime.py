"""Voxtral Realtime, as far as a front end needs it; see Voxtral."""

from pathlib import Path

from tests.checkpoints import voxtral


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    return voxtral.save(path, realtime=True)
