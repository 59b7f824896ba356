"""With vLLM's switch for a faster tokenizer the answers stay what they were."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints import FAMILIES, checkpoint
from tests.conftest import FLAGS, Duo
from tests.pair import RenderService
from tests.parity.answers import differences
from tests.parity.chats import chat_requests
from tests.parity.test_chats import ask_all
from tests.processes import REPOSITORY

FASTOKENS = {"VLLM_USE_FASTOKENS": "1"}


def compare(*names: str) -> None:
    command = [sys.executable, "-m", "tests.render_service.tokenizers_alike"]
    paths = [str(checkpoint(name)) for name in names]
    run = subprocess.run([*command, *paths], cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]


def test_texts_become_the_same_tokens() -> None:
    compare("gemma3", "qwen2_vl")


@pytest.mark.slow
def test_texts_become_the_same_tokens_in_every_family() -> None:
    compare(*FAMILIES)


@pytest.mark.engine
@pytest.mark.anyio
@pytest.mark.parametrize(
    "duo", ["gemma3", pytest.param("qwen2_vl", marks=pytest.mark.slow)], indirect=True
)
async def test_the_answers_are_the_monoliths(duo: Duo, tmp_path: Path) -> None:
    log = tmp_path / "render.log"
    requests = list(chat_requests(20261201, 20, hidden_size=duo.hidden_size))
    with RenderService(duo.checkpoint, [duo.generate], *FLAGS, log=log, env=FASTOKENS) as render:
        ours = await ask_all(render.url, requests)
    theirs = await ask_all(duo.monolith, requests)
    assert all(answer.status == 200 for answer in theirs)
    found = [line for pair in zip(ours, theirs, strict=True) for line in differences(*pair)]
    assert not found, found[:10]
