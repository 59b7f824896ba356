"""What a client made of an answer, in a form that can be compared."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any


def plain(answer: Any) -> Any:
    """The models of a client's library as JSON, also inside of dicts and lists."""
    if isinstance(answer, dict):
        return {name: plain(value) for name, value in answer.items()}
    if isinstance(answer, list):
        return [plain(member) for member in answer]
    if hasattr(answer, "model_dump"):
        # What was parsed is of a class that the client's own models do not know.
        return answer.model_dump(mode="json", warnings=False)
    return answer


# Pieces of the stream itself, which `openai` and `anthropic` tell of before what they make of them.
PIECES = ("chunk", "content_block_delta")


def kinds(events: Iterable[Any]) -> list[str]:
    """The types of events, repetitions left out: how many tokens come at once is chance."""
    types = (event.type for event in events)
    return [kind for kind, _ in groupby(kind for kind in types if kind not in PIECES)]
