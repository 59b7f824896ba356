"""Consuming the sentinels of supplied prompt embeddings.

A ``prompt_embeds`` part of a chat is rendered as a special token that is registered after the
tokenizer was loaded, so its id may lie outside the model's vocabulary. The engine refuses an id
that is not one, although the ids under supplied embeddings are hardly ever looked at.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from shared_protocol.errors import InvalidRequest
from shared_protocol.placeholders import PlaceholderRange

DUMMY_ID = 0
"""What the ids under supplied embeddings become: inside any vocabulary.

Gemma 3n looks up its per-layer embeddings by the id at every position. For ids beyond their table,
as a sentinel's is, vLLM takes the row of id 0 there: so 0, and no other id, gives the same answer.
"""


def spans_of_mask(is_token_ids: Iterable[bool]) -> Iterator[tuple[int, int]]:
    """Yield ``(offset, length)`` of each run of positions that are not real token ids."""
    offset = 0
    for is_token, run in groupby(is_token_ids):
        length = sum(1 for _ in run)
        if not is_token:
            yield offset, length
        offset += length


def consume_sentinels(token_ids: Sequence[int], spans: Iterable[tuple[int, int]]) -> list[int]:
    """Return the ids with `DUMMY_ID` inside the ``(offset, length)`` spans, the rest unchanged."""
    consumed = list(token_ids)
    for offset, length in spans:
        consumed[offset : offset + length] = [DUMMY_ID] * length
    return consumed


def check_no_stray(
    token_ids: Sequence[int], reserved: frozenset[int], ranges: Iterable[PlaceholderRange]
) -> None:
    """Refuse a prompt in which a reserved token stands outside the ranges that the media took.

    Such a token was spelled by the user's text. Which of the occurrences took the media can no
    longer be told, so the text may have moved an image or a span of embeddings to itself.

    Args:
        reserved: ids of sentinels and of the media's placeholder tokens.

    Raises:
        InvalidRequest: if there is one.
    """
    if not reserved:
        return
    start = 0
    for end, following in _boundaries(ranges, len(token_ids)):
        if not reserved.isdisjoint(token_ids[start:end]):
            raise InvalidRequest(
                "A text of this request spells a token that is reserved for marking where "
                "media and embeddings go; it cannot be combined with them.",
                param="messages",
            )
        start = max(start, following)


def _boundaries(ranges: Iterable[PlaceholderRange], length: int) -> Iterator[tuple[int, int]]:
    """Yield the end of each stretch outside the ranges, and where the next one can begin."""
    for placeholder in sorted(ranges, key=lambda placeholder: placeholder.offset):
        yield placeholder.offset, placeholder.end
    yield length, length
