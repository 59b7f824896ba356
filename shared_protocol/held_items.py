"""Items that a replica keeps, so that the next turn of a chat need not bring its images again.

A replica names the items of a request in a header of its answer, by what they hold: two items of
one name are one item, whoever sent them. A later request has that name in ``features.held_items``
in place of the item's data. A replica that holds it no longer answers 409 with the names that it
misses, before the engine hears of the request.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from shared_protocol.request import Features

HELD_ITEMS_HEADER: Final = "tandem-held-items"
"""One entry, separated by commas, for each item that came with its data; empty if it is not held.
"""

MAX_NAMED: Final = 50
"""Items of one request that are named, by 64 characters each: a head of more than 4 KiB is refused
by some proxies. The rest is named in the next turn."""

ItemT = TypeVar("ItemT")


def sent_places(features: Features) -> Iterator[tuple[str, int]]:
    """Yield the modality and the index of each item that comes with its data."""
    for modality in features.mm_hashes:
        for index, item in enumerate((features.kwargs_data or {}).get(modality, ())):
            if item is not None:
                yield modality, index


def at_places(
    lists: Mapping[str, Sequence[ItemT]], places: Iterable[tuple[str, int]]
) -> list[ItemT]:
    return [lists[modality][index] for modality, index in places]


def encode_names(names: Sequence[str | None]) -> str:
    return ",".join(name or "" for name in names[:MAX_NAMED])


def decode_names(header: str) -> list[str | None]:
    return [name.strip() or None for name in header.split(",")]
