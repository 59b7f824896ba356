"""What is asked of every set-up: the same requests, none twice."""

import base64
import io
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from PIL import Image

MODEL: Final = "served"
_WORDS: Final = ("river", "stone", "seven", "birds", "under", "purple", "bridge", "quiet", "lamp")


@dataclass(frozen=True)
class Workload:
    """
    Attributes:
        content: makes the content of a user's message; another seed, another message.
        output_tokens: of each answer, exactly.
    """

    name: str
    content: Callable[[int], Any]
    output_tokens: int
    stream: bool

    def request(self, seed: int) -> dict[str, Any]:
        request = {
            "model": MODEL,
            "messages": [{"role": "user", "content": self.content(seed)}],
            "max_tokens": self.output_tokens,
            "min_tokens": self.output_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": self.stream,
        }
        return request | ({"stream_options": {"include_usage": True}} if self.stream else {})


def text(seed: int) -> str:
    draw = random.Random(seed)
    return f"{seed}: " + " ".join(draw.choices(_WORDS, k=40))


def picture(seed: int) -> list[dict[str, Any]]:
    """A 512 x 512 PNG of coarse noise, about as large as a photograph of that size."""
    blocks = np.random.default_rng(seed).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(blocks).resize((512, 512), Image.Resampling.BILINEAR).save(file, format="PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": f"{seed}: what is this?"},
    ]


WORKLOADS: Final = {
    workload.name: workload
    for workload in (
        Workload("text, streamed", text, 64, stream=True),
        Workload("text, whole", text, 64, stream=False),
        Workload("image, streamed", picture, 16, stream=True),
        Workload("image, whole", picture, 16, stream=False),
    )
}
