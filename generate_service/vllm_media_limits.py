"""What vLLM says of the media that a model takes."""

from typing import Any, Final

from vllm.config import ModelConfig
from vllm.multimodal.processing import BaseMultiModalProcessor

from generate_service.film_time import FilmTime
from generate_service.item_admission import ItemLimits, MediaLimits
from generate_service.vllm_item_rules import find_rules
from generate_service.vllm_item_sample import make_samples
from generate_service.vllm_positions import asked, table_length

_TAKE_ROWS_FOR_MEDIA: Final = frozenset(
    {
        "Qwen2_5OmniForConditionalGeneration",
        "Qwen2_5OmniModel",
        "Qwen3OmniMoeForConditionalGeneration",
    }
)
"""Architectures for which vLLM takes each row of supplied embeddings for an item, and dies."""

_QWEN3_VL: Final = ("Qwen3VLProcessingInfo", "Qwen3_5ProcessingInfo", "Qwen3_5MoeProcessingInfo")


def media_limits(
    model: ModelConfig,
    processor: BaseMultiModalProcessor[Any] | None,
    *,
    compare_items: bool = True,
) -> MediaLimits:
    """Ask the model's processor, which is None for a model that takes text only.

    Args:
        compare_items: whether to make samples, without which no item is looked into.
    """
    if processor is None:
        return MediaLimits()
    info, media = processor.info, model.get_multimodal_config()
    rules = find_rules(info)
    # With embeddings of media, a limit of 0 says that nothing but those is taken.
    most = {
        modality: None if media.enable_mm_embeds and not limit else limit
        for modality, limit in info.allowed_mm_limits.items()
    }
    samples = make_samples(processor) if compare_items else {}
    return MediaLimits(
        items={
            modality: ItemLimits(
                most[modality],
                samples.get(modality),
                rules.get(modality),
            )
            for modality in info.supported_mm_limits
        },
        takes_embeds=media.enable_mm_embeds and model.architecture not in _TAKE_ROWS_FOR_MEDIA,
        prunes_videos=bool(media.video_pruning_rate),
        embeds_beside_items=not _has_deepstack(info),
        film_time=_film_time(info, model),
        takes_remote=media.allow_missing_mm_embeddings,
        embeds_beside_interleaved=model.architecture != "Qwen3OmniMoeForConditionalGeneration",
    )


def _film_time(info: Any, model: ModelConfig) -> FilmTime | None:
    config: Any = info.get_hf_config()
    vision = getattr(config, "vision_config", None)
    per_second = getattr(config, "position_id_per_seconds", None) or getattr(
        vision, "tokens_per_second", None
    )
    if per_second is None:
        return None
    # What stands beside the films is counted by `vllm_positions`, if the model can be asked.
    beside = 0 if asked(model) else model.max_model_len
    return FilmTime(float(per_second), table_length(model) - beside)


def _has_deepstack(info: Any) -> bool:
    """Whether rows of the encoder's output go to later layers too, in the way of these models.

    vLLM's runner then fails, in the engine, on supplied embeddings, which have no such part.
    """
    config = info.get_hf_config()
    if type(info).__name__ in _QWEN3_VL:
        return bool(getattr(config.vision_config, "deepstack_visual_indexes", None))
    return type(info).__name__ == "MossAudioProcessingInfo" and bool(
        config.deepstack_num_inject_layers
    )
