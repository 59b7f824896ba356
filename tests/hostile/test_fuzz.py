"""No request, however wrong, ends the engine, hangs it, or changes the answer to another."""

from typing import Any

import pytest
import torch

from tests.conftest import SERVED_NAME, Duo
from tests.embeddings import embeds_part
from tests.hostile.fuzzing import attack, true_requests
from tests.models.families import text
from tests.models.media import image_part

pytestmark = [
    pytest.mark.engine,
    pytest.mark.anyio,
    # The demo model answers slowly, and is of a family that `make fuzz` attacks.
    pytest.mark.parametrize("duo", ["gemma3", "qwen2_vl"], indirect=True),
]

MUTANTS = 750


def asked(*parts: Any) -> dict[str, Any]:
    return {
        "model": SERVED_NAME,
        "messages": [{"role": "user", "content": list(parts)}],
        "temperature": 0.0,
        "max_tokens": 4,
    }


async def test_mutants_of_true_requests(duo: Duo) -> None:
    rows = torch.randn(3, duo.hidden_size, generator=torch.Generator().manual_seed(5)) * 0.3
    one, two = image_part(1, 64, 64), image_part(2, 100, 60)
    chats = [
        asked(text("The quick brown fox")),
        asked(text("Look:"), one, text("and"), two, text("end.")),
        asked(embeds_part(rows), text("and"), two, text("end.")),
    ]
    bodies = await true_requests(duo.pair, chats)
    seen = await attack(duo.generate, bodies, seed=7, count=MUTANTS)
    assert not seen.failures
    assert seen.statuses.total() == MUTANTS
    assert seen.statuses[400] > MUTANTS / 2
