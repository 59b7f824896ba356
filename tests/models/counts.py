"""How many embeddings an item yields, three times: by admission's rule, by mask, by the encoder."""

import asyncio
from dataclasses import dataclass

import httpx

from generate_service.item_rules.reader import ItemReader
from shared_protocol.request import GenerateRequest
from tests.checkpoints import checkpoint
from tests.models.door import Door
from tests.models.families import COMMON_FLAGS, Family, media_chats
from tests.monolith import Monolith

_COUNTED = ("one", "first of all", "last of all")
"""Chats of one item each, all of different sizes."""


@dataclass
class Count:
    """
    Attributes:
        modality: of the item, which for the sound in a video is not that of the chat.
        tensors: what admission counts in the item's tensors; None where it has no rule.
        mask: positions of the placeholder that take an embedding.
        encoder: rows that the engine's encoder made; None where no engine was asked.
    """

    modality: str
    mm_hash: str
    tensors: int | None
    mask: int
    encoder: int | None = None

    @property
    def agrees(self) -> bool:
        return len({self.tensors, self.mask, self.encoder} - {None}) == 1


async def count_items(family: Family) -> list[Count]:
    """Render chats of `family` and count in what would be sent."""
    flags = (*COMMON_FLAGS, *family.flags, *family.front_flags)
    door = await Door.open(checkpoint(family.checkpoint, vocab_headroom=True), *flags)
    try:
        counts: dict[str, Count] = {}
        for modality in family.modalities:
            for name, chat in media_chats(modality).items():
                if name in _COUNTED:
                    _, wire = await door.render(chat)
                    counts |= {count.mm_hash: count for count in door_counts(door, wire)}
        return list(counts.values())
    finally:
        door.close()


def door_counts(door: Door, wire: GenerateRequest) -> list[Count]:
    """Count the items of a rendered request."""
    features = wire.features
    assert features is not None
    counts = []
    for modality, items in (features.kwargs_data or {}).items():
        limits = door.media.items[modality]
        places = features.mm_placeholders[modality]
        for index, (item, place) in enumerate(zip(items, places, strict=True)):
            assert item is not None
            rows = None
            if limits.rule is not None and limits.sample is not None:
                rows = limits.rule(ItemReader(item, limits.sample, modality))
            mm_hash = features.mm_hashes[modality][index]
            counts.append(Count(modality, mm_hash, rows, place.num_embeds))
    return counts


def record_encoder(monolith: Monolith) -> None:
    """From now on the engine's worker remembers rows; see `vllm_encoder_rows`."""
    _call_worker(monolith, "record_encoder_rows")


def add_encoder_rows(counts: list[Count], family: Family, monolith: Monolith) -> None:
    """Ask the monolith the chats that were counted, and its worker what the encoder made."""
    record_encoder(monolith)
    asyncio.run(_ask_counted(family, monolith.url))
    rows = _call_worker(monolith, "encoder_rows")
    for count in counts:
        count.encoder = rows.get(count.mm_hash)


async def _ask_counted(family: Family, url: str) -> None:
    async with httpx.AsyncClient(timeout=300.0, trust_env=False) as client:
        for modality in family.modalities:
            for name, chat in media_chats(modality).items():
                if name in _COUNTED:
                    asked = chat | {"max_tokens": 1}
                    response = await client.post(f"{url}/v1/chat/completions", json=asked)
                    response.raise_for_status()


def _call_worker(monolith: Monolith, method: str) -> dict[str, int]:
    answer = httpx.post(
        f"{monolith.url}/collective_rpc", json={"method": method}, timeout=60.0, trust_env=False
    )
    answer.raise_for_status()
    (result,) = answer.json()["results"]
    return result or {}
