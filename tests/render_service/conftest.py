from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from render_service.transport import GenerateTransport
from tests.render_service.fake_generate import NO_AUTHORITIES, FakeGenerate


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def start_replica() -> Iterator[Callable[[], FakeGenerate]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(FakeGenerate())


@pytest.fixture
def replica(start_replica: Callable[[], FakeGenerate]) -> FakeGenerate:
    return start_replica()


@pytest.fixture
async def transport() -> AsyncIterator[GenerateTransport]:
    async with GenerateTransport(ssl_context=NO_AUTHORITIES) as transport:
        yield transport
