from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from render_service.transport import GenerateTransport
from tests.render_service.fake_generate import FakeGenerate


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
def start_replica() -> Iterator[Callable[[], FakeGenerate]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(FakeGenerate())


@pytest.fixture
def replica(start_replica: Callable[[], FakeGenerate]) -> FakeGenerate:
    return start_replica()


@pytest.fixture
async def transport() -> AsyncIterator[GenerateTransport]:
    async with GenerateTransport() as transport:
        yield transport
