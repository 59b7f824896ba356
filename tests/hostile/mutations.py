"""Requests that are almost right: one true request, changed in a place or two.

A binary body is taken apart into the request's JSON and its tensors, changed there, and put
together again, so that most of what comes out gets past the framing and meets the checks behind it.
"""

import copy
import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from generate_service.item_admission import PROMPT_EMBEDS_MODALITY, MediaLimits
from generate_service.item_identity import item_names
from shared_protocol.binary_codec import BINARY_CONTENT_TYPE, decode_binary, encode_binary
from shared_protocol.errors import TandemError
from shared_protocol.json_codec import JSON_CONTENT_TYPE, encode_json

Tensors = dict[str, dict[str, Any]]
"""By name: dtype and shape as in a safetensors header, and the bytes."""

_SIZES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8, "F16": 2, "BF16": 2, "F32": 4,
    "F64": 8,
}  # fmt: skip

_JUNK: Final[list[Any]] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**62, -(2**63), 2**63, 1e308),
    *(0.5, -0.0, "", "x", "image", "video", "audio", "prompt_embeds", "../etc/passwd", "\u0000"),
    *("a" * 70_000, [], {}, [[]], [None], {"": None}, [0, 1, 2], [True, False], {"a": {"b": []}}),
]


@dataclass
class Payload:
    """A binary request, taken apart.

    Attributes:
        document: the JSON of the request.
    """

    document: dict[str, Any]
    tensors: Tensors

    @classmethod
    def read(cls, body: bytes) -> "Payload":
        (length,) = struct.unpack("<Q", body[:8])
        header = json.loads(body[8 : 8 + length])
        document = json.loads(header.pop("__metadata__")["request"])
        data = body[8 + length :]
        tensors = {
            name: {
                "dtype": entry["dtype"],
                "shape": entry["shape"],
                "data": data[slice(*entry["data_offsets"])],
            }
            for name, entry in header.items()
        }
        return cls(document, tensors)

    def body(self) -> bytes:
        header: dict[str, Any] = {"__metadata__": {"request": json.dumps(self.document)}}
        parts = []
        offset = 0
        for name, tensor in self.tensors.items():
            end = offset + len(tensor["data"])
            header[name] = {
                "dtype": tensor["dtype"],
                "shape": tensor["shape"],
                "data_offsets": [offset, end],
            }
            parts.append(tensor["data"])
            offset = end
        encoded = json.dumps(header).encode()
        encoded += b" " * (-len(encoded) % 8)
        return b"".join((struct.pack("<Q", len(encoded)), encoded, *parts))


@dataclass(frozen=True)
class Mutant:
    """
    Attributes:
        steps: what was changed, to find the case again.
    """

    content_type: str
    body: bytes
    steps: tuple[str, ...]


def mutants(bodies: list[bytes], seed: int) -> Iterator[Mutant]:
    """Yield changed requests without end; the same seed gives the same ones.

    Args:
        bodies: true requests in their binary form.
    """
    draw = random.Random(seed)
    by_name = [named for body in bodies if (named := _by_name(body)) is not None]
    while True:
        pool = by_name if by_name and draw.random() < 0.12 else bodies
        body = draw.choice(pool)
        if draw.random() < 0.08:
            step, changed = _change_bytes(body, draw)
            yield Mutant(BINARY_CONTENT_TYPE, changed, (step,))
            continue
        payload = Payload.read(body)
        steps = tuple(
            draw.choice(_CHANGES)(payload, draw) for _ in range(draw.choice((1, 1, 1, 2, 3)))
        )
        yield _encoded(payload.body(), steps, draw)


def _by_name(body: bytes) -> bytes | None:
    """The request that names its items, as it is once a replica holds them; None without any."""
    request = decode_binary(bytearray(body))
    features = request.features
    if features is None or not features.kwargs_data:
        return None
    names = item_names(request, MediaLimits())
    held = {
        modality: [None] * len(of_modality) if modality == PROMPT_EMBEDS_MODALITY else of_modality
        for modality, of_modality in names.items()
    }
    rest = {
        modality: [
            item if name is None else None for item, name in zip(items, held[modality], strict=True)
        ]
        for modality, items in features.kwargs_data.items()
    }
    features = msgspec.structs.replace(features, kwargs_data=rest, held_items=held)
    return encode_binary(msgspec.structs.replace(request, features=features))


def _exchange_names(payload: Payload, draw: random.Random) -> str:
    held = _features(payload).get("held_items")
    lists = list(held.values()) if isinstance(held, dict) else []
    names = [name for entries in lists if isinstance(entries, list) for name in entries]
    for entries in lists:
        if isinstance(entries, list):
            entries[:] = [draw.choice(names) for _ in entries]
    return "exchange names"


def _encoded(body: bytes, steps: tuple[str, ...], draw: random.Random) -> Mutant:
    if draw.random() < 0.3:
        try:
            return Mutant(JSON_CONTENT_TYPE, encode_json(decode_binary(body)), (*steps, "as JSON"))
        except (TandemError, ValueError):
            pass
    return Mutant(BINARY_CONTENT_TYPE, body, steps)


def _change_bytes(body: bytes, draw: random.Random) -> tuple[str, bytes]:
    at = draw.randrange(len(body))
    kind = draw.choice(("cut", "flip", "insert", "drop", "repeat", "garbage"))
    if kind == "cut":
        return f"cut at {at}", body[:at]
    if kind == "flip":
        return f"flip {at}", body[:at] + bytes([body[at] ^ (1 << draw.randrange(8))]) + body[
            at + 1 :
        ]
    if kind == "insert":
        return f"insert at {at}", body[:at] + draw.randbytes(draw.randrange(1, 40)) + body[at:]
    if kind == "drop":
        return f"drop at {at}", body[:at] + body[at + draw.randrange(1, 40) :]
    if kind == "repeat":
        return "twice", body + body
    return "garbage", draw.randbytes(draw.randrange(200))


def _places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    members: Any = ()
    if isinstance(node, dict):
        members = node.items()
    elif isinstance(node, list):
        members = enumerate(node)
    for key, member in members:
        yield (*path, key)
        yield from _places(member, (*path, key))


def _change_document(payload: Payload, draw: random.Random) -> str:
    places = list(_places(payload.document))
    if not places:
        return "no members"
    path = draw.choice(places)
    parent = payload.document
    for key in path[:-1]:
        parent = parent[key]
    where = ".".join(map(str, path))
    kind = draw.choice(("replace", "replace", "near", "near", "delete", "repeat", "reorder", "add"))
    value = parent[path[-1]]
    if kind == "near" and type(value) is int:
        parent[path[-1]] = value + draw.choice((-1, 1, -2, 2, 100, -value, -value - 1))
        return f"{where} := {parent[path[-1]]}"
    if kind == "delete":
        del parent[path[-1]]
        return f"delete {where}"
    if kind == "repeat" and isinstance(parent, list):
        parent.insert(path[-1], copy.deepcopy(value))
        return f"repeat {where}"
    if kind == "reorder" and isinstance(value, list):
        draw.shuffle(value)
        return f"reorder {where}"
    if kind == "add" and isinstance(value, dict):
        value[draw.choice(("extra", "image", "pixel_values", "audio", ""))] = copy.deepcopy(
            draw.choice(_JUNK)
        )
        return f"add to {where}"
    parent[path[-1]] = copy.deepcopy(draw.choice(_JUNK))
    return f"{where} := {str(parent[path[-1]])[:40]}"


def _change_sizes(payload: Payload, draw: random.Random) -> str:
    """Another shape or dtype, with as many bytes as it takes."""
    if not payload.tensors:
        return "no tensors"
    name = draw.choice(list(payload.tensors))
    tensor = payload.tensors[name]
    shape = list(tensor["shape"])
    kind = draw.choice(("grow", "shrink", "turn", "wrap", "flatten", "dtype", "empty"))
    if kind in ("grow", "shrink") and shape:
        axis = draw.randrange(len(shape))
        shape[axis] = max(0, shape[axis] + draw.choice((1, 2)) * (1 if kind == "grow" else -1))
    elif kind == "turn":
        shape.reverse()
    elif kind == "wrap":
        shape.insert(draw.randrange(len(shape) + 1), 1)
    elif kind == "flatten":
        shape = [int(np.prod(shape))]
    elif kind == "empty":
        shape = [0, *shape[1:]]
    else:
        tensor["dtype"] = draw.choice(list(_SIZES))
    tensor["shape"] = shape
    size = int(np.prod(shape)) * _SIZES.get(tensor["dtype"], 1)
    data = tensor["data"] or b"\0"
    tensor["data"] = (data * (size // len(data) + 1))[:size]
    return f"{name}: {kind} to {tensor['dtype']}{shape}"


def _change_values(payload: Payload, draw: random.Random) -> str:
    """Other values in the same shape."""
    if not payload.tensors:
        return "no tensors"
    name = draw.choice(list(payload.tensors))
    tensor = payload.tensors[name]
    size = len(tensor["data"])
    if not size:
        return f"{name}: nothing to change"
    kind = draw.choice(("zeros", "ones", "noise", "one", "one", "swap halves"))
    width = min(_SIZES.get(tensor["dtype"], 1), size)
    if kind == "zeros":
        tensor["data"] = bytes(size)
    elif kind == "ones":
        tensor["data"] = b"\xff" * size
    elif kind == "noise":
        tensor["data"] = draw.randbytes(size)
    elif kind == "swap halves":
        half = size // width // 2 * width
        tensor["data"] = tensor["data"][half:] + tensor["data"][:half]
    else:
        at = draw.randrange(size // width) * width
        value = draw.choice((0, 1, 2, 3, 5, 255)).to_bytes(width, "little")
        if draw.random() < 0.3:
            value = draw.randbytes(width)
        tensor["data"] = tensor["data"][:at] + value + tensor["data"][at + width :]
    return f"{name}: {kind}"


def _exchange_tensors(payload: Payload, draw: random.Random) -> str:
    if not payload.tensors:
        return "no tensors"
    one, other = draw.choice(list(payload.tensors)), draw.choice(list(payload.tensors))
    kind = draw.choice(("exchange", "copy", "remove", "rename"))
    if kind == "exchange":
        payload.tensors[one], payload.tensors[other] = payload.tensors[other], payload.tensors[one]
    elif kind == "copy":
        payload.tensors[one] = dict(payload.tensors[other])
    elif kind == "remove":
        del payload.tensors[one]
    else:
        payload.tensors[other + "x"] = payload.tensors.pop(one)
    return f"{kind} {one}, {other}"


def _shift_spans(payload: Payload, draw: random.Random) -> str:
    """All placeholders of the request, moved or resized."""
    by = draw.choice((-2, -1, 1, 2))
    key = draw.choice(("offset", "length"))
    places = _features(payload).get("mm_placeholders")
    for ranges in places.values() if isinstance(places, dict) else ():
        for place in ranges if isinstance(ranges, list) else ():
            if isinstance(place, dict) and isinstance(place.get(key), int):
                place[key] += by
    return f"{key} of all spans + {by}"


def _features(payload: Payload) -> dict[str, Any]:
    """An earlier change may have put anything in their place."""
    features = payload.document.get("features")
    return features if isinstance(features, dict) else {}


def _exchange_modalities(payload: Payload, draw: random.Random) -> str:
    features = _features(payload)
    for name in ("mm_hashes", "mm_placeholders", "kwargs_data"):
        member = features.get(name)
        if isinstance(member, dict) and member:
            old = draw.choice(list(member))
            member[draw.choice(("image", "video", "audio", "prompt_embeds"))] = member.pop(old)
    return "exchange modalities"


def _reuse_hash(payload: Payload, draw: random.Random) -> str:
    hashes = _features(payload).get("mm_hashes")
    for entries in hashes.values() if isinstance(hashes, dict) else ():
        if isinstance(entries, list) and entries:
            entries[:] = [entries[0]] * len(entries)
    return "one hash for all"


_CHANGES: Final[list[Callable[[Payload, random.Random], str]]] = [
    *[_change_document] * 5,
    *[_change_sizes] * 4,
    *[_change_values] * 3,
    *[_exchange_tensors] * 2,
    _shift_spans,
    _exchange_modalities,
    _reuse_hash,
    _exchange_names,
]
