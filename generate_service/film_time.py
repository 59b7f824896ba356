"""How far the positions of a request's films go, for models to whom time is a position.

A bound for what is done with the films from here on, which takes the longer the further they go;
`vllm_positions` counts exactly, for models that can be asked.
"""

import math
from dataclasses import dataclass
from typing import Final

from generate_service.item_rules.reader import ItemReader
from generate_service.item_sample import Sample
from shared_protocol.errors import InvalidRequest
from shared_protocol.items import MultiModalItem

GRID: Final = "video_grid_thw"
STEP: Final = "second_per_grid_ts"


@dataclass(frozen=True)
class FilmTime:
    """
    Attributes:
        positions_per_second: of the model.
        most_positions: how far the films of one request may go together, from the first frame of
            each to its last.
    """

    positions_per_second: float
    most_positions: int


def check_film_time(
    films: list[MultiModalItem | None], sample: Sample | None, time: FilmTime, *, param: str
) -> None:
    """
    Raises:
        InvalidRequest: if the engine would look for positions that its model has not, and die.
    """
    if sample is None:
        return
    positions = sum(
        _positions(ItemReader(film, sample, f"{param}[{index}]"), time)
        for index, film in enumerate(films)
        if film is not None and {GRID, STEP} <= film.elements.keys()
    )
    if positions > time.most_positions:
        raise InvalidRequest(
            f"{param}: the films last {positions} positions, at most {time.most_positions} are "
            "left for them",
            param=param,
        )


def _positions(film: ItemReader, time: FilmTime) -> int:
    """How far it is from the first step of the grid to the last."""
    step = film.number(STEP)
    film.demand(0.0 <= step < math.inf, STEP, "must be a number of seconds")
    positions = (film.integers(GRID)[0] - 1) * step * time.positions_per_second
    film.demand(math.isfinite(positions), STEP, "must be a number of seconds that a film may have")
    return int(positions)
