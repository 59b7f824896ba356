"""Servers that many tests share: the pair, and beside it the monolith on the same checkpoint."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared_protocol.startup import vllm_cpu

# Before a test module imports vLLM.
vllm_cpu.prepare_environment()

from deploy.demo.__main__ import CHECKPOINT as DEMO_CHECKPOINT  # noqa: E402
from deploy.demo.checkpoint import build as build_demo  # noqa: E402
from tests.checkpoints import checkpoint  # noqa: E402
from tests.embeddings import hidden_size  # noqa: E402
from tests.monolith import Monolith  # noqa: E402
from tests.pair import Pair  # noqa: E402

SERVED_NAME = "served"
FLAGS = (
    f"--served-model-name={SERVED_NAME}",
    "--enable-prompt-embeds",
    '--limit-mm-per-prompt={"image": 4}',
)
# Of the service that parses answers.
TOOL_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser=hermes")

MODELS: dict[str, Callable[[], Path]] = {
    # The id of the sentinel lies outside this model's vocabulary; its mask is sparse.
    "gemma3": lambda: checkpoint("gemma3"),
    # Inside this one's; its placeholders are dense.
    "qwen2_vl": lambda: checkpoint("qwen2_vl", vocab_headroom=True),
    # Real weights in the language half; its mask has many runs.
    "demo": lambda: build_demo(DEMO_CHECKPOINT),
}


@dataclass(frozen=True)
class Duo:
    """One checkpoint, served twice.

    Attributes:
        pair: base URL of the render service.
        generate: base URL of its one replica.
        monolith: base URL of `vllm serve`.
    """

    name: str
    checkpoint: Path
    pair: str
    generate: str
    monolith: str

    @property
    def hidden_size(self) -> int:
        return hidden_size(self.checkpoint)


# It has real weights, and answers ten times slower: `make test-all` asks it everything, and tests
# that name it do so anyway.
_DEMO = pytest.param("demo", marks=pytest.mark.slow)


@pytest.fixture(scope="session", params=["gemma3", "qwen2_vl", _DEMO])
def duo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Duo]:
    name = request.param
    model = MODELS[name]()
    logs = tmp_path_factory.mktemp(f"{name}-logs")
    with ExitStack() as stack:
        pair = stack.enter_context(Pair(model, logs=logs, flags=FLAGS, render_flags=TOOL_FLAGS))
        monolith = stack.enter_context(
            # The scale-out endpoints are those that take requests from a render service.
            Monolith(model, *FLAGS, *TOOL_FLAGS, "--enable-scale-out", log=logs / "monolith.log")
        )
        yield Duo(name, model, pair.url, pair.replicas[0].url, monolith.url)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
