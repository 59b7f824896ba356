"""The model families that the pair is measured with, and what each of them takes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.models.media import Part, audio_part, image_part, video_part
from tests.monolith import PROCESSOR_CACHE

MAKERS: dict[str, tuple[Callable[..., Part], ...]] = {
    # Of different sizes, so that their placeholders differ in length.
    "image": (
        lambda seed: image_part(seed, 64, 64),
        lambda seed: image_part(seed, 100, 60),
        lambda seed: image_part(seed, 48, 120),
    ),
    "audio": (
        lambda seed: audio_part(seed, 1.0),
        lambda seed: audio_part(seed, 0.6),
        lambda seed: audio_part(seed, 2.3),
    ),
    "video": (
        lambda seed: video_part(seed, 4, 64, 64),
        lambda seed: video_part(seed, 8, 96, 64),
        lambda seed: video_part(seed, 6, 64, 128),
    ),
    "audio in video": (
        lambda seed: video_part(seed, 8, 64, 64, sound=True),
        lambda seed: video_part(seed, 4, 96, 64, sound=True),
        lambda seed: video_part(seed, 8, 64, 96, sound=True),
    ),
}


@dataclass(frozen=True)
class Family:
    """
    Attributes:
        checkpoint: its builder in `tests.checkpoints`.
        modalities: keys of `MAKERS`.
        flags: for every server of it.
        front_flags: for those that render.
        engine_flags: for those that hold the model.
        most_items: of one modality in one prompt, if vLLM limits them.
        not_run: why vLLM's CPU build cannot run it, or how it fails; then only the way to the
            engine's door is tested.
    """

    title: str
    checkpoint: str
    modalities: tuple[str, ...]
    flags: tuple[str, ...] = ()
    front_flags: tuple[str, ...] = ()
    engine_flags: tuple[str, ...] = ()
    most_items: int = 3
    not_run: str | None = None


# A client may ask for the sound of a video only where the operator allows it.
_SOUND_OF_VIDEO = "--trust-request-mm-kwargs"
_MISTRAL = ("--tokenizer-mode=mistral", "--config-format=mistral")

FAMILIES = {
    "gemma3": Family("Gemma 3", "gemma3", ("image",)),
    "gemma3n": Family("Gemma 3n", "gemma3n", ("image", "audio")),
    "gemma4": Family("Gemma 4", "gemma4", ("image", "video", "audio")),
    "smolvlm": Family("SmolVLM", "smolvlm", ("image",)),
    "idefics3": Family("Idefics3", "idefics3", ("image",)),
    "qwen3_vl": Family("Qwen3-VL", "qwen3_vl", ("image", "video")),
    "qwen3_5": Family(
        # The CPU kernel of the gated delta net takes nothing but bfloat16.
        "Qwen3.5",
        "qwen3_5",
        ("image", "video"),
        flags=("--dtype=bfloat16",),
    ),
    "lfm2_vl": Family("LFM2-VL", "lfm2_vl", ("image",)),
    "moss_audio": Family("MOSS-Audio", "moss_audio", ("audio",), flags=("--trust-remote-code",)),
    "nemotron_omni": Family(
        "Nemotron Nano Omni",
        "nemotron_omni",
        ("image", "video", "audio"),
        # vLLM computes the projection of sounds in bfloat16, whatever the model's dtype.
        flags=("--trust-remote-code", "--dtype=bfloat16"),
        # Its CPU kernel for Mamba has none of the states that a cached prefix begins with. With no
        # other cache either, vLLM gives items no names, by which the encoder's rows are counted.
        engine_flags=("--no-enable-prefix-caching", PROCESSOR_CACHE),
    ),
    "mimo_omni": Family(
        "MiMo omni", "mimo_omni", ("image", "video"), flags=("--trust-remote-code",)
    ),
    "mimo_omni_sound": Family(
        "MiMo omni",
        "mimo_omni",
        # vLLM has no place in a chat for the sound of its videos, and no other API takes it.
        ("audio",),
        flags=("--trust-remote-code",),
        not_run="its encoder of sounds calls kernels that vLLM's CPU build has not "
        "(`vllm.vllm_flash_attn requires the CUDA flash attention extensions`)",
    ),
    "qwen2_vl": Family("Qwen2-VL", "qwen2_vl", ("image", "video")),
    "qwen2_5_vl": Family("Qwen2.5-VL", "qwen2_5_vl", ("image", "video")),
    "llava_onevision": Family("LLaVA-OneVision", "llava_onevision", ("image", "video")),
    "qwen2_5_omni": Family(
        "Qwen2.5-Omni",
        "qwen2_5_omni",
        ("image", "video", "audio", "audio in video"),
        front_flags=(_SOUND_OF_VIDEO,),
    ),
    "qwen3_omni": Family(
        "Qwen3-Omni",
        "qwen3_omni",
        ("image", "video", "audio", "audio in video"),
        front_flags=(_SOUND_OF_VIDEO,),
    ),
    "phi3_v": Family(
        # Its vocabulary and the width of its tower are given, and fit 5 MB in bfloat16 only.
        "Phi-3-V",
        "phi3_v",
        ("image",),
        flags=("--trust-remote-code", "--dtype=bfloat16"),
    ),
    "qwen3_asr": Family("Qwen3-ASR", "qwen3_asr", ("audio",)),
    "qwen3_asr_realtime": Family(
        "Qwen3-ASR Realtime",
        "qwen3_asr",
        ("audio",),
        flags=('--hf-overrides={"architectures": ["Qwen3ASRRealtimeGeneration"]}',),
        most_items=1,
    ),
    "deepseek_ocr2": Family(
        "DeepSeek-OCR-2",
        "deepseek_ocr2",
        ("image",),
        not_run="vLLM builds vision towers of hundreds of megabytes for it, whatever its "
        "configuration says, so that there is no small checkpoint with weights",
    ),
    "voxtral": Family(
        "Voxtral",
        "voxtral",
        ("audio",),
        flags=_MISTRAL,
        engine_flags=("--load-format=mistral",),
    ),
    "voxtral_realtime": Family(
        "Voxtral Realtime",
        "voxtral_realtime",
        ("audio",),
        flags=_MISTRAL,
        most_items=1,
        not_run="a chat ends vLLM's own engine (`The size of tensor a (69) must match the size of "
        "tensor b (12)`), and its checkpoint here has no weights",
    ),
    "idefics3_transformers": Family(
        "Idefics3 by Transformers",
        "idefics3",
        ("image",),
        flags=("--model-impl=transformers",),
    ),
    "qwen2_vl_transformers": Family(
        "Qwen2-VL by Transformers",
        "qwen2_vl",
        ("image",),
        flags=("--model-impl=transformers",),
    ),
}

COMMON_FLAGS = (
    "--enable-prompt-embeds",
    '--limit-mm-per-prompt={"image": 4, "video": 4, "audio": 4}',
)


def text(content: str) -> Part:
    return {"type": "text", "text": content}


def chat(modality: str, *turns: list[Part] | str) -> dict[str, Any]:
    """A chat request of `turns`, the user's and the assistant's by turns."""
    roles = ("user", "assistant")
    request: dict[str, Any] = {
        "messages": [
            {"role": roles[index % 2], "content": turn} for index, turn in enumerate(turns)
        ]
    }
    if modality == "audio in video":
        request["mm_processor_kwargs"] = {"use_audio_in_video": True}
    return request


def media_chats(modality: str, most_items: int = 3) -> dict[str, dict[str, Any]]:
    """Chats over what a placeholder's place and length depend on, by name."""
    first, second, third = MAKERS[modality]
    turns: dict[str, list[list[Part] | str]] = {
        "one": [[text("Look at this:"), first(1), text("and describe it.")]],
        "another": [[text("Look at this:"), first(2), text("and describe it.")]],
        "first of all": [[second(3), text("What is this?")]],
        "last of all": [[text("What is this?"), third(4)]],
        "nothing else": [[first(1)]],
        "two side by side": [[text("Compare"), first(5), second(6), text("now.")]],
        "three between texts": [
            [text("First"), first(7), text("then"), second(8), text("and"), third(9), text("end.")]
        ],
        "two turns": [
            [first(1), text("What is this?")],
            "It is the quick brown fox.",
            [text("And this?"), second(10)],
        ],
    }
    return {
        name: chat(modality, *each) for name, each in turns.items() if _items(each) <= most_items
    }


def _items(turns: list[list[Part] | str]) -> int:
    parts = [part for turn in turns if not isinstance(turn, str) for part in turn]
    return sum(part["type"] != "text" for part in parts)
