"""A model that thinks and calls tools, served by the pair and by the monolith."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.checkpoints import checkpoint
from tests.conftest import SERVED_NAME
from tests.monolith import Monolith
from tests.pair import Pair

FORCED_END = " That will do."
"""What an engine writes when a thinking budget is spent, in front of the mark of the end."""


@dataclass(frozen=True)
class Thinker:
    """Base URLs of the render service and of `vllm serve`."""

    pair: str
    monolith: str


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Thinker]:
    model = checkpoint("qwen3")
    logs = tmp_path_factory.mktemp("thinker-logs")
    both = (
        f"--served-model-name={SERVED_NAME}",
        # The shortest budget that Anthropic's API takes is 1024 tokens.
        "--max-model-len=2048",
        "--reasoning-parser=qwen3",
        f'--reasoning-config={{"reasoning_end_str": "{FORCED_END}</think>"}}',
    )
    front = (
        *("--enable-auto-tool-choice", "--tool-call-parser=hermes"),
        # Else a random model may write arguments without end.
        "--tool-strict-level=parameter",
    )
    with ExitStack() as stack:
        pair = stack.enter_context(Pair(model, logs=logs, flags=both, render_flags=front))
        monolith = stack.enter_context(Monolith(model, *both, *front, log=logs / "monolith.log"))
        yield Thinker(pair.url, monolith.url)
