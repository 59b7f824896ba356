"""Chats for the render tier: long ones, and ones that grow by an image a turn."""

import random
from typing import Any, Final

from benchmarks.serving.workloads import MODEL, WORKLOADS, picture, text

_WORDS: Final = ("river", "stone", "seven", "birds", "under", "purple", "bridge", "quiet", "lamp")
_ANSWER: Final = {"role": "assistant", "content": "It is a lamp beside a river."}


def short_text(seed: int) -> dict[str, Any]:
    return WORKLOADS["text, whole"].request(seed)


def one_image(seed: int) -> dict[str, Any]:
    return WORKLOADS["image, whole"].request(seed)


def long_text(seed: int, tokens: int) -> dict[str, Any]:
    """A prompt of about `tokens` tokens, one a word."""
    words = random.Random(seed).choices(_WORDS, k=tokens)
    return _chat([{"role": "user", "content": " ".join(words)}])


def turn(seed: int, number: int, *, images: int) -> dict[str, Any]:
    """The chat `seed` at its turn `number`, with an image in each of the first `images` turns."""
    messages: list[dict[str, Any]] = []
    for earlier in range(number):
        content = picture(100 * seed + earlier) if earlier < images else text(100 * seed + earlier)
        messages += [{"role": "user", "content": content}, _ANSWER]
    return _chat(messages[:-1])


def _chat(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"model": MODEL, "messages": messages, "max_tokens": 16, "stream": False}
