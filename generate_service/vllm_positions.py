"""Where the tokens of a prompt stand beside its media, asked of the served model's own code.

vLLM's runner asks it about every request, and whatever it raises ends the engine for everybody; so
does a position that the model's table has not. Here the same is asked before the engine is.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from vllm.config import ModelConfig, VllmConfig
from vllm.model_executor.model_loader import get_model_cls
from vllm.multimodal.inputs import MultiModalFeatureSpec
from vllm.multimodal.utils import argsort_mm_positions
from vllm.sampling_params import SamplingParams

from generate_service.item_admission import PROMPT_EMBEDS_MODALITY
from generate_service.vllm_request import EngineRequest
from shared_protocol.errors import InvalidRequest

_PARAM: Final = "features"

_TABLE_FACTOR: Final = 4
"""`MRotaryEmbedding` makes room for more positions than tokens, since films have some of time."""

_QWEN3_VL: Final = "Qwen3VLForConditionalGeneration"

_ASKED: Final = frozenset(
    {
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        _QWEN3_VL,
        "Qwen2_5OmniThinkerForConditionalGeneration",
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        "Qwen3ASRForConditionalGeneration",
    }
)
"""Classes whose counting needs no more of a model than its configuration. Those that derive from
them and count in the same way, such as Qwen3.5, need not be named."""

_FRAMES: Final = "audio_feature_lengths"
_SIZES: Final = ("image_grid_thw", "video_grid_thw", _FRAMES)
_MOST_FRAMES_PER_POSITION: Final = 16
"""More than any encoder of sounds makes one embedding of."""


@dataclass(frozen=True)
class ModelPositions:
    """
    Attributes:
        model: of the served class, with its configuration and nothing else.
        table: how many positions it knows.
        max_model_len: how many tokens a request may have.
        drafts: how many tokens are tried beyond the last that is asked for.
        merge: side of the square of patches that becomes one embedding.
        kept: the part of a video's embeddings that is not pruned.
    """

    model: Any
    table: int
    max_model_len: int
    drafts: int
    merge: int
    kept: float


def find_positions(config: VllmConfig) -> ModelPositions | None:
    """Return what requests are measured by; None for a model that is not to be asked."""
    model_config = config.model_config
    if not asked(model_config):
        return None
    model_class = get_model_cls(model_config)
    model = model_class.__new__(model_class)
    hf_config = getattr(model_config.hf_config, "thinker_config", model_config.hf_config)
    # Past torch's own way, which wants a module that has been initialized.
    vars(model)["config"] = hf_config
    speculative = config.speculative_config
    return ModelPositions(
        model=model,
        table=table_length(model_config),
        max_model_len=model_config.max_model_len,
        drafts=0 if speculative is None else speculative.num_speculative_tokens,
        merge=getattr(getattr(hf_config, "vision_config", None), "spatial_merge_size", 1),
        kept=1.0 - (model_config.get_multimodal_config().video_pruning_rate or 0.0),
    )


def asked(config: ModelConfig) -> bool:
    """Whether the model counts positions in a way that can be asked without its weights."""
    if not (config.is_multimodal_model and config.uses_mrope):
        return False
    return _counting_class(config) in _ASKED


def _counting_class(config: ModelConfig) -> str:
    method: Any = getattr(get_model_cls(config), "get_mrope_input_positions", None)
    return "" if method is None else str(method.__qualname__).partition(".")[0]


def table_length(config: ModelConfig) -> int:
    """Return how many positions are in the table that vLLM makes for the model.

    YaRN stretches what the model was trained for, and the table with it.
    """
    text = config.hf_text_config
    rope = getattr(text, "rope_parameters", None) or {}
    known: int = text.max_position_embeddings
    if rope.get("rope_type") == "yarn":
        known = int(rope["original_max_position_embeddings"] * rope["factor"])
    media = config.multimodal_config
    pruned = media is not None and media.is_multimodal_pruning_enabled()
    # Qwen3-VL's films have no positions of time, so that vLLM saves the room unless it prunes.
    narrow = _counting_class(config) == _QWEN3_VL and not pruned
    return known if narrow else _TABLE_FACTOR * known


def check_positions(request: EngineRequest, known: ModelPositions) -> None:
    """
    Raises:
        InvalidRequest: if the engine would fail to place the request's media in its prompt, or
            what comes behind them.
    """
    if request.prompt["type"] != "multimodal":
        return
    features = list(_features(request.prompt))
    if not features:
        return
    for feature in features:
        _check_size(feature, known)
    token_ids = request.prompt["prompt_token_ids"]
    positions = _positions(known.model, token_ids, features)
    _check_shape(positions, len(token_ids), known)
    room = known.max_model_len - len(token_ids)
    _check_range(positions, min(_asked_for(request, room) + known.drafts, room), known)


def _features(prompt: Any) -> Iterator[MultiModalFeatureSpec]:
    """As vLLM's input processor puts them together; its runner leaves out supplied embeddings."""
    places, items = prompt["mm_placeholders"], prompt["mm_kwargs"]
    for modality, index in argsort_mm_positions(places):
        if modality != PROMPT_EMBEDS_MODALITY:
            place = places[modality][index]
            yield MultiModalFeatureSpec(items[modality][index], modality, "", place)


def _check_size(feature: MultiModalFeatureSpec, known: ModelPositions) -> None:
    """Demand sizes that fit the place, before arrays of those sizes are made.

    Of items that a connector brings, that a client has made or that are pruned, no rule has
    counted anything.
    """
    place = feature.mm_position
    for key, element in (feature.data or {}).items():
        if key not in _SIZES or not isinstance(element.data, torch.Tensor):
            continue
        sizes = element.data.flatten().tolist()
        if key == _FRAMES:
            fits = all(0 < count <= _MOST_FRAMES_PER_POSITION * place.length for count in sizes)
        else:
            fits = len(sizes) == 3 and min(sizes) > 0 and _fits(feature, sizes, known)
        _demand(fits, f"{key} does not fit the placeholder, which has {place.length} positions")


def _fits(feature: MultiModalFeatureSpec, sides: list[int], known: ModelPositions) -> bool:
    embeds: int = math.prod(sides) // known.merge**2
    length: int = feature.mm_position.length
    if feature.modality == "video" and known.kept < 1.0:
        return embeds * known.kept < length + 1
    expected: int = feature.mm_position.get_num_embeds()
    return embeds == expected


def _positions(
    model: Any, token_ids: list[int], features: list[MultiModalFeatureSpec]
) -> torch.Tensor:
    """Return positions as ``(3, tokens)``."""
    try:
        positions, _ = model.get_mrope_input_positions(token_ids, features)
    except Exception as error:
        # Whatever it is, the engine would meet it too.
        raise InvalidRequest(
            f"features: the model cannot place these items in this prompt ({error!r})",
            param=_PARAM,
        ) from error
    found: torch.Tensor = positions
    return found


def _check_shape(positions: torch.Tensor, tokens: int, known: ModelPositions) -> None:
    counted = positions.shape[-1]
    # What is pruned is counted too, and taken out once the encoder has said what it is.
    fits = counted >= tokens if known.kept < 1.0 else counted == tokens
    _demand(fits, f"the model counts {counted} positions for {tokens} tokens")


def _check_range(positions: torch.Tensor, following: int, known: ModelPositions) -> None:
    """Demand that the positions, and those of `following` tokens, are in the model's table."""
    lowest, highest = int(positions.min()), int(positions.max())
    _demand(lowest >= 0, f"the media come to a position of {lowest}")
    _demand(
        highest + following < known.table,
        f"the media come to a position of {highest}, and {following} tokens may follow; the model "
        f"knows {known.table} positions",
    )


def _asked_for(request: EngineRequest, room: int) -> int:
    """How many tokens the request asks for, which are all if it does not say."""
    params = request.params
    if not isinstance(params, SamplingParams):
        return 0
    return room if params.max_tokens is None else int(params.max_tokens)


def _demand(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidRequest(f"features: {message}", param=_PARAM)
