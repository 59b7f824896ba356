"""Tiny random checkpoints of real model families, complete with tokenizer and processor."""

import hashlib
import importlib
import os
import tempfile
from pathlib import Path

NAMES = ("gemma3", "qwen2_vl", "smolvlm")
"""Those that the tests of the pair are run with."""

FAMILIES = (
    *NAMES,
    *("deepseek_ocr2", "gemma3n", "gemma4", "idefics3", "lfm2_vl", "llava_onevision", "mimo_omni"),
    *("moss_audio", "nemotron_omni", "phi3_v", "qwen2_5_omni", "qwen2_5_vl", "qwen3_5"),
    *("qwen3", "qwen3_asr", "qwen3_omni", "qwen3_vl", "voxtral", "voxtral_realtime", "whisper"),
)
"""All that can be built; those beyond `NAMES` are for tests of their family."""

_DEFAULT_CACHE = Path(__file__).parents[2] / ".cache" / "checkpoints"


def build(name: str, path: Path, *, vocab_headroom: bool = False) -> Path:
    """Write the checkpoint `name` into the folder `path`.

    Without `vocab_headroom` the model's vocabulary ends where the tokenizer's does, so that the
    id of a token added later has no embedding. With it some spare rows follow.
    """
    if name not in FAMILIES:
        raise ValueError(f"no checkpoint {name!r}, only {', '.join(FAMILIES)}")
    # The builders import transformers, which takes seconds that a cached checkpoint need not pay.
    builder = importlib.import_module(f"{__name__}.{name}")
    built: Path = builder.build(path, vocab_headroom=vocab_headroom)
    return built


def checkpoint(name: str, *, vocab_headroom: bool = False) -> Path:
    """The folder with the checkpoint `name`, built at first use and kept for later runs."""
    cache = Path(os.environ.get("CHECKPOINT_CACHE", _DEFAULT_CACHE))
    variant = "-headroom" if vocab_headroom else ""
    path = cache / f"{name}{variant}-{_source_digest()}"
    if path.is_dir():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    # Two processes may build at once: the first rename wins, and both results are the same.
    with tempfile.TemporaryDirectory(dir=cache, prefix=f".{name}-") as scratch:
        built = build(name, Path(scratch) / name, vocab_headroom=vocab_headroom)
        try:
            built.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    return path


def _source_digest() -> str:
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:12]
