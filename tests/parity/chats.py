"""A seeded stream of chat requests, over what the two tiers have to agree on."""

import random
from collections.abc import Iterator
from typing import Any

import torch

from tests.embeddings import embeds_part
from tests.pictures import data_url, png

Message = dict[str, Any]

_WORDS = [
    *("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven"),
    *("small", "birds", "sing", "of", "purple", "rivers", "and", "green", "stones", "under"),
    *("an", "old", "bridge", "that", "nobody", "crosses", "after", "dark"),
]
_SYSTEM_PROMPTS = ("You are terse.", "Answer as a pirate would.", "Be kind.\n\nUse short words.")
_SIZES = ((64, 64), (32, 48), (100, 60), (200, 96), (17, 131))
_MAX_TOKENS = (1, 2, 7, 15, 16, 17, 24, 40)
KINDS = ("text", "image", "two images", "prompt_embeds", "multi-turn")


def chat_requests(seed: int, count: int, *, hidden_size: int) -> Iterator[dict[str, Any]]:
    """Yield `count` chat requests; each kind comes equally often, the rest is drawn.

    Greedy, with logprobs and token ids in the answer, so that answers can be compared.
    """
    draw = random.Random(seed)
    for index in range(count):
        kind = KINDS[index % len(KINDS)]
        messages = _messages(draw, kind, hidden_size)
        if draw.random() < 0.4:
            messages.insert(0, {"role": "system", "content": draw.choice(_SYSTEM_PROMPTS)})
        request: dict[str, Any] = {
            "messages": messages,
            "max_tokens": draw.choice(_MAX_TOKENS),
            "temperature": 0.0,
            "logprobs": True,
            "top_logprobs": 3,
            "return_token_ids": True,
            "stream": draw.random() < 0.5,
        }
        if request["stream"]:
            request["stream_options"] = {"include_usage": True}
        yield request


def _messages(draw: random.Random, kind: str, hidden_size: int) -> list[Message]:
    if kind == "text":
        return [_user(draw, [])]
    if kind == "image":
        return [_user(draw, [drawn_image(draw)])]
    if kind == "two images":
        return [_user(draw, [drawn_image(draw), drawn_image(draw)])]
    if kind == "prompt_embeds":
        return [_user(draw, [_embeds(draw, hidden_size) for _ in range(draw.randint(1, 3))])]
    first = _user(draw, [drawn_image(draw)] if draw.random() < 0.5 else [])
    second = _user(draw, [drawn_image(draw)] if draw.random() < 0.5 else [])
    return [first, {"role": "assistant", "content": drawn_text(draw)}, second]


def _user(draw: random.Random, media: list[dict[str, Any]]) -> Message:
    """A message with the media in order at drawn places between its texts."""
    if not media and draw.random() < 0.5:
        return {"role": "user", "content": drawn_text(draw)}
    parts = [{"type": "text", "text": drawn_text(draw)} for _ in range(draw.randint(1, 3))]
    places = sorted(draw.randint(0, len(parts)) for _ in media)
    for place, part in reversed(list(zip(places, media, strict=True))):
        parts.insert(place, part)
    return {"role": "user", "content": parts}


def drawn_text(draw: random.Random) -> str:
    return " ".join(draw.choices(_WORDS, k=draw.randint(1, 20)))


def drawn_image(draw: random.Random) -> dict[str, Any]:
    # Few seeds: some images come again, and are then answered from caches.
    picture = png(draw.randint(0, 40), *draw.choice(_SIZES))
    return {"type": "image_url", "image_url": {"url": data_url(picture)}}


def _embeds(draw: random.Random, hidden_size: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(draw.randint(0, 2**31))
    rows = torch.randn(draw.randint(1, 12), hidden_size, generator=generator)
    return embeds_part(rows * 0.3)
