"""Media that a client has already encoded: tensors in place of pictures, films and sounds."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import torch

from tests.models.media import Part, image_part

WIDTH = 64
"""Of the tiny models' embeddings."""

_GRID = [1, 4, 4]
_ROWS = 4  # four patches of the grid make one


def encoded(tensor: torch.Tensor) -> str:
    file = io.BytesIO()
    torch.save(tensor, file)
    return base64.b64encode(file.getvalue()).decode()


def rows(seed: int, count: int = _ROWS, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) * 0.3


def picture(embeds: torch.Tensor, grid: Any = None) -> Part:
    """A picture for models that have to be told its grid of patches."""
    grid = encoded(torch.tensor(_GRID)) if grid is None else grid
    return {
        "type": "image_embeds",
        "image_embeds": {"image_embeds": encoded(embeds), "image_grid_thw": grid},
    }


def film(embeds: torch.Tensor) -> Part:
    return {
        "type": "video_embeds",
        "video_embeds": {
            "video_embeds": encoded(embeds),
            "video_grid_thw": encoded(torch.tensor(_GRID)),
        },
    }


def sound(seed: int, frames: int, said: int | None = None) -> Part:
    """A sound as its spectrum; `said` is the length that is told of it."""
    spectrum = torch.randn(128, frames, generator=torch.Generator().manual_seed(seed))
    return {
        "type": "audio_embeds",
        "audio_embeds": {
            "input_audio_features": encoded(spectrum),
            "audio_feature_lengths": encoded(torch.tensor([frames if said is None else said])),
        },
    }


def supplied_pictures() -> Iterator[tuple[str, list[Part]]]:
    """Yield parts of one message by name, for a model of Qwen's kind."""
    yield "picture", [picture(rows(1))]
    yield "another picture", [picture(rows(2))]
    yield "its grid as numbers", [picture(rows(1), grid=_GRID)]
    yield "two pictures", [picture(rows(1)), picture(rows(2))]
    yield "one picture twice", [picture(rows(1)), picture(rows(1))]
    yield "picture with a uuid", [picture(rows(3)) | {"uuid": "rows-3"}]
    yield "nothing but the uuid", [{"type": "image_embeds", "image_embeds": None, "uuid": "rows-3"}]
    yield "nothing but a new uuid", [{"type": "image_embeds", "image_embeds": None, "uuid": "new"}]
    yield "picture of another dtype", [picture(rows(1).to(torch.bfloat16))]
    yield "more rows than its grid has", [picture(rows(1, 5))]
    yield "film", [film(rows(4))]
    yield "picture and film", [picture(rows(1)), film(rows(4))]
    yield "beside a real picture", [picture(rows(1)), image_part(1, 64, 64)]
    yield (
        "no grid",
        [{"type": "image_embeds", "image_embeds": {"image_embeds": encoded(rows(1))}}],
    )
    yield "no dictionary", [{"type": "image_embeds", "image_embeds": encoded(rows(1))}]
    yield "no tensor", [{"type": "image_embeds", "image_embeds": "AAAA"}]
    yield "no base64", [{"type": "image_embeds", "image_embeds": "!"}]
    yield "a grid of words", [picture(rows(1), grid=["one"])]
    yield "nothing at all", [{"type": "image_embeds", "image_embeds": None}]


def supplied_sounds() -> Iterator[tuple[str, list[Part]]]:
    """Yield parts of one message by name, for a model of Qwen's omni kind."""
    yield "sound", [sound(1, 100)]
    yield "another sound", [sound(2, 100)]
    yield "two sounds", [sound(1, 100), sound(2, 60)]
    yield "sound beside a picture", [sound(1, 60), image_part(1, 64, 64)]


def misfits() -> Iterator[tuple[str, list[Part]]]:
    """Yield parts by name, for a model of Qwen's kind, that no engine may be given.

    It would die of them, or keep what is no number.
    """
    yield "too few rows", [picture(rows(1, 3))]
    yield "rows of another width", [picture(rows(1, width=32))]
    yield "not numbers", [picture(rows(1) * torch.nan)]
    yield "a film of too few rows", [film(rows(1, 3))]
