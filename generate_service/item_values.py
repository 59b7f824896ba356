"""Whether the numbers of items and supplied embeddings are such as a model can compute with.

A number that overflows on its way through the model becomes NaN, and NaN spreads: to what else is
in the batch of the encoder, and by the engine's cache of keys and values.
"""

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from shared_protocol.errors import InvalidRequest
from shared_protocol.items import NestedTensor, supplied_key
from shared_protocol.request import GenerateRequest
from shared_protocol.tensors import TensorRef

MAX_ITEM_VALUE: Final = 1e4
"""Beyond what processors make: pixels are within 255, waveforms and log-mel features within 100,
times are seconds."""

# Without its sign a float is ordered as the integer of the same bits; infinity and NaN come last.
_UNSIGNED: Final[dict[str, np.dtype[Any]]] = {
    "float16": np.dtype("<u2"),
    "bfloat16": np.dtype("<u2"),
    "float32": np.dtype("<u4"),
    "float64": np.dtype("<u8"),
}
_INFINITY_BITS: Final = {
    "float16": 0x7C00,
    "bfloat16": 0x7F80,
    "float32": 0x7F800000,
    "float64": 0x7FF0000000000000,
}


def check_values(request: GenerateRequest) -> None:
    """Look at every float in the items and the supplied embeddings of `request`.

    Raises:
        InvalidRequest: with ``param`` naming the tensor that holds NaN, infinity or, where a
            processor should have made it, a number beyond `MAX_ITEM_VALUE`.
    """
    if request.prompt_embeds is not None:
        for index, tensor in enumerate(request.prompt_embeds.tensors):
            _check(tensor, math.inf, f"prompt_embeds.tensors[{index}]")
    items_of = {} if request.features is None else request.features.kwargs_data or {}
    for modality, items in items_of.items():
        for index, item in enumerate(items):
            for key, element in ({} if item is None else item.elements).items():
                limit = math.inf if key == supplied_key(modality) else MAX_ITEM_VALUE
                for number in _numbers(element.data):
                    _check(number, limit, f"features.kwargs_data.{modality}[{index}].{key}")


def _numbers(data: NestedTensor | None) -> Iterator[TensorRef | float]:
    if isinstance(data, TensorRef | float):
        yield data
    elif isinstance(data, list):
        for member in data:
            yield from _numbers(member)


def _check(number: TensorRef | float, limit: float, param: str) -> None:
    within = _within(number, limit) if isinstance(number, TensorRef) else abs(number) < limit
    if not within:
        wanted = "finite" if limit == math.inf else f"between -{limit:g} and {limit:g}"
        raise InvalidRequest(f"{param}: its numbers must be {wanted}", param=param)


def _within(tensor: TensorRef, limit: float) -> bool:
    unsigned = _UNSIGNED.get(tensor.dtype)
    if unsigned is None:
        return True
    sign = 1 << (8 * unsigned.itemsize - 1)
    without_sign = np.frombuffer(tensor.data, unsigned) & unsigned.type(sign - 1)
    return bool(without_sign.max(initial=0) < _bits(tensor.dtype, limit))


def _bits(dtype: str, limit: float) -> int:
    if limit == math.inf:
        return _INFINITY_BITS[dtype]
    if dtype == "bfloat16":
        return int(np.float32(limit).view(np.uint32)) >> 16
    return int(np.dtype(dtype).type(limit).view(_UNSIGNED[dtype]))
