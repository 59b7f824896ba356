"""Waiting that does not blame others for the lateness of this process."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

_LONGEST_STEP_S: Final = 0.05
_STEPS: Final = 20


@asynccontextmanager
async def patient_timeout(seconds: float) -> AsyncIterator[None]:
    """Allow `seconds`, of which those do not count in which this loop was busy.

    A loop that renders many requests at once may look at its sockets so late that the answer has
    long been there. So time is counted in short steps, between which everybody gets a turn.

    Raises:
        TimeoutError: on leaving, if that was not enough.
    """
    step_s = min(_LONGEST_STEP_S, seconds / _STEPS)
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle
    async with asyncio.timeout(None) as limit:

        def step(left: int) -> None:
            nonlocal timer
            if left:
                timer = loop.call_later(step_s, step, left - 1)
            else:
                limit.reschedule(loop.time())

        timer = loop.call_later(step_s, step, math.ceil(seconds / step_s) - 1)
        try:
            yield
        finally:
            timer.cancel()
