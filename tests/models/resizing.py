"""Requests one of whose tensors has another size than the model's processor gave it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from shared_protocol.items import MultiModalItem, NestedTensor
from shared_protocol.request import GenerateRequest
from shared_protocol.tensors import TensorRef


@dataclass(frozen=True)
class Resized:
    """
    Attributes:
        key: of the element that was changed.
        axis: the dimension.
    """

    request: GenerateRequest
    key: str
    axis: int


def resized_tensors(request: GenerateRequest) -> Iterator[Resized]:
    """Yield `request` with one tensor one longer or shorter, for each tensor and dimension."""
    features = request.features
    assert features is not None
    assert features.kwargs_data is not None
    for modality, items in features.kwargs_data.items():
        for index, item in enumerate(items):
            assert item is not None
            for key, axis, changed in _resized_items(item):
                others = [*items[:index], changed, *items[index + 1 :]]
                data = {**features.kwargs_data, modality: others}
                replaced = msgspec.structs.replace(features, kwargs_data=data)
                yield Resized(msgspec.structs.replace(request, features=replaced), key, axis)


def _resized_items(item: MultiModalItem) -> Iterator[tuple[str, int, MultiModalItem]]:
    for key, element in item.elements.items():
        for axis, data in _resized_data(element.data):
            changed = msgspec.structs.replace(element, data=data)
            yield key, axis, MultiModalItem({**item.elements, key: changed})


def _resized_data(data: NestedTensor | None) -> Iterator[tuple[int, NestedTensor]]:
    if isinstance(data, TensorRef):
        if not data.nbytes:
            return
        for axis, size in enumerate(data.shape):
            yield axis, _taken(data, axis, [*range(size), size - 1])
            if size > 1:
                yield axis, _taken(data, axis, list(range(size - 1)))
    elif isinstance(data, list):
        for index, member in enumerate(data):
            for axis, changed in _resized_data(member):
                yield axis, [*data[:index], changed, *data[index + 1 :]]


def _taken(tensor: TensorRef, axis: int, places: list[int]) -> TensorRef:
    width = tensor.nbytes // math.prod(tensor.shape)
    values = np.frombuffer(tensor.data, dtype=np.uint8).reshape(*tensor.shape, width)
    taken = np.take(values, places, axis)
    return TensorRef(tensor.dtype, taken.shape[:-1], taken.tobytes())
