"""The checkpoints are what the other tests take them for. No engine runs here."""

import io
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from transformers import AutoTokenizer
from vllm.engine.arg_utils import EngineArgs
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing import ProcessorInputs, TimingContext

from tests.checkpoints import FAMILIES, NAMES, build, checkpoint
from tests.pictures import png

# torch's own, on the way to vLLM's processors.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

LARGEST = 5_000_000  # bytes
TEXTS = (
    "plain words",
    "tabs\tand\r\nnewlines\n\n\n\n\n",
    "日本語 🎉 ünïcode",
    '{"k": [1, 2]}',
    "\x00",
)
TOKEN_TABLES = {
    "gemma3": "language_model.model.embed_tokens.weight",
    "qwen2_vl": "model.embed_tokens.weight",
    "smolvlm": "model.text_model.embed_tokens.weight",
}


def picture(seed: int = 0, width: int = 64, height: int = 64) -> Image.Image:
    return Image.open(io.BytesIO(png(seed, width, height)))


def runs(is_embed: torch.Tensor | None) -> str | None:
    """`[F, F, T, T, T, T, F]` as `.2 E4 .1`, the way vLLM's mask is written in docs."""
    if is_embed is None:
        return None
    return " ".join(
        f"{'E' if embedded else '.'}{len(list(run))}"
        for embedded, run in groupby(is_embed.tolist())
    )


def rendered(path: Path, images: list[Image.Image]) -> Any:
    """vLLM's engine input for a chat with `images`, each followed by some text."""
    messages = [
        {
            "role": "user",
            "content": [
                part
                for _ in images
                for part in ({"type": "image"}, {"type": "text", "text": "What is this?"})
            ],
        }
    ]
    prompt = AutoTokenizer.from_pretrained(path).apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    processor = MULTIMODAL_REGISTRY.create_processor(
        EngineArgs(model=str(path), dtype="float32").create_model_config()
    )
    items = processor.info.parse_mm_data({"image": images})
    return processor.apply(ProcessorInputs(prompt, items), TimingContext(enabled=False))


@pytest.mark.parametrize("name", FAMILIES)
def test_is_small_and_the_same_each_time(name: str, tmp_path: Path) -> None:
    first = build(name, tmp_path / "first")
    second = build(name, tmp_path / "second")
    files = sorted(file.name for file in first.iterdir())
    assert files == sorted(file.name for file in second.iterdir())
    assert all((first / file).read_bytes() == (second / file).read_bytes() for file in files)
    assert sum((first / file).stat().st_size for file in files) < LARGEST


@pytest.mark.parametrize("name", NAMES)
def test_vocabulary_ends_with_the_tokenizer_or_some_rows_later(name: str) -> None:
    rows = {}
    for headroom in (False, True):
        path = checkpoint(name, vocab_headroom=headroom)
        with safe_open(path / "model.safetensors", "pt") as weights:
            rows[headroom] = weights.get_tensor(TOKEN_TABLES[name])
        config = json.loads((path / "config.json").read_text())
        assert config["text_config"]["vocab_size"] == len(rows[headroom])
    length = len(AutoTokenizer.from_pretrained(path))
    assert len(rows[False]) == length
    assert len(rows[True]) >= length + 8
    assert torch.equal(rows[True][:length], rows[False])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives_the_tokenizer(name: str, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint(name))
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert max(ids) < len(tokenizer)


@pytest.mark.parametrize("name", NAMES)
def test_chat_template_knows_roles_turns_and_plain_strings(name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint(name))
    texts = ["Be terse.", "Hello", "Hi.", "And now?"]
    roles = ["system", "user", "assistant", "user"]
    plain = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    parts = [
        {"role": message["role"], "content": [{"type": "text", "text": message["content"]}]}
        for message in plain
    ]
    prompt = tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    open_ended = tokenizer.apply_chat_template(plain, tokenize=False)
    assert (
        tokenizer.apply_chat_template(parts, tokenize=False, add_generation_prompt=True) == prompt
    )
    assert prompt.startswith(open_ended)
    assert prompt != open_ended
    positions = [prompt.index(text) for text in texts]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("name", "size", "mask"),
    [
        ("gemma3", (64, 64), ".2 E4 .2"),
        ("gemma3", (500, 300), ".2 E4 .2"),
        ("qwen2_vl", (64, 64), None),
        ("qwen2_vl", (500, 300), None),
        ("smolvlm", (64, 64), ".2 E4 .2 E4 .3 E4 .2 E4 .4 E4 .1"),
        ("smolvlm", (9, 9), ".2 E4 .2 E4 .3 E4 .2 E4 .4 E4 .1"),
        ("smolvlm", (200, 60), ".2 E4 .2 E4 .4 E4 .1"),
    ],
)
def test_placeholder_mask(name: str, size: tuple[int, int], mask: str | None) -> None:
    rendering = rendered(checkpoint(name), [picture(0, *size)])
    (placeholder,) = rendering["mm_placeholders"]["image"]
    assert runs(placeholder.is_embed) == mask


@pytest.mark.parametrize("name", NAMES)
def test_two_images_have_two_placeholders(name: str) -> None:
    rendering = rendered(checkpoint(name), [picture(1), picture(2)])
    first, second = rendering["mm_placeholders"]["image"]
    assert first.offset + first.length < second.offset
    assert len(set(rendering["mm_hashes"]["image"])) == 2
    assert second.offset + second.length < len(rendering["prompt_token_ids"])


def test_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gemma3"):
        build("gemma9", tmp_path / "gemma9")


def test_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINT_CACHE", str(tmp_path))
    path = checkpoint("gemma3")
    weights = (path / "model.safetensors").stat()
    assert checkpoint("gemma3") == path
    assert (path / "model.safetensors").stat() == weights
    assert list(tmp_path.iterdir()) == [path]
