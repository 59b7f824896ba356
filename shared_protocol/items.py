"""A processed multimodal item: what the model's encoder is called with, key by key.

Mirrors vLLM's ``MultiModalKwargsItem`` and its three kinds of field, which say how the items of
a batch are put together.
"""

from collections.abc import Iterator
from typing import Annotated, TypeAlias, Union

import msgspec

from shared_protocol.tensors import TensorRef

NestedTensor: TypeAlias = Union[TensorRef, int, float, list["NestedTensor"]]  # noqa: UP007
"""A tensor, a number (some processors pass one), or a ragged list of those."""

Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What msgpack and torch can hold; JSON could say more."""

SliceBounds: TypeAlias = list[Int64 | None]
"""start, stop and step of a Python slice."""


class BatchedField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Items are stacked along a new first dimension."""

    keep_on_cpu: bool = False


class FlatField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Items are concatenated along `dim`; `slices` cut them out of the batch they came from.

    A slice is one `SliceBounds`, or a list of them, one a dimension.
    """

    slices: list[list[Int64 | SliceBounds | None]]
    dim: Int64 = 0
    keep_on_cpu: bool = False

    def __post_init__(self) -> None:
        for entry in self.slices:
            bounds = entry if any(isinstance(member, list) for member in entry) else [entry]
            if not all(isinstance(member, list) and len(member) == 3 for member in bounds):
                raise ValueError("a slice is its start, stop and step, each an integer or null")


class SharedField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One value for every item of the batch."""

    batch_size: Int64
    keep_on_cpu: bool = False


ItemField: TypeAlias = BatchedField | FlatField | SharedField


class ItemElement(msgspec.Struct, frozen=True):
    """One keyword argument of the encoder; `data` is None when the engine holds it already."""

    data: NestedTensor | None
    field: ItemField


class MultiModalItem:
    """The elements of one image, audio clip, video or span of embeddings, by keyword."""

    __slots__ = ("elements",)

    def __init__(self, elements: dict[str, ItemElement]) -> None:
        self.elements = elements

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MultiModalItem):
            return NotImplemented
        return self.elements == other.elements

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"MultiModalItem({self.elements!r})"

    def tensors(self) -> Iterator[tuple[str, TensorRef]]:
        """Yield every tensor with its path, such as ``pixel_values`` or ``pixel_values/0``."""
        for key, element in self.elements.items():
            if element.data is not None:
                yield from nested_tensors(key, element.data)


def supplied_key(modality: str) -> str:
    """The key under which an item of `modality` holds embeddings that a client made, if any."""
    return "embedding" if modality == "prompt_embeds" else f"{modality}_embeds"


def nested_tensors(path: str, data: NestedTensor) -> Iterator[tuple[str, TensorRef]]:
    """Yield the tensors in `data` with their paths, depth first."""
    if isinstance(data, TensorRef):
        yield path, data
    elif isinstance(data, list):
        for index, member in enumerate(data):
            yield from nested_tensors(f"{path}/{index}", member)
