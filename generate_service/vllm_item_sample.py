"""Samples of a model's items, made by its own processor from media that stand for nothing."""

import dataclasses
from typing import Any

import numpy as np
import torch
from vllm.config.multimodal import (
    AudioDummyOptions,
    ImageDummyOptions,
    MultiModalDummyOptions,
    VideoDummyOptions,
)
from vllm.multimodal.inputs import (
    BaseMultiModalField,
    MultiModalFieldElem,
    MultiModalFlatField,
    MultiModalKwargsItem,
    MultiModalSharedField,
)
from vllm.multimodal.processing import BaseMultiModalProcessor, TimingContext

from generate_service.item_sample import (
    Sample,
    SampleData,
    SampleElement,
    SampleList,
    SampleNumber,
    SampleTensor,
)
from shared_protocol.items import BatchedField, FlatField, ItemField, SharedField

_SECOND_OF_SOUND = 16_000

_SMALL = MultiModalDummyOptions(
    image=ImageDummyOptions(width=224, height=224),
    video=VideoDummyOptions(width=224, height=224, num_frames=4),
    audio=AudioDummyOptions(length=_SECOND_OF_SOUND),
)
"""Upper limits: what an item is made of does not depend on the size of its media."""


def make_samples(processor: BaseMultiModalProcessor[Any]) -> dict[str, Sample]:
    """Return a sample of each modality that the service takes.

    A modality whose items only come along with those of another, as the sound in a video, or whose
    limit is 0, has none.
    """
    samples: dict[str, Sample] = {}
    # Some processors compile parts of themselves, which takes longer than all else here.
    with torch.compiler.set_stance("force_eager"):
        for modality, limit in processor.info.allowed_mm_limits.items():
            if limit:
                samples |= _make_sample(processor, modality)
    return samples


def _make_sample(processor: BaseMultiModalProcessor[Any], modality: str) -> dict[str, Sample]:
    inputs = processor.get_dummy_inputs(
        processor.info.ctx.model_config.max_model_len, {modality: 1}, _SMALL
    )
    if not any(items.get_count() for items in inputs.mm_data_items.values()):
        # MiMo's builder of such media has a place for a sound, and makes none.
        sounds = {"audio": [np.zeros(_SECOND_OF_SOUND)]}
        items = processor.info.parse_mm_data(sounds, validate=False)
        inputs = dataclasses.replace(inputs, mm_data_items=items)
    made = processor.apply(inputs, timing_ctx=TimingContext(enabled=False))["mm_kwargs"]
    return {kind: _sample(items[0]) for kind, items in made.items()}


def _sample(item: MultiModalKwargsItem) -> Sample:
    return {key: _sample_element(elem) for key, elem in item.items()}


def _sample_element(elem: MultiModalFieldElem) -> SampleElement:
    return SampleElement(_sample_data(elem.data), _sample_field(elem.field))


def _sample_data(data: Any) -> SampleData:
    if isinstance(data, torch.Tensor):
        return SampleTensor(str(data.dtype).removeprefix("torch."), tuple(data.shape))
    if isinstance(data, list | tuple):
        return SampleList(_sample_data(data[0]) if data else None)
    return SampleNumber()


def _sample_field(field: BaseMultiModalField) -> ItemField:
    if isinstance(field, MultiModalFlatField):
        return FlatField(slices=[], dim=field.dim, keep_on_cpu=field.keep_on_cpu)
    if isinstance(field, MultiModalSharedField):
        return SharedField(batch_size=field.batch_size, keep_on_cpu=field.keep_on_cpu)
    return BatchedField(keep_on_cpu=field.keep_on_cpu)
