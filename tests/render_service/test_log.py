"""What vLLM says in the log of the render service, and what it does not."""

import logging
from collections.abc import Iterator

import pytest

from tests.checkpoints import checkpoint
from tests.render_service.scripted_pair import scripted_pair

ADVISER = "vllm.entrypoints.scale_out.factories"


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What passes the filters of the logger itself, wherever vLLM has it written."""
    logger, kept = logging.getLogger(ADVISER), Kept()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(kept)
    yield kept.lines
    logger.removeHandler(kept)
    logger.setLevel(level)


@pytest.mark.anyio
async def test_no_flag_is_advised_that_changes_nothing(said: list[str]) -> None:
    flags = [f"--model={checkpoint('qwen3')}", "--dtype=float32"]
    async with scripted_pair(flags, max_model_len=1024):
        logging.getLogger(ADVISER).info("anything else")
    assert said == ["anything else"]
