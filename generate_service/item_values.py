"""Whether the numbers of items and supplied embeddings are such as a model can compute with.

A number that overflows on its way through the model becomes NaN, and NaN spreads: to what else is
in the batch of the encoder, and by the engine's cache of keys and values.
"""

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from generate_service.film_time import STEP
from shared_protocol.errors import InvalidRequest
from shared_protocol.items import NestedTensor, supplied_key
from shared_protocol.request import GenerateRequest
from shared_protocol.tensors import TensorRef

MAX_ITEM_VALUE: Final = 1e4
"""Beyond what processors make: pixels are within 255, waveforms and log-mel features within 100."""

# Without its sign a float is ordered as the integer of the same bits; infinity and NaN come last.
_UNSIGNED: Final[dict[str, np.dtype[Any]]] = {
    "float16": np.dtype("<u2"),
    "bfloat16": np.dtype("<u2"),
    "float32": np.dtype("<u4"),
    "float64": np.dtype("<u8"),
}
_LARGEST: Final = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}


def check_values(request: GenerateRequest, *, dtype: str) -> None:
    """Look at every float in the items and the supplied embeddings of `request`.

    Args:
        dtype: of the model, to which embeddings are converted.

    Raises:
        InvalidRequest: with ``param`` naming the tensor that holds NaN, infinity, a number that is
            too large for the model or, where a processor should have made it and a model computes
            with it, one beyond `MAX_ITEM_VALUE`.
    """
    largest = _LARGEST.get(dtype, math.inf)
    if request.prompt_embeds is not None:
        for index, tensor in enumerate(request.prompt_embeds.tensors):
            _check(tensor, largest, f"prompt_embeds.tensors[{index}]")
    items_of = {} if request.features is None else request.features.kwargs_data or {}
    for modality, items in items_of.items():
        for index, item in enumerate(items):
            for key, element in ({} if item is None else item.elements).items():
                param = f"features.kwargs_data.{modality}[{index}].{key}"
                supplied = key == supplied_key(modality)
                for number in _numbers(element.data):
                    # Plain numbers are sizes and the times of a film, which may be of a day or a
                    # year; no model computes with them. Steps of time are made whole positions.
                    told = key == STEP or not isinstance(number, TensorRef)
                    limit = math.inf if told else largest if supplied else MAX_ITEM_VALUE
                    _check(number, limit, param)


def _numbers(data: NestedTensor | None) -> Iterator[TensorRef | float]:
    if isinstance(data, TensorRef | float):
        yield data
    elif isinstance(data, list):
        for member in data:
            yield from _numbers(member)


def _check(number: TensorRef | float, limit: float, param: str) -> None:
    within = _within(number, limit) if isinstance(number, TensorRef) else math.isfinite(number)
    if not within:
        bounds = "" if math.isinf(limit) else f", and between -{limit:g} and {limit:g}"
        raise InvalidRequest(f"{param}: its numbers must be finite{bounds}", param=param)


def _within(tensor: TensorRef, limit: float) -> bool:
    unsigned = _UNSIGNED.get(tensor.dtype)
    if unsigned is None:
        return True
    sign = 1 << (8 * unsigned.itemsize - 1)
    without_sign = np.frombuffer(tensor.data, unsigned) & unsigned.type(sign - 1)
    return bool(without_sign.max(initial=0) <= _bits(tensor.dtype, limit))


def _bits(dtype: str, limit: float) -> int:
    """Of the largest number of `dtype` that is finite and not beyond `limit`."""
    limit = min(limit, _LARGEST[dtype])
    if dtype == "bfloat16":
        return int(np.float32(limit).view(np.uint32)) >> 16
    return int(np.dtype(dtype).type(limit).view(_UNSIGNED[dtype]))
