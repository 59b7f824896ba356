"""Reading the elements of an item that has been found to be made like the processor's."""

import math
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from generate_service.item_sample import Sample, SampleTensor
from shared_protocol.errors import InvalidRequest
from shared_protocol.items import MultiModalItem, NestedTensor
from shared_protocol.tensors import TensorRef

_MOST_ROUNDING: Final = 2.0**-16
"""Of a sum of float32, relative to its numbers without their signs: 2**-24 for each addition that a
number goes through. In torch those are no more than 256, in whatever order a device adds."""

_INTEGER_DTYPES: Final = ("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64")


class ItemReader:
    """One item, read element by element; every method raises `InvalidRequest`.

    Attributes:
        param: where the item stands in the request.
    """

    def __init__(self, item: MultiModalItem, sample: Sample, param: str) -> None:
        self._item = item
        self._sample = sample
        self.param = param

    def __contains__(self, key: str) -> bool:
        return key in self._item.elements

    def refuse(self, key: str, message: str) -> NoReturn:
        param = f"{self.param}.{key}"
        raise InvalidRequest(f"{param} {message}", param=param)

    def demand(self, condition: bool, key: str, message: str) -> None:
        if not condition:
            self.refuse(key, message)

    def shape(self, key: str) -> tuple[int, ...]:
        return self._tensor(key).shape

    def fixed(self, key: str) -> None:
        """Demand the sizes that this model's processor always makes."""
        self._demand_sizes(key, 0)

    def count(self, key: str) -> int:
        """Return the first size; the others have to be those that the processor makes."""
        self._demand_sizes(key, 1)
        first = self.shape(key)[0]
        self.demand(first > 0, key, "is empty")
        return first

    def fixed_size(self, key: str, axis: int) -> None:
        """Demand, along `axis`, the size that this model's processor always makes."""
        shape, usual = self.shape(key), self.usual_size(key, axis)
        self.demand(
            shape[axis] == usual,
            key,
            f"is {list(shape)}, it must have {usual} along dimension {axis}",
        )

    def usual_size(self, key: str, axis: int) -> int:
        """Return the size that the sample of this model's processor has along `axis`."""
        sample = self._sample[key].data
        return sample.shape[axis] if isinstance(sample, SampleTensor) else self.shape(key)[axis]

    def same_sizes(self, key: str, start: int) -> bool:
        """Whether the sizes from `start` on are those that the processor makes."""
        sample = self._sample[key].data
        return isinstance(sample, SampleTensor) and (
            self.shape(key)[start:] == sample.shape[start:]
        )

    def length(self, key: str) -> int:
        """Return how many members a list has, or how long a tensor is along its first dimension."""
        data = self._data(key)
        if isinstance(data, list):
            return len(data)
        return self.shape(key)[0] if self.shape(key) else 1

    def integers(self, key: str) -> list[int]:
        """Return the values of an integer tensor, a number, or a list of those."""
        values: list[int] = []
        for data in _flattened(self._data(key)):
            if isinstance(data, TensorRef):
                values += self._integers(data, key).ravel().tolist()
            else:
                self.demand(float(data).is_integer(), key, "must be whole numbers")
                values.append(int(data))
        return values

    def integer(self, key: str) -> int:
        values = self.integers(key)
        self.demand(len(values) == 1, key, "must be one number")
        return values[0]

    def number(self, key: str) -> float:
        """Return the value of a tensor of one real number, or of a plain number."""
        data = self._data(key)
        if not isinstance(data, TensorRef):
            if not isinstance(data, int | float):
                self.refuse(key, "must be a number")
            return float(data)
        self.demand(math.prod(data.shape) == 1, key, "must be one number")
        return float(_numbers(data)[0])

    def array(self, key: str) -> NDArray[Any]:
        """Return an integer tensor, without copying it."""
        return self._integers(self._tensor(key), key)

    def prefix(self, key: str) -> int:
        """Return how many ones a mask of any dtype begins with; only zeros may follow."""
        tensor = self._tensor(key)
        self.demand(tensor.nbytes > 0, key, "is empty")
        values = _numbers(tensor)
        mask: NDArray[np.bool_] = values == 1
        true = int(np.count_nonzero(mask))
        # Models add masks up.
        self.demand(true + int(np.count_nonzero(values == 0)) == len(mask), key, "must be 0 and 1")
        self.demand(true > 0, key, "has no true entry")
        self.demand(bool(mask[:true].all()), key, "must be true up to some position only")
        return true

    def demand_filled(self, key: str, *, leading: int = 1) -> None:
        """Demand that no part along the leading dimensions is all zeros, which means padding."""
        tensor = self._tensor(key)
        self.demand(tensor.nbytes > 0, key, "is empty")
        parts = np.frombuffer(tensor.data, dtype=np.uint8).reshape(
            math.prod(tensor.shape[:leading]), -1
        )
        self.demand(bool(parts.any(axis=1).all()), key, "has a part that is all zeros")

    def demand_sum(self, key: str) -> None:
        """Demand that the numbers of a tensor do not add up to 0, not even through rounding."""
        numbers = _numbers(self._tensor(key))
        with np.errstate(invalid="ignore"):
            total = abs(numbers.sum(dtype=np.float64))
        most = _MOST_ROUNDING * max(1.0, np.abs(numbers).sum(dtype=np.float64))
        self.demand(bool(total > most), key, "has numbers that add up to 0")

    def _integers(self, tensor: TensorRef, key: str) -> NDArray[Any]:
        self.demand(tensor.dtype in _INTEGER_DTYPES, key, "must be whole numbers")
        self.demand(tensor.nbytes > 0, key, "is empty")
        return np.frombuffer(tensor.data, dtype=tensor.dtype).reshape(tensor.shape)

    def _demand_sizes(self, key: str, start: int) -> None:
        sample = self._sample[key].data
        shape = self.shape(key)
        expected = sample.shape if isinstance(sample, SampleTensor) else shape
        if shape[start:] != expected[start:]:
            wanted = [*["any"] * start, *expected[start:]]
            self.refuse(key, f"is {list(shape)}, it must be [{', '.join(map(str, wanted))}]")

    def _tensor(self, key: str) -> TensorRef:
        data = self._data(key)
        if not isinstance(data, TensorRef):
            self.refuse(key, "must be a tensor")
        return data

    def _data(self, key: str) -> NestedTensor:
        element = self._item.elements.get(key)
        if element is None or element.data is None:
            self.refuse(key, "is missing")
        return element.data


def _numbers(tensor: TensorRef) -> NDArray[Any]:
    if tensor.dtype == "bfloat16":
        # Those are the upper halves of float32.
        halves = np.frombuffer(tensor.data, dtype="<u2")
        return (halves.astype("<u4") << 16).view("<f4")
    # A bool is a byte, which can be another than 0 and 1.
    return np.frombuffer(tensor.data, dtype="uint8" if tensor.dtype == "bool" else tensor.dtype)


def _flattened(data: NestedTensor) -> list[TensorRef | int | float]:
    if isinstance(data, list):
        return [leaf for member in data for leaf in _flattened(member)]
    return [data]


Rule: TypeAlias = Callable[[ItemReader], int]
"""Checks that an item is consistent in itself; returns how many embeddings it yields."""
