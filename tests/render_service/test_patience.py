"""Whose time counts while one waits for another."""

import asyncio
import time

import pytest

from render_service.patience import patient_timeout

pytestmark = pytest.mark.anyio

SECONDS = 0.5


async def be_busy(turn_s: float) -> None:
    while True:
        time.sleep(turn_s)  # noqa: ASYNC251
        await asyncio.sleep(0)


async def waited_beside(turn_s: float) -> float:
    """How long one waits for nothing beside a task whose turns take `turn_s`."""
    busy = asyncio.create_task(be_busy(turn_s))
    start = time.monotonic()
    try:
        with pytest.raises(TimeoutError):
            async with patient_timeout(SECONDS):
                await asyncio.Event().wait()
    finally:
        busy.cancel()
    return time.monotonic() - start


async def test_turns_of_a_moment_count() -> None:
    assert await waited_beside(0.02) < 1.3 * SECONDS


async def test_longer_ones_count_as_a_moment() -> None:
    assert await waited_beside(0.2) > 3 * SECONDS


async def test_who_is_done_in_time_is_left_alone() -> None:
    async with patient_timeout(SECONDS):
        await asyncio.sleep(SECONDS / 10)
    await asyncio.sleep(SECONDS)
