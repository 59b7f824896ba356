"""By which name the engine's caches know an item."""

from typing import Final

import msgspec
from blake3 import blake3

from generate_service.item_admission import MediaLimits
from shared_protocol.items import FlatField, ItemElement, MultiModalItem, NestedTensor
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import GenerateRequest
from shared_protocol.tensors import Buffer, TensorRef

ITEM_HASHES: Final = ("content", "sent")


def with_content_hashes(request: GenerateRequest, media: MediaLimits) -> GenerateRequest:
    """Return `request` with each item's hash made anew of what the item holds.

    The engine keeps what its encoder made, and the keys and values behind it, under an item's
    hash: whoever chooses the hash of one item could answer other people's requests with it. The
    placeholder's mask is a part of it, since vLLM's prefix cache does not look at masks. An item
    that came without its data keeps its hash: by it the engine, or its connector, knows the data.
    """
    features = request.features
    if features is None or features.kwargs_data is None:
        return request
    hashes = {
        modality: [
            mm_hash
            if item is None or media.is_remote(modality, item)
            else content_hash(modality, item, place)
            for mm_hash, item, place in zip(
                sent,
                features.kwargs_data[modality],
                features.mm_placeholders[modality],
                strict=True,
            )
        ]
        if modality in features.kwargs_data
        else sent
        for modality, sent in features.mm_hashes.items()
    }
    return msgspec.structs.replace(
        request, features=msgspec.structs.replace(features, mm_hashes=hashes)
    )


def content_hash(modality: str, item: MultiModalItem, place: PlaceholderRange) -> str:
    digest = blake3()
    _add(digest, f"{modality}:{place.length}".encode())
    _add(digest, b"dense" if place.is_embed is None else bytes(place.is_embed))
    for key in sorted(item.elements):
        _add_element(digest, key, item.elements[key])
    return str(digest.hexdigest())


def _add_element(digest: blake3, key: str, element: ItemElement) -> None:
    field = element.field
    dim = field.dim if isinstance(field, FlatField) else 0
    _add(digest, key.encode())
    _add(digest, f"{type(field).__name__}:{dim}".encode())
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
