"""A request on its way to a replica, which may hold some of its items already."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from render_service.item_names import ItemNames
from shared_protocol.held_items import MAX_NAMED, at_places, sent_places
from shared_protocol.request import Features, GenerateRequest
from shared_protocol.tensors import Buffer


@dataclass(frozen=True)
class Shipment:
    """What one replica is sent.

    Attributes:
        body: in parts, which refer to the tensors: many choices of one request share them.
        items: those whose data `body` brings, in the order in which the replica names them.
        names: gets their names.
        has_names: whether names stand in place of some items.
    """

    body: Sequence[Buffer]
    items: Sequence[Any]
    names: ItemNames
    has_names: bool = False

    def note(self, named: Sequence[str | None]) -> list[str]:
        """Keep the names that the replica gave, and return them."""
        if len(named) != min(len(self.items), MAX_NAMED):
            return []
        given = [(item, name) for item, name in zip(self.items, named, strict=False) if name]
        for item, name in given:
            self.names.set(item, name)
        return [name for _, name in given]


@dataclass(frozen=True)
class OutgoingRequest:
    """
    Attributes:
        wire: the request with all of its items.
        items: those that `wire` was made of, which live as long as they may come again.
        names: of items that any replica has named.
    """

    wire: GenerateRequest
    items: Mapping[str, Sequence[Any]]
    names: ItemNames
    encode: Callable[[GenerateRequest], Sequence[Buffer]]

    def shipment(self, held: Container[str]) -> Shipment:
        """Encode it for a replica that is thought to hold the items of the names in `held`."""
        features = self.wire.features
        if features is None or features.kwargs_data is None:
            return Shipment(self.encode(self.wire), (), self.names)
        features = self._with_names(features, features.kwargs_data, held)
        wire = msgspec.structs.replace(self.wire, features=features)
        items = at_places(self.items, sent_places(features))
        has_names = features.held_items is not None
        return Shipment(self.encode(wire), items, self.names, has_names)

    def _with_names(
        self, features: Features, data: Mapping[str, Sequence[Any]], held: Container[str]
    ) -> Features:
        """Names in place of the data of items that are in `held`."""
        names = {
            modality: [name if (name := self.names.get(item)) in held else None for item in items]
            for modality, items in self.items.items()
        }
        if not any(name for of_modality in names.values() for name in of_modality):
            return features
        rest = {
            modality: [
                item if name is None else None
                for item, name in zip(items, names[modality], strict=True)
            ]
            for modality, items in data.items()
        }
        return msgspec.structs.replace(features, kwargs_data=rest, held_items=names)
