"""Images and videos as grids of patches, of which squares are merged: the Qwen-VL families."""

import math

from generate_service.item_rules.reader import ItemReader, Rule


def grid(merge: int, pixels: str, sizes: str) -> Rule:
    """Time, height and width of the grid in `sizes`; a row of `pixels` for each patch."""

    def rows(item: ItemReader) -> int:
        grid = item.integers(sizes)
        item.demand(
            len(grid) == 3 and min(grid) > 0 and grid[1] % merge == 0 and grid[2] % merge == 0,
            sizes,
            f"is {grid[:3]}, it must be three positive sizes, height and width in multiples of "
            f"{merge}",
        )
        patches = math.prod(grid)
        item.demand(item.count(pixels) == patches, pixels, f"must have {patches} rows, as {sizes}")
        if "timestamps" in item:
            times = item.length("timestamps")
            item.demand(times == grid[0], "timestamps", f"has {times} entries, not {grid[0]}")
        return patches // merge**2

    return rows
