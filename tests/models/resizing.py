"""Requests whose tensors have another size than the model's processor gave them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

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


def padded(request: GenerateRequest, axes: Mapping[str, int], *, times: int) -> GenerateRequest:
    """Return `request`, of one item, with tensors that are so many times as long.

    Args:
        axes: by key of an element, the dimension along which it is padded: with 0, places with -1.
    """
    features = request.features
    assert features is not None
    assert features.kwargs_data is not None
    ((modality, (item,)),) = features.kwargs_data.items()
    assert item is not None
    elements = dict(item.elements)
    for key, axis in axes.items():
        data = elements[key].data
        assert isinstance(data, TensorRef)
        longer = _padded(data, axis, times, 0xFF if "position" in key else 0)
        elements[key] = msgspec.structs.replace(elements[key], data=longer)
    replaced = msgspec.structs.replace(features, kwargs_data={modality: [MultiModalItem(elements)]})
    return msgspec.structs.replace(request, features=replaced)


def _padded(tensor: TensorRef, axis: int, times: int, byte: int) -> TensorRef:
    values = _bytes(tensor)
    widths = [(0, (times - 1) * size if axis == of else 0) for of, size in enumerate(values.shape)]
    longer = np.pad(values, widths, constant_values=byte)
    return TensorRef(tensor.dtype, longer.shape[:-1], longer.tobytes())


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
    taken = np.take(_bytes(tensor), places, axis)
    return TensorRef(tensor.dtype, taken.shape[:-1], taken.tobytes())


def _bytes(tensor: TensorRef) -> NDArray[np.uint8]:
    """Those of each number along one more dimension: numpy does not know all dtypes."""
    width = tensor.nbytes // math.prod(tensor.shape)
    return np.frombuffer(tensor.data, dtype=np.uint8).reshape(*tensor.shape, width)
