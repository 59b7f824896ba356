"""Waiting that does not blame others for the lateness of this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

_STEPS: Final = 20
_LONGEST_STEP_S: Final = 0.05
_LONGEST_TURN_S: Final = 0.1


@asynccontextmanager
async def patient_timeout(seconds: float) -> AsyncIterator[None]:
    """Allow `seconds`, of which those do not count in which this loop was busy for long.

    A loop that renders many requests at once may look at its sockets so late that the answer has
    long been there. So time is counted in short steps, between which everybody gets a turn. That
    turns take a moment, as they do under many streams, is no reason to wait for longer.

    Raises:
        TimeoutError: on leaving, if that was not enough.
    """
    step_s = min(_LONGEST_STEP_S, seconds / _STEPS)
    longest_turn_s = min(_LONGEST_TURN_S, seconds / 5)
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle
    async with asyncio.timeout(None) as limit:

        def step(left_s: float, due: float) -> None:
            late_s = loop.time() - due
            if late_s < longest_turn_s:
                left_s -= late_s
            if left_s > 0:
                wait(left_s)
            else:
                limit.reschedule(loop.time())

        def wait(left_s: float) -> None:
            nonlocal timer
            step_taken_s = min(step_s, left_s)
            due = loop.time() + step_taken_s
            timer = loop.call_at(due, step, left_s - step_taken_s, due)

        wait(seconds)
        try:
            yield
        finally:
            timer.cancel()
