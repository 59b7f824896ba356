"""Images and videos as grids of patches, of which squares are merged: the Qwen-VL families."""

import math
from typing import Final

from generate_service.item_rules.reader import ItemReader, Rule

MOST_PATCHES: Final = 8192
"""Along a side: the encoders' tables of positions are as long, which vLLM's code has as a number.
Pictures in their processors' limits of size have sides of hundreds."""


def picture(merge: int, pixels: str = "pixel_values", sizes: str = "image_grid_thw") -> Rule:
    """A grid of one frame: models that are given more fail, or take each for a second."""
    film_rows = film(merge, pixels, sizes)

    def rows(item: ItemReader) -> int:
        embeds = film_rows(item)
        frames = item.integers(sizes)[0]
        item.demand(frames == 1, sizes, f"has {frames} frames, a picture has 1")
        return embeds

    return rows


def film(merge: int, pixels: str = "pixel_values_videos", sizes: str = "video_grid_thw") -> Rule:
    """Time, height and width of the grid in `sizes`; a row of `pixels` for each patch."""

    def rows(item: ItemReader) -> int:
        grid = item.integers(sizes)
        item.demand(
            len(grid) == 3 and min(grid) > 0 and grid[1] % merge == 0 and grid[2] % merge == 0,
            sizes,
            f"is {grid[:3]}, it must be three positive sizes, height and width in multiples of "
            f"{merge}",
        )
        item.demand(
            max(grid[1:]) <= MOST_PATCHES, sizes, f"has a side of more than {MOST_PATCHES} patches"
        )
        patches = math.prod(grid)
        item.demand(item.count(pixels) == patches, pixels, f"must have {patches} rows, as {sizes}")
        if "timestamps" in item:
            times = item.length("timestamps")
            item.demand(times == grid[0], "timestamps", f"has {times} entries, not {grid[0]}")
        return patches // merge**2

    return rows
