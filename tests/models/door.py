"""A request on its way to the engine's door and through it, without any engine.

The render service's front end renders a chat as it would for a replica; the request is written to
the wire and read again as the generate service does. What comes out is compared with what vLLM's
own processor made, which is what `vllm serve` would hand its engine.
"""

from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.sampling_params import SamplingParams

from generate_service.admission import ModelLimits, admit
from generate_service.item_values import check_values
from generate_service.vllm_media_limits import media_limits
from generate_service.vllm_positions import check_positions, find_positions
from generate_service.vllm_request import decode_request
from render_service import vllm_frontend
from render_service.replicas import ReplicaPool
from render_service.settings import parse_render_args
from render_service.transport import GenerateTransport
from shared_protocol.binary_codec import decode_binary, encode_binary
from shared_protocol.json_codec import decode_json, encode_json
from shared_protocol.request import GenerateRequest
from shared_protocol.serving_info import ServingInfo

MAX_MODEL_LEN = 4096
_NO_REPLICA = "http://127.0.0.1:9"

ENCODINGS = {"binary": (encode_binary, decode_binary), "json": (encode_json, decode_json)}


class Door:
    """The front end of one checkpoint, on a replica that is never asked.

    Attributes:
        media: what the replica's admission would know of the model's media.
        vllm_config: of the front end.
    """

    def __init__(self, app: Any, engine: Any, args: Any) -> None:
        self._renderer = app.state.openai_serving_chat.online_renderer
        self._engine = engine
        self.media = media_limits(engine.model_config, engine.renderer.mm_processor)
        self.vllm_config = engine.vllm_config
        self._positions = find_positions(self.vllm_config)
        self._args = args

    @classmethod
    async def open(cls, checkpoint: Path, *flags: str) -> "Door":
        _, args = parse_render_args(
            [
                *(f"--model={checkpoint}", f"--generate-url={_NO_REPLICA}"),
                *("--dtype=float32", f"--max-model-len={MAX_MODEL_LEN}", *flags),
            ],
            {},
        )
        replica = _served(args)
        config = vllm_frontend.build_config(args, replica)
        pool = ReplicaPool([_NO_REPLICA], GenerateTransport())
        app, engine = await vllm_frontend.build_frontend(args, config, pool, replica, "binary")
        return cls(app, engine, args)

    async def render(self, chat: dict[str, Any]) -> tuple[Any, GenerateRequest]:
        """Return vLLM's engine input for `chat`, and what would be sent to a replica."""
        request = ChatCompletionRequest.model_validate(chat)
        _, (prompt,) = await self._renderer.render_chat(request)
        return prompt, self.send(prompt)

    async def render_raw(self, raw: Any) -> tuple[Any, GenerateRequest]:
        """As `render`, for a prompt that no serving class has rendered."""
        prompt = await self._engine.render(raw)
        return prompt, self.send(prompt)

    def send(self, prompt: Any) -> GenerateRequest:
        wire: GenerateRequest = self._engine.prepare(prompt, SamplingParams(), "request").wire
        return wire

    def enter(self, wire: GenerateRequest, encoding: str) -> Any:
        """Return the engine input that a replica would make of `wire`."""
        encode, decode = ENCODINGS[encoding]
        received = decode(bytearray(encode(wire)))
        limits = self._limits()
        admitted = admit(received, limits)
        check_values(admitted, dtype=limits.dtype)
        request = decode_request(admitted, default_max_tokens=16)
        if self._positions is not None:
            check_positions(request, self._positions)
        return request.prompt

    def close(self) -> None:
        self._engine.shutdown()

    def _limits(self) -> ModelLimits:
        model = self._engine.model_config
        return ModelLimits(
            served_names=(),
            vocab_size=model.get_vocab_size(),
            hidden_size=model.get_hidden_size(),
            max_model_len=model.max_model_len,
            dtype=str(model.dtype).removeprefix("torch."),
            enable_prompt_embeds=model.enable_prompt_embeds,
            media=self.media,
            generates=True,
            encoder_decoder=model.is_encoder_decoder,
            adapters=(),
        )


def differences(made: Any, entered: Any) -> list[str]:
    """Name what vLLM's processor made and did not come through the door as it was."""
    found = []
    if made["mm_hashes"] != entered["mm_hashes"]:
        found.append(f"hashes: {made['mm_hashes']} became {entered['mm_hashes']}")
    if made["mm_placeholders"].keys() != entered["mm_placeholders"].keys():
        return [*found, f"modalities became {sorted(entered['mm_placeholders'])}"]
    for modality, ranges in made["mm_placeholders"].items():
        pairs = zip(ranges, entered["mm_placeholders"][modality], strict=True)
        for index, (ours, theirs) in enumerate(pairs):
            if placeholder(ours) != placeholder(theirs):
                found.append(f"placeholder {modality} {index}: {ours} became {theirs}")
        items = zip(made["mm_kwargs"][modality], entered["mm_kwargs"][modality], strict=True)
        for index, (item, other) in enumerate(items):
            found += [f"{modality} {index}: {line}" for line in _item_differences(item, other)]
    return found


def placeholder(place: Any) -> tuple[int, int, list[bool] | None]:
    """Offset, length and mask. vLLM's own comparison takes None and all True for equal."""
    mask = place.is_embed
    return place.offset, place.length, None if mask is None else mask.tolist()


def _item_differences(made: Any, entered: Any) -> list[str]:
    if made.keys() != entered.keys():
        return [f"{sorted(made)} became {sorted(entered)}"]
    return [
        f"{key} changed: {element.field} became {entered[key].field}"
        for key, element in made.items()
        if element.field != entered[key].field or not _same(element.data, entered[key].data)
    ]


def _same(made: Any, entered: Any) -> bool:
    if isinstance(made, torch.Tensor):
        return (
            isinstance(entered, torch.Tensor)
            and (made.dtype, made.shape) == (entered.dtype, entered.shape)
            and _bytes(made).equal(_bytes(entered))
        )
    if isinstance(made, list | tuple):
        return len(made) == len(entered) and all(map(_same, made, entered))
    return bool(made == entered)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """For a comparison in which NaN is equal to itself."""
    return tensor.contiguous().flatten().view(torch.uint8)


def runs(mask: list[bool] | None) -> str:
    """`[F, F, T, T, T, T, F]` as `.2 E4 .1`; "dense" where there is no mask."""
    if mask is None:
        return "dense"
    return " ".join(
        f"{'E' if embedded else '.'}{len(list(run))}" for embedded, run in groupby(mask)
    )


def _served(args: Any) -> ServingInfo:
    return ServingInfo(
        model=args.model,
        served_model_names=[args.model],
        architecture="",
        vocab_size=0,
        hidden_size=0,
        max_model_len=args.max_model_len,
        dtype="float32",
        enable_prompt_embeds=True,
        max_logprobs=20,
        max_num_seqs=8,
        runner_type="generate",
        supported_tasks=["generate"],
        generation_config="auto",
        structured_outputs_backend="auto",
        reasoning_parser="",
        vllm_version="",
    )
