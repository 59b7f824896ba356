"""The requests that a family is compared on."""

from typing import Any

import torch

from tests.embeddings import embeds_part
from tests.models.families import MAKERS, Family, chat, media_chats, text

SERVED_NAME = "served"

ASKED: dict[str, Any] = {
    "model": SERVED_NAME,
    "max_tokens": 12,
    "temperature": 0.0,
    "logprobs": True,
    "top_logprobs": 3,
    "return_token_ids": True,
}


def family_chats(family: Family, width: int) -> dict[str, dict[str, Any]]:
    """All requests that a family is compared on, by modality and name."""
    chats = {
        f"{modality}, {name}": request
        for modality in family.modalities
        for name, request in media_chats(modality, family.most_items).items()
    }
    if len(family.modalities) > 1:
        # Without the sound in a video, for which a request as a whole has to ask.
        parts = [MAKERS[modality][0](12) for modality in family.modalities if " " not in modality]
        chats["all, in one message"] = chat("all", [text("All of these:"), *parts, text("end.")])
    chats["none"] = chat("text", [text("The quick brown fox")])
    # Last, since some of vLLM's models die of them.
    for modality in family.modalities:
        rows = torch.randn(5, width, generator=torch.Generator().manual_seed(1)) * 0.3
        part, embeds = MAKERS[modality][0](11), embeds_part(rows)
        chats[f"{modality}, with embeddings"] = chat(
            modality, [embeds, text("and"), part, text("and"), embeds, text("end.")]
        )
    for index, request in enumerate(chats.values()):
        request |= ASKED | {"stream": index % 2 == 1}
        if request["stream"]:
            request["stream_options"] = {"include_usage": True}
    return chats
