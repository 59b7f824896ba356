"""Pictures to put into requests."""

import base64
import io

import numpy as np
from PIL import Image


def png(seed: int, width: int = 64, height: int = 64) -> bytes:
    """Coarse coloured noise; the same seed and size give the same bytes."""
    blocks = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    picture = Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST)
    file = io.BytesIO()
    picture.save(file, format="PNG")
    return file.getvalue()


def data_url(image: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(image).decode()
