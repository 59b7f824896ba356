"""Items that came once, kept for requests that refer to them."""

import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias

import msgspec

from generate_service.item_admission import PROMPT_EMBEDS_MODALITY
from shared_protocol.errors import MissingFeatures
from shared_protocol.held_items import at_places, sent_places
from shared_protocol.items import MultiModalItem
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

    def recall(self, request: GenerateRequest) -> GenerateRequest:
        """Return `request` with the data of the items that it refers to.

        Raises:
            MissingFeatures: with the names of those that are not held.
        """
        features = request.features
        if features is None or features.held_items is None:
            return request
        found = self._find(
            [
                (modality, name)
                for modality, names in features.held_items.items()
                for name in names
                if name is not None
            ]
        )
        data = features.kwargs_data or {}
        whole = {
            modality: [
                item if name is None else found[modality, name]
                for name, item in zip(names, data.get(modality, [None] * len(names)), strict=True)
            ]
            for modality, names in features.held_items.items()
        }
        return msgspec.structs.replace(
            request, features=msgspec.structs.replace(features, kwargs_data=whole)
        )

    def _find(self, keys: Sequence[_Key]) -> dict[_Key, MultiModalItem]:
        with self._lock:
            missing = [name for modality, name in keys if (modality, name) not in self._where]
            self.missed += len(missing)
            self.recalled += len(keys) - len(missing)
            if missing:
                raise MissingFeatures(missing)
            for key in keys:
                self._bodies.move_to_end(self._where[key])
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
        if not places:
            return []
        told = [
            None if modality == PROMPT_EMBEDS_MODALITY else names[modality][index]
            for modality, index in places
        ]
        items = at_places(features.kwargs_data or {}, places)
        self._keep(
            {
                (modality, name): item
                for (modality, _), name, item in zip(places, told, items, strict=True)
                if name is not None and item is not None
            },
            size,
        )
        return told

    def _keep(self, items: dict[_Key, MultiModalItem], size: int) -> None:
        with self._lock:
            for key in items.keys() & self._where.keys():
                self._bodies.move_to_end(self._where[key])
            new = {key: item for key, item in items.items() if key not in self._where}
            if not new:
                return
            number = next(self._numbers)
            self._bodies[number] = _Body(new, size)
            self._where.update(dict.fromkeys(new, number))
            self.taken += size
            while self.taken > self.most:
                _, gone = self._bodies.popitem(last=False)
                self.taken -= gone.size
                for key in gone.items:
                    del self._where[key]
