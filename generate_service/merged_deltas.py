"""Steps that nobody looks at one by one, as one: an answer that is not streamed has few frames."""

from collections.abc import Iterable
from itertools import chain, groupby
from typing import Final

import msgspec

from shared_protocol.answer import TokenDelta

_MOST: Final = 256
"""Steps in one: the render tier works on a frame at a stretch, while its other streams wait."""


def merged(deltas: Iterable[TokenDelta]) -> list[TokenDelta]:
    """Return `deltas` with neighbours made one where they tell of nothing but tokens.

    The first of a choice, which tells of its prefill, and the last, which tells of its end, stay as
    they are, and with them the times of its first and its last token.
    """
    result: list[TokenDelta] = []
    for (is_plain, *_), neighbours in groupby(deltas, _kind):
        group = list(neighbours)
        result += _in_batches(group) if is_plain else group
    return result


def _kind(delta: TokenDelta) -> tuple[bool, int, str | None]:
    """Neighbours of one kind can be joined if its first member is true."""
    plain = TokenDelta(
        index=delta.index,
        token_ids=delta.token_ids,
        timestamp=delta.timestamp,
        weight_version=delta.weight_version,
    )
    return delta == plain, delta.index, delta.weight_version


def _in_batches(deltas: list[TokenDelta]) -> list[TokenDelta]:
    return [_joined(deltas[start : start + _MOST]) for start in range(0, len(deltas), _MOST)]


def _joined(deltas: list[TokenDelta]) -> TokenDelta:
    token_ids = list(chain.from_iterable(delta.token_ids for delta in deltas))
    return msgspec.structs.replace(deltas[-1], token_ids=token_ids)
