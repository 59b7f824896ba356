"""Items that came once, kept for requests that refer to them."""

import itertools
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias

import msgspec

from shared_protocol.errors import MissingFeatures
from shared_protocol.held_items import sent_places
from shared_protocol.items import MultiModalItem, supplied_key
from shared_protocol.request import GenerateRequest

_Key: TypeAlias = tuple[str, str]
"""Modality and name: an item of one is not recalled as one of another."""


@dataclass(frozen=True)
class _Body:
    """The items whose tensors lie in one body, which is kept as long as any of them."""

    items: dict[_Key, MultiModalItem]
    size: int


class HeldItems:
    """The least recently used go first, with the body that they came in.

    Only what was admitted gets here, and its name is made of what it holds: nobody can have one
    item taken for another. May be used from several threads.

    Attributes:
        most: bytes of all bodies; 0 to hold nothing.
        taken: bytes that they have now.
        recalled, missed: how many items were referred to and were, or were not, held.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self.recalled = 0
        self.missed = 0
        self._lock = Lock()
        self._numbers = itertools.count()
        self._bodies: OrderedDict[int, _Body] = OrderedDict()
        self._where: dict[_Key, int] = {}
        self._users: Counter[int] = Counter()

    @contextmanager
    def one(self) -> Iterator["Recall"]:
        """What one request refers to is kept, and counted, until the request has ended."""
        recall = Recall(self)
        try:
            yield recall
        finally:
            with self._lock:
                self._users.subtract(recall.bodies)
                self._users += Counter()

    def find(self, keys: Sequence[_Key], user: "Recall") -> dict[_Key, MultiModalItem]:
        """
        Raises:
            MissingFeatures: with the names of those that are not held.
        """
        with self._lock:
            missing = [name for modality, name in keys if (modality, name) not in self._where]
            self.missed += len(missing)
            self.recalled += len(keys) - len(missing)
            if missing:
                raise MissingFeatures(missing)
            numbers = {self._where[key] for key in keys}
            for number in numbers:
                self._bodies.move_to_end(number)
            self._users.update(numbers - user.bodies)
            user.bodies |= numbers
            return {key: self._bodies[self._where[key]].items[key] for key in keys}

    def hold(
        self, sent: GenerateRequest, names: Mapping[str, Sequence[str | None]], size: int
    ) -> list[str | None]:
        """Keep the items that came with their data, and return the name of each that is held.

        Args:
            sent: a request that was admitted, as it came.
            names: of its items, by what they hold.
            size: of its body in bytes.
        """
        features = sent.features
        if features is None or not 0 < size <= self.most:
            return []
        places = list(sent_places(features))
        data = features.kwargs_data or {}
        items = {
            (modality, name): item
            for modality, index in places
            if (item := data[modality][index]) is not None
            and (name := names[modality][index]) is not None
            # Embeddings that a client made are new objects on the render tier each time.
            and supplied_key(modality) not in item.elements
        }
        kept = self._keep(items, size)
        named = [(modality, names[modality][index]) for modality, index in places]
        return [name if (modality, name) in kept else None for modality, name in named]

    def _keep(self, items: Mapping[_Key, MultiModalItem], size: int) -> set[_Key]:
        """Keep `items` if there is room; return the keys of those that are held."""
        with self._lock:
            for key in items.keys() & self._where.keys():
                self._bodies.move_to_end(self._where[key])
            new = {key: item for key, item in items.items() if key not in self._where}
            if new and self._make_room(size):
                number = next(self._numbers)
                self._bodies[number] = _Body(new, size)
                self._where.update(dict.fromkeys(new, number))
                self.taken += size
            return items.keys() & self._where.keys()

    def _make_room(self, size: int) -> bool:
        """Let go of what nobody uses; whoever uses a body would keep its memory all the same."""
        idle = [number for number in self._bodies if not self._users[number]]
        needed = self.taken + size - self.most
        if sum(self._bodies[number].size for number in idle) < needed:
            return False
        for number in idle:
            if self.taken + size <= self.most:
                break
            gone = self._bodies.pop(number)
            self.taken -= gone.size
            for key in gone.items:
                del self._where[key]
        return True


class Recall:
    """What one request refers to.

    Attributes:
        bodies: the numbers of those that it uses.
        size: bytes of the items that it has recalled.
    """

    def __init__(self, held: HeldItems) -> None:
        self._held = held
        self.bodies: set[int] = set()
        self.size = 0

    def whole(self, request: GenerateRequest) -> GenerateRequest:
        """Return `request` with the data of the items that it refers to.

        Raises:
            MissingFeatures: with the names of those that are not held.
        """
        features = request.features
        if features is None or features.held_items is None:
            return request
        keys = [
            (modality, name)
            for modality, names in features.held_items.items()
            for name in names
            if name is not None
        ]
        found = self._held.find(keys, self)
        self.size = sum(tensor.nbytes for item in found.values() for _, tensor in item.tensors())
        data = features.kwargs_data or {}
        items = {
            modality: [
                item if name is None else found[modality, name]
                for name, item in zip(names, data.get(modality, [None] * len(names)), strict=True)
            ]
            for modality, names in features.held_items.items()
        }
        return msgspec.structs.replace(
            request, features=msgspec.structs.replace(features, kwargs_data=items)
        )
