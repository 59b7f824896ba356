"""By which name the engine's caches know an item."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
from blake3 import blake3

from generate_service.item_admission import MediaLimits
from shared_protocol.items import FlatField, ItemElement, MultiModalItem, NestedTensor
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import GenerateRequest
from shared_protocol.tensors import Buffer, TensorRef

ITEM_HASHES: Final = ("content", "sent")

ItemNames: TypeAlias = Mapping[str, Sequence[str | None]]
"""By modality, in the order of its items."""


def item_names(request: GenerateRequest, media: MediaLimits) -> ItemNames:
    """Name each item of `request` by what it holds; None for one that has not its data.

    The name under which an item was held before is taken over: it was made here, of the same item.
    """
    features = request.features
    if features is None or features.kwargs_data is None:
        return {}
    held = features.held_items or {}
    return {
        modality: [
            None
            if item is None or media.is_remote(modality, item)
            else known or item_name(modality, item)
            for item, known in zip(items, held.get(modality) or [None] * len(items), strict=True)
        ]
        for modality, items in features.kwargs_data.items()
    }


def with_content_hashes(request: GenerateRequest, names: ItemNames) -> GenerateRequest:
    """Return `request` with each item's hash made anew of what the item holds.

    The engine keeps what its encoder made, and the keys and values behind it, under an item's
    hash: whoever chooses the hash of one item could answer other people's requests with it. The
    placeholder's mask is a part of it, since vLLM's prefix cache does not look at masks. An item
    that came without its data keeps its hash: by it the engine, or its connector, knows the data.
    """
    features = request.features
    if features is None or not names:
        return request
    hashes = {
        modality: [
            mm_hash if name is None else content_hash(name, place)
            for mm_hash, name, place in zip(
                sent, names[modality], features.mm_placeholders[modality], strict=True
            )
        ]
        if modality in names
        else sent
        for modality, sent in features.mm_hashes.items()
    }
    return msgspec.structs.replace(
        request, features=msgspec.structs.replace(features, mm_hashes=hashes)
    )


def content_hash(name: str, place: PlaceholderRange) -> str:
    digest = blake3()
    _add(digest, f"{name}:{place.length}".encode())
    _add(digest, b"dense" if place.is_embed is None else bytes(place.is_embed))
    return str(digest.hexdigest())


def item_name(modality: str, item: MultiModalItem) -> str:
    digest = blake3()
    _add(digest, modality.encode())
    for key in sorted(item.elements):
        _add_element(digest, key, item.elements[key])
    return str(digest.hexdigest())


def _add_element(digest: blake3, key: str, element: ItemElement) -> None:
    field = element.field
    dim = field.dim if isinstance(field, FlatField) else 0
    _add(digest, key.encode())
    _add(digest, f"{type(field).__name__}:{dim}:{field.keep_on_cpu}".encode())
    _add_data(digest, element.data)


def _add_data(digest: blake3, data: NestedTensor | None) -> None:
    if isinstance(data, TensorRef):
        _add(digest, f"{data.dtype}{data.shape}".encode())
        _add(digest, data.data)
    elif isinstance(data, list):
        _add(digest, f"list of {len(data)}".encode())
        for member in data:
            _add_data(digest, member)
    else:
        _add(digest, repr(data).encode())


def _add(digest: blake3, part: Buffer) -> None:
    # Its length first, so that no part can spell the next one.
    digest.update(memoryview(part).nbytes.to_bytes(8, "little"))
    digest.update(part)
