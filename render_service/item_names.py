"""By which names replicas hold items that were sent to them."""

import weakref
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

_MAX_NAMES: Final = 16_384


class ItemNames:
    """The name of each item as long as the item lives, which the processor's cache decides.

    Items are compared by identity: a client may choose the hash of its image.
    """

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}

    def __len__(self) -> int:
        return len(self._names)

    def get(self, item: Any) -> str | None:
        known = self._names.get(id(item))
        return None if known is None else known[1]

    def set(self, item: Any, name: str) -> None:
        key = id(item)
        self._names[key] = (weakref.ref(item, lambda _: self._names.pop(key, None)), name)


class HeldNames:
    """The names that one replica is thought to hold, the latest of them."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def add(self, names: Iterable[str]) -> None:
        for name in names:
            self._names[name] = None
            self._names.move_to_end(name)
        while len(self._names) > _MAX_NAMES:
            self._names.popitem(last=False)

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._names.pop(name, None)
