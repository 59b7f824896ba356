"""The three ways to serve one checkpoint that are compared, as real processes."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.serving.load import Ask, chat, stock_pair
from benchmarks.serving.workloads import MODEL
from tests.engine_priority import put_engine_last
from tests.models.stock_pair import stock_render
from tests.monolith import PROCESSOR_CACHE, Monolith
from tests.pair import Pair

FRONT, RENDER, GENERATE = "front", "render", "generate"
MONOLITH: Final = "vllm serve"
PAIR: Final = "pair"
STOCK: Final = "stock pair"
_FLAGS: Final = (f"--served-model-name={MODEL}",)
_ENGINE_FLAGS: Final = ("--max-num-seqs=32",)


@dataclass(frozen=True)
class SetUp:
    """
    Attributes:
        processes: the first process of each role.
        streams: whether it can be asked for a stream.
    """

    name: str
    ask: Ask
    processes: dict[str, int]
    streams: bool = True


@contextmanager
def set_ups(model: Path, logs: Path, flags: Sequence[str] = ()) -> Iterator[list[SetUp]]:
    """Start all; they stay while each is asked in its turn, and take no CPU meanwhile.

    Every engine gets what the services leave of the cores.
    """
    flags = (*_FLAGS, *flags)
    with ExitStack() as stack:
        monolith = stack.enter_context(
            Monolith(
                model,
                *flags,
                *_ENGINE_FLAGS,
                PROCESSOR_CACHE,
                "--enable-scale-out",
                log=logs / "monolith.log",
            )
        )
        pair = stack.enter_context(
            Pair(model, logs=logs, flags=flags, generate_flags=_ENGINE_FLAGS)
        )
        front = stack.enter_context(stock_render(model, flags, logs))
        for server in (monolith, pair.replicas[0]):
            put_engine_last(server.pid)
        yield [
            SetUp(MONOLITH, chat(monolith.url), {FRONT: monolith.pid}),
            SetUp(PAIR, chat(pair.url), {RENDER: pair.render.pid, GENERATE: pair.replicas[0].pid}),
            SetUp(
                STOCK,
                stock_pair(front.url, monolith.url),
                {RENDER: front.pid, FRONT: monolith.pid},
                streams=False,
            ),
        ]
