"""Where an item's embeddings go in the prompt."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

from shared_protocol.errors import InvalidRequest


class PlaceholderRange(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A range of prompt positions that stands for one multimodal item.

    Attributes:
        offset: first position of the range.
        length: number of positions, at least 1.
        is_embed: which of the positions take a row of the encoder's output, in order; None when
            all do. Absent from the wire when None. An all-True mask stays a mask: vLLM's runner
            treats the two differently.
    """

    offset: int
    length: int
    is_embed: list[bool] | None = None

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def num_embeds(self) -> int:
        return self.length if self.is_embed is None else sum(self.is_embed)

    def embedded_runs(self) -> Iterator[tuple[int, int]]:
        """Yield ``(start, end)`` of each run of prompt positions that takes embeddings."""
        if self.is_embed is None:
            yield self.offset, self.end
            return
        start: int | None = None
        for position, embedded in enumerate(self.is_embed, self.offset):
            if embedded and start is None:
                start = position
            elif not embedded and start is not None:
                yield start, position
                start = None
        if start is not None:
            yield start, self.end


def check_placeholder(placeholder: PlaceholderRange, prompt_length: int, *, param: str) -> None:
    """Raise `InvalidRequest` unless the range lies in the prompt and its mask fits it."""
    if placeholder.offset < 0 or placeholder.length < 1:
        raise InvalidRequest(
            f"{param}: offset must be at least 0 and length at least 1, got offset "
            f"{placeholder.offset} and length {placeholder.length}",
            param=param,
        )
    if placeholder.end > prompt_length:
        raise InvalidRequest(
            f"{param}: {placeholder.length} positions from {placeholder.offset} on do not fit a "
            f"prompt of {prompt_length} token ids",
            param=param,
        )
    mask = placeholder.is_embed
    if mask is None:
        return
    if len(mask) != placeholder.length:
        raise InvalidRequest(
            f"{param}.is_embed has {len(mask)} entries, it must have {placeholder.length}: one "
            "per position of the placeholder",
            param=f"{param}.is_embed",
        )
    if not any(mask):
        raise InvalidRequest(
            f"{param}.is_embed has no true entry among its {len(mask)}: an item without a "
            "position to embed cannot be placed",
            param=f"{param}.is_embed",
        )


def check_disjoint(placeholders: Iterable[PlaceholderRange], *, param: str) -> None:
    """Raise `InvalidRequest` if two items embed into the same position.

    The ranges themselves may overlap: the audio track of a video lies inside the video's range,
    with complementary masks.
    """
    runs = sorted(run for placeholder in placeholders for run in placeholder.embedded_runs())
    for (_, end), (start, _) in pairwise(runs):
        if start < end:
            raise InvalidRequest(
                f"{param}: two items embed into prompt position {start}", param=param
            )
