"""Requests in which an item, or its place, is another than the model's processor made."""

import math
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared_protocol.items import ItemElement, MultiModalItem
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import Features, GenerateRequest
from shared_protocol.tensors import TensorRef

_PATCHES_PER_EMBED = 4
GRIDS = {
    "image": ("pixel_values", "image_grid_thw"),
    "video": ("pixel_values_videos", "video_grid_thw"),
}
"""Pixels and sizes, by modality."""


def features_of(request: GenerateRequest) -> Features:
    assert request.features is not None
    return request.features


def item_of(request: GenerateRequest, modality: str) -> MultiModalItem:
    """Return the first item of `modality`."""
    item = (features_of(request).kwargs_data or {})[modality][0]
    assert item is not None
    return item


def numbers_of(request: GenerateRequest, modality: str, key: str) -> NDArray[Any]:
    tensor = item_of(request, modality).elements[key].data
    assert isinstance(tensor, TensorRef)
    return np.frombuffer(tensor.data, dtype=tensor.dtype).reshape(tensor.shape)


def with_data(request: GenerateRequest, modality: str, **data: Any) -> GenerateRequest:
    """Return `request` with other data in elements of the first item of `modality`."""
    features, item = features_of(request), item_of(request, modality)
    elements = {key: _element(item.elements[key], new) for key, new in data.items()}
    items = features.kwargs_data or {}
    changed = [MultiModalItem({**item.elements, **elements}), *items[modality][1:]]
    return _with_features(request, kwargs_data={**items, modality: changed})


def with_grid(request: GenerateRequest, modality: str, grid: Iterable[int]) -> GenerateRequest:
    """Return `request` with a first item of that grid, its pixels and its place as long."""
    pixels, sizes = GRIDS[modality]
    frames, height, width = grid
    rows = numbers_of(request, modality, pixels)
    data: dict[str, Any] = {
        pixels: np.resize(rows, (frames * height * width, *rows.shape[1:])),
        sizes: np.array([frames, height, width]),
    }
    if "timestamps" in item_of(request, modality).elements:
        data["timestamps"] = [float(index) for index in range(frames)]
    changed = with_data(request, modality, **data)
    embeds = math.prod((frames, height, width)) // _PATCHES_PER_EMBED
    place = features_of(request).mm_placeholders[modality][0]
    return changed if place.num_embeds == embeds else _with_length(changed, modality, embeds)


def with_token_ids(request: GenerateRequest, token_ids: list[int]) -> GenerateRequest:
    return msgspec.structs.replace(request, token_ids=token_ids)


def without(request: GenerateRequest, modality: str) -> GenerateRequest:
    features = features_of(request)
    members = ("mm_hashes", "mm_placeholders", "kwargs_data")
    return _with_features(
        request,
        **{
            member: {kind: of for kind, of in getattr(features, member).items() if kind != modality}
            for member in members
        },
    )


def last_of_all(request: GenerateRequest, modality: str) -> GenerateRequest:
    """Return `request` without what follows the first item of `modality`."""
    end = features_of(request).mm_placeholders[modality][0].end
    return with_token_ids(request, request.token_ids[:end])


def side_by_side(request: GenerateRequest, modality: str) -> GenerateRequest:
    """Return `request` without what is between its two items."""
    features = features_of(request)
    first, second = features.mm_placeholders[modality]
    moved = msgspec.structs.replace(second, offset=first.end)
    token_ids = [*request.token_ids[: first.end], *request.token_ids[second.offset :]]
    places = {**features.mm_placeholders, modality: [first, moved]}
    return _with_features(with_token_ids(request, token_ids), mm_placeholders=places)


def _with_length(request: GenerateRequest, modality: str, embeds: int) -> GenerateRequest:
    features = features_of(request)
    place = features.mm_placeholders[modality][0]
    ids = request.token_ids
    mask = place.is_embed or [True]
    token = ids[place.offset + mask.index(True)]
    places = {**features.mm_placeholders, modality: [PlaceholderRange(place.offset, embeds)]}
    return _with_features(
        with_token_ids(request, [*ids[: place.offset], *[token] * embeds, *ids[place.end :]]),
        mm_placeholders=places,
    )


def _element(element: ItemElement, data: Any) -> ItemElement:
    if isinstance(data, np.ndarray):
        data = TensorRef(str(data.dtype), data.shape, data.tobytes())
    return msgspec.structs.replace(element, data=data)


def _with_features(request: GenerateRequest, **members: Any) -> GenerateRequest:
    features = msgspec.structs.replace(features_of(request), **members)
    return msgspec.structs.replace(request, features=features)
