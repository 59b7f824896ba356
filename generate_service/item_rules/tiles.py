"""Images that a processor cuts into tiles, each of which yields as many embeddings."""

from collections.abc import Callable

import numpy as np

from generate_service.item_rules.reader import ItemReader, Rule

PIXELS = "pixel_values"

_PHI3_TILE = 336
_PHI3_TILE_SIDE = 12

_LFM2_PATCHES = 1024
"""In a padded tile of the published models."""

_LFM2_RANGE = 4
"""A single tile may hold twice as many pixels as fill it, of half the height that it is lifted to:
so many times the patches of a padded one."""


def one_size(embeds: int, pixels: str = PIXELS) -> Rule:
    """An item of fixed size that yields a fixed number: Gemma 3n's images."""

    def rows(item: ItemReader) -> int:
        item.fixed(pixels)
        return embeds

    return rows


def counted_tiles(embeds_per_tile: int) -> Rule:
    """Gemma 3: `num_patches` tiles."""

    def rows(item: ItemReader) -> int:
        tiles = item.count(PIXELS)
        item.demand(item.integer("num_patches") == tiles, "num_patches", f"must be {tiles}")
        return tiles * embeds_per_tile

    return rows


def masked_tiles(embeds_per_tile: int) -> Rule:
    """Idefics3, SmolVLM: as `counted_tiles`, each tile with a mask of its pixels.

    vLLM drops tiles that are all zeros, and derives positions from the sides of the mask.
    """
    counted = counted_tiles(embeds_per_tile)

    def rows(item: ItemReader) -> int:
        embeds = counted(item)
        item.demand_filled(PIXELS)
        _demand_rectangles(item)
        return embeds

    return rows


def nested_tiles(embeds_per_tile: int) -> Rule:
    """Idefics3 by transformers: as `masked_tiles`, in tensors of one more dimension."""

    def rows(item: ItemReader) -> int:
        pictures, tiles, *_ = item.shape(PIXELS)
        item.demand(
            pictures == 1 and tiles > 0 and item.same_sizes(PIXELS, 2),
            PIXELS,
            "must be one picture's tiles",
        )
        key = "num_image_patches"
        item.demand(item.integer(key) == tiles, key, f"must be {tiles}")
        item.demand_filled(PIXELS, leading=2)
        _demand_rectangles(item)
        return tiles * embeds_per_tile

    return rows


def _demand_rectangles(item: ItemReader) -> None:
    key = "pixel_attention_mask"
    *leading, _, height, width = item.shape(PIXELS)
    expected = (*leading, height, width)
    item.demand(item.shape(key) == expected, key, f"must be {list(expected)}")
    shown = item.array(key).reshape(-1, height, width) != 0
    down, across = shown[:, :, :1], shown[:, :1, :]
    item.demand(
        bool(shown[:, 0, 0].all())
        and bool((down[:, 1:] <= down[:, :-1]).all())
        and bool((across[:, :, 1:] <= across[:, :, :-1]).all())
        and bool(np.array_equal(shown, down & across)),
        key,
        "must be true in a rectangle from the first pixel on",
    )


def shaped_tiles(downsampling: int) -> Rule:
    """LFM2-VL: tiles of patches, padded to one length, with the sides of each in patches.

    Clients choose the length with `max_image_tokens`, and a picture that is 1 pixel high may have
    more patches. The model cuts the padding off, but vLLM pads all tiles of a step to the longest.
    """

    def rows(item: ItemReader) -> int:
        tiles = item.count("spatial_shapes")
        item.demand(item.integer("num_patches") == tiles, "num_patches", f"must be {tiles}")
        patches = _padded_tiles(item, tiles)
        shapes = item.array("spatial_shapes").tolist()
        for height, width in shapes:
            item.demand(
                height > 0
                and width > 0
                and height % downsampling == 0
                and width % downsampling == 0
                and height * width <= patches,
                "spatial_shapes",
                f"has [{height}, {width}], which must be multiples of {downsampling} and at most "
                f"{patches} patches",
            )
        return sum(height * width // downsampling**2 for height, width in shapes)

    return rows


def _padded_tiles(item: ItemReader, tiles: int) -> int:
    """Demand tiles that cannot make many times what they hold of a step's; return their length."""
    item.fixed_size(PIXELS, 2)
    given, patches, _ = item.shape(PIXELS)
    usual = item.usual_size(PIXELS, 1)
    least, most = usual // _LFM2_RANGE, max(usual * _LFM2_RANGE, _LFM2_PATCHES)
    item.demand(
        given == tiles and least <= patches <= most,
        PIXELS,
        f"must have {tiles} tiles, of {least} to {most} patches",
    )
    return patches


def anyres_tiles(
    grid: Callable[[int, int], tuple[int, int]], embeds: Callable[[int, int], int]
) -> Rule:
    """LLaVA-OneVision's images.

    Args:
        grid: from an image's height and width to how many tiles stand below and beside each other.
        embeds: from them to the number of embeddings.
    """

    def rows(item: ItemReader) -> int:
        tiles = item.count(PIXELS)
        sizes = item.integers("image_sizes")
        item.demand(
            len(sizes) == 2 and min(sizes) > 0, "image_sizes", "must be a height and a width"
        )
        height, width = sizes
        below, beside = grid(height, width)
        wanted = 1 + below * beside
        # More where the pictures of one request were padded to the one with the most tiles.
        item.demand(1 < wanted <= tiles, PIXELS, f"must have {wanted} tiles, not {tiles}")
        return embeds(height, width)

    return rows


def newline_tiles(item: ItemReader) -> int:
    """Phi-3-V: a thumbnail and tiles of 336 pixels, rows of them ended by an embedding each.

    From `calc_num_image_tokens_from_image_size` of the model's processor.
    """
    tiles = item.count(PIXELS)
    sizes = item.integers("image_sizes")
    item.demand(
        len(sizes) == 2 and min(sizes) > 0 and all(side % _PHI3_TILE == 0 for side in sizes),
        "image_sizes",
        f"must be a height and a width in multiples of {_PHI3_TILE}",
    )
    below, beside = (side // _PHI3_TILE for side in sizes)
    item.demand(1 + below * beside <= tiles, "image_sizes", f"needs more than {tiles} tiles")
    return (below * beside + 1) * _PHI3_TILE_SIDE**2 + 1 + (below + 1) * _PHI3_TILE_SIDE


def frames(embeds_per_frame: int, pixels: str, *, newline: int = 0) -> Rule:
    """LLaVA-OneVision's videos: as many for each frame, and one at the end."""

    def rows(item: ItemReader) -> int:
        return item.count(pixels) * embeds_per_frame + newline

    return rows


def cropped(embeds_whole: int, embeds_per_crop: int) -> Rule:
    """DeepSeek-OCR-2: the whole picture, crops of it if there are several, and a separator.

    vLLM takes crops for none if all of their numbers add up to 0, as those of a picture do that is
    half black and half white. It counts positions for the published sizes, also of a request that
    chooses others (`base_size`, `image_size`), whose rows would not fit them.
    """

    def rows(item: ItemReader) -> int:
        item.fixed(PIXELS)
        key = "images_spatial_crop"
        crops = item.integers(key)
        item.demand(len(crops) == 2 and min(crops) > 0, key, "must be two positive numbers")
        beside, below = crops
        several = beside > 1 or below > 1
        wanted = beside * below if several else 0
        given = item.shape("images_crop")[0]
        item.demand(
            given == wanted and item.same_sizes("images_crop", 1),
            "images_crop",
            f"must have {wanted} crops, of the size that the processor makes",
        )
        if several:
            item.demand_sum("images_crop")
        return embeds_whole + wanted * embeds_per_crop + 1

    return rows
