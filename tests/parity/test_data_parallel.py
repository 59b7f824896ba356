"""Data parallelism: one generate service with two engines, chosen by a header or by their load."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.checkpoints import checkpoint
from tests.conftest import SERVED_NAME
from tests.monolith import Monolith
from tests.pair import Pair
from tests.parity.folding import settled

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FLAGS = (f"--served-model-name={SERVED_NAME}",)
SIZE = 2
FIELDS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "the quick brown fox"}]},
    "/v1/completions": {"prompt": "the quick brown fox"},
}


@dataclass(frozen=True)
class Side:
    """
    Attributes:
        engines: where the figures of the engines are.
    """

    url: str
    engines: str

    def ask(self, path: str, rank: str | None = None, **changes: Any) -> httpx.Response:
        headers = None if rank is None else {"X-data-parallel-rank": rank}
        body = {
            "model": SERVED_NAME,
            "temperature": 0.0,
            "max_tokens": 5,
            **FIELDS[path],
            **changes,
        }
        return httpx.post(
            self.url + path, json=body, headers=headers, timeout=120.0, trust_env=False
        )

    def finished(self) -> list[int]:
        """How many requests each engine has finished."""
        text = httpx.get(f"{self.engines}/metrics", timeout=30.0, trust_env=False).text
        counts = [0] * SIZE
        for line in text.splitlines():
            if line.startswith("vllm:request_success_total{"):
                engine = re.search(r'engine="(\d+)"', line)
                assert engine is not None
                counts[int(engine[1])] += int(float(line.rpartition(" ")[2]))
        return counts


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    logs = tmp_path_factory.mktemp("data-parallel")
    model = checkpoint("gemma3")
    parallel = f"--data-parallel-size={SIZE}"
    with ExitStack() as stack:
        pair = stack.enter_context(Pair(model, logs=logs, flags=FLAGS, generate_flags=[parallel]))
        monolith = stack.enter_context(
            # One API process, as the generate service is one: it balances between both engines.
            Monolith(model, *FLAGS, parallel, "--api-server-count=1", log=logs / "monolith.log")
        )
        yield Side(pair.url, pair.replicas[0].url), Side(monolith.url, monolith.url)


@pytest.mark.parametrize("path", FIELDS)
@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_rank_that_is_asked_for_answers(sides: tuple[Side, Side], path: str, rank: str) -> None:
    bodies = []
    for side in sides:
        before = side.finished()
        bodies.append(settled(side.ask(path, rank).json()))
        gained = [now - then for now, then in zip(side.finished(), before, strict=True)]
        assert gained == [int(index == int(rank)) for index in range(SIZE)]
    assert bodies[0]["choices"] == bodies[1]["choices"]


@pytest.mark.parametrize("path", FIELDS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("rank", ["2", "-1", "99999999999999999999", "", "one"])
def test_ranks_that_are_none(sides: tuple[Side, Side], path: str, stream: bool, rank: str) -> None:
    pair, monolith = [side.ask(path, rank, stream=stream) for side in sides]
    assert pair.status_code == monolith.status_code
    if "out of range" in monolith.text:
        assert pair.text == monolith.text


def test_both_engines_work_where_nobody_chooses(sides: tuple[Side, Side]) -> None:
    for side in sides:
        before = side.finished()
        with ThreadPoolExecutor(8) as pool:
            asked = [
                pool.submit(side.ask, "/v1/completions", max_tokens=20, ignore_eos=True)
                for _ in range(8)
            ]
        answers = {answer.result().json()["choices"][0]["text"] for answer in asked}
        assert len(answers) == 1
        gained = [now - then for now, then in zip(side.finished(), before, strict=True)]
        assert sum(gained) == 8
        assert min(gained) > 0
