"""Gemma 4's images and videos: patches with their places in a picture, padded at the end."""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from generate_service.item_rules.reader import ItemReader, Rule

_PADDING = -1


def placed_patches(pooling: int, most_positions: int, *, padded: Collection[int]) -> Rule:
    """One picture.

    Args:
        pooling: side of the square of patches that becomes one embedding.
        most_positions: the encoder knows places from 0 to this, along each side.
        padded: numbers of patches that the processor pads to. The encoder attends over padding.
    """

    def rows(item: ItemReader) -> int:
        patches = item.count("pixel_values")
        places = _places(item, "pixel_position_ids", (patches, 2))
        embeds = _picture(item, "pixel_position_ids", places, pooling, most_positions)
        item.demand(
            patches in padded or patches == embeds * pooling**2,
            "pixel_values",
            f"is padded to {patches} patches, the processor pads to one of {sorted(padded)}",
        )
        return embeds

    return rows


def placed_frames(pooling: int, most_positions: int) -> Rule:
    """A film of pictures of one size, padded to as many patches as the processor always pads to."""

    def rows(item: ItemReader) -> int:
        pixels = "pixel_values_videos"
        item.fixed_size(pixels, 2)
        frames, patches, _ = item.shape(pixels)
        key = "pixel_position_ids_videos"
        item.demand(
            item.integer("video_frame_counts") == frames, "video_frame_counts", f"must be {frames}"
        )
        places = _places(item, key, (frames, patches, 2))
        embeds = [_picture(item, key, frame, pooling, most_positions) for frame in places]
        item.demand(
            item.same_sizes(pixels, 1) or all(count * pooling**2 == patches for count in embeds),
            pixels,
            f"is padded to {patches} patches, which the processor does not pad to",
        )
        item.demand(
            item.integers("video_num_soft_tokens") == embeds,
            "video_num_soft_tokens",
            f"must be {embeds}",
        )
        return sum(embeds)

    return rows


def _places(item: ItemReader, key: str, shape: tuple[int, ...]) -> NDArray[Any]:
    item.demand(item.shape(key) == shape, key, f"must be {list(shape)}")
    return item.array(key)


def _picture(
    item: ItemReader, key: str, places: NDArray[Any], pooling: int, most_positions: int
) -> int:
    """Demand every place of a rectangle once, row by row, and then padding."""
    item.demand(len(places) % pooling**2 == 0, key, f"must have a multiple of {pooling**2} places")
    shown = int((places != _PADDING).any(axis=1).sum())
    item.demand(shown > 0, key, "has no place that is not padding")
    width, height = (int(side) + 1 for side in places[:shown].max(axis=0))
    item.demand(
        width % pooling == 0 and height % pooling == 0 and max(width, height) <= most_positions,
        key,
        f"must have sides in multiples of {pooling}, at most {most_positions}",
    )
    numbers = np.arange(width * height)
    raster = np.stack([numbers % width, numbers // width], axis=1)
    item.demand(
        shown == width * height
        and bool(np.array_equal(places[:shown], raster))
        and bool((places[shown:] == _PADDING).all()),
        key,
        "must name every place of a rectangle, row by row, and end in padding",
    )
    return shown // pooling**2
