"""What the items of one modality are made of, as the model's own processor makes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, Union

from shared_protocol.errors import InvalidRequest
from shared_protocol.items import FlatField, ItemElement, ItemField, MultiModalItem, NestedTensor
from shared_protocol.tensors import TensorRef


@dataclass(frozen=True)
class SampleTensor:
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SampleNumber:
    """A plain number, which some processors pass."""


@dataclass(frozen=True)
class SampleList:
    """A list whose members are all made as `member` is; one that was empty says nothing of them."""

    member: "SampleData | None"


SampleData: TypeAlias = Union[SampleTensor, SampleNumber, SampleList]  # noqa: UP007


@dataclass(frozen=True)
class SampleElement:
    data: SampleData
    field: ItemField


Sample: TypeAlias = Mapping[str, SampleElement]
"""The elements of an item that the processor made, by keyword."""


def filled_keys(sample: Sample) -> set[str]:
    """The elements that hold what is seen or heard, and not its size or number."""
    return {key for key, element in sample.items() if _holds_floats(element.data)}


def _holds_floats(data: SampleData | None) -> bool:
    if isinstance(data, SampleList):
        return _holds_floats(data.member)
    return isinstance(data, SampleTensor) and "float" in data.dtype


def check_like_sample(item: MultiModalItem, sample: Sample, *, param: str) -> None:
    """Raise `InvalidRequest` unless `item` has the elements of `sample`, made as those are.

    Keywords, fields, dtypes and numbers of dimensions have to be the same; sizes may differ.
    """
    if item.elements.keys() != sample.keys():
        raise InvalidRequest(
            f"{param} has the elements {_named(item.elements)}, the model's processor makes "
            f"{_named(sample)}",
            param=param,
        )
    for key, element in item.elements.items():
        _check_element(element, sample[key], f"{param}.{key}")


def _named(elements: Mapping[str, object]) -> str:
    return ", ".join(sorted(elements)) or "none"


def _check_element(element: ItemElement, sample: SampleElement, param: str) -> None:
    if _kind(element.field) != _kind(sample.field):
        raise InvalidRequest(
            f"{param}.field is {_kind(element.field)}, it must be {_kind(sample.field)}",
            param=f"{param}.field",
        )
    if element.data is None:
        raise InvalidRequest(f"{param} has no data", param=param)
    _check_data(element.data, sample.data, param)


def _kind(field: ItemField) -> str:
    axis = f" along dimension {field.dim}" if isinstance(field, FlatField) else ""
    where = ", kept on the CPU" if field.keep_on_cpu else ""
    return type(field).__name__.removesuffix("Field").lower() + axis + where


def _check_data(data: NestedTensor, sample: SampleData, param: str) -> None:
    if isinstance(sample, SampleTensor):
        if not isinstance(data, TensorRef):
            raise InvalidRequest(f"{param} must be a tensor", param=param)
        if data.dtype != sample.dtype or len(data.shape) != len(sample.shape):
            raise InvalidRequest(
                f"{param} is {data.dtype} with {len(data.shape)} dimensions, it must be "
                f"{sample.dtype} with {len(sample.shape)}",
                param=param,
            )
    elif isinstance(sample, SampleList):
        if not isinstance(data, list):
            raise InvalidRequest(f"{param} must be a list", param=param)
        if sample.member is not None:
            for index, member in enumerate(data):
                _check_data(member, sample.member, f"{param}[{index}]")
    elif isinstance(data, TensorRef | list):
        raise InvalidRequest(f"{param} must be a number", param=param)
