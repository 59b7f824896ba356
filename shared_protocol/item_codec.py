"""An item as plain lists and maps, the way vLLM writes it; shared by both encodings.

An element is ``{"data": ..., "field": [kind, arguments]}``. How a tensor looks is the encoding's
own affair: it passes a function for that.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

from shared_protocol.errors import InvalidRequest
from shared_protocol.items import (
    BatchedField,
    FlatField,
    ItemElement,
    ItemField,
    MultiModalItem,
    NestedTensor,
    SharedField,
)
from shared_protocol.tensors import TensorRef

MAX_NESTING: Final = 8

_FIELD_KINDS: Final[dict[str, type[ItemField]]] = {
    "batched": BatchedField,
    "flat": FlatField,
    "shared": SharedField,
}


def pack_item(item: MultiModalItem, pack_tensor: Callable[[TensorRef], Any]) -> dict[str, Any]:
    return {
        key: {
            "data": _pack_nested(element.data, pack_tensor),
            "field": _pack_field(element.field),
        }
        for key, element in item.elements.items()
    }


def unpack_item(
    members: Any, unpack_tensor: Callable[[Any, str], TensorRef | None], *, param: str
) -> MultiModalItem:
    """Read what `pack_item` wrote.

    Args:
        unpack_tensor: called with a value and its param; returns None for a value that is no
            tensor.

    Raises:
        InvalidRequest: for anything that `pack_item` could not have written.
    """
    if not isinstance(members, dict) or not members:
        raise InvalidRequest(f"{param}: an item is a non-empty map of elements", param=param)
    elements = {}
    for key, element in members.items():
        if not isinstance(key, str) or not key.isidentifier():
            raise InvalidRequest(f"{param}: element names are identifiers", param=param)
        elements[key] = _unpack_element(element, unpack_tensor, f"{param}.{key}")
    return MultiModalItem(elements)


def _pack_nested(data: NestedTensor | None, pack_tensor: Callable[[TensorRef], Any]) -> Any:
    if isinstance(data, TensorRef):
        return pack_tensor(data)
    if isinstance(data, list):
        return [_pack_nested(member, pack_tensor) for member in data]
    if data is not None and not math.isfinite(data):
        # JSON would make null of it.
        raise ValueError(f"the number {data} does not cross the wire")
    return data


def _pack_field(field: ItemField) -> tuple[str, dict[str, Any]]:
    # The order is that of vLLM's dataclass fields, so that the bytes are vLLM's.
    arguments: dict[str, Any] = {"keep_on_cpu": field.keep_on_cpu}
    if isinstance(field, FlatField):
        return "flat", arguments | {"slices": field.slices, "dim": field.dim}
    if isinstance(field, SharedField):
        return "shared", arguments | {"batch_size": field.batch_size}
    return "batched", arguments


def _unpack_element(
    element: Any, unpack_tensor: Callable[[Any, str], TensorRef | None], param: str
) -> ItemElement:
    if not isinstance(element, dict) or element.keys() != {"data", "field"}:
        raise InvalidRequest(f"{param}: an element has data and field", param=param)
    data = element["data"]
    return ItemElement(
        None if data is None else _unpack_nested(data, unpack_tensor, param, MAX_NESTING),
        _unpack_field(element["field"], param),
    )


def _unpack_nested(
    data: Any, unpack_tensor: Callable[[Any, str], TensorRef | None], param: str, depth: int
) -> NestedTensor:
    if depth == 0:
        raise InvalidRequest(f"{param}: tensors are nested too deeply", param=param)
    tensor = unpack_tensor(data, param)
    if tensor is not None:
        return tensor
    if isinstance(data, list):
        return [
            _unpack_nested(member, unpack_tensor, f"{param}[{index}]", depth - 1)
            for index, member in enumerate(data)
        ]
    if type(data) is float and math.isfinite(data):
        return data
    if type(data) is int and -(2**63) <= data < 2**63:
        return data
    raise InvalidRequest(f"{param}: expected a tensor, a finite number or a list", param=param)


def _unpack_field(field: Any, param: str) -> ItemField:
    if not isinstance(field, list) or len(field) != 2 or not isinstance(field[0], str):
        raise InvalidRequest(f"{param}: a field is its kind and its arguments", param=param)
    name, arguments = field
    kind = _FIELD_KINDS.get(name)
    if kind is None:
        raise InvalidRequest(
            f"{param}: field kind {name!r} is not one of {', '.join(_FIELD_KINDS)}", param=param
        )
    try:
        return msgspec.convert(arguments, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from error
