"""Waiting that does not blame others for the lateness of this process."""

import asyncio
import math
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

_LONGEST_STEP_S: Final = 0.05
_STEPS: Final = 20

T = TypeVar("T")


async def finished_within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` for at most `seconds`, of which those do not count in which this loop was busy.

    A loop that renders many requests at once may look at its sockets so late that the answer has
    long been there. So time is counted in short steps, between which `work` gets its turns.

    Raises:
        TimeoutError: if it is not finished by then; it is cancelled.
    """
    step_s = min(_LONGEST_STEP_S, seconds / _STEPS)
    task = asyncio.create_task(work)
    try:
        for _ in range(math.ceil(seconds / step_s)):
            await asyncio.wait([task], timeout=step_s)
            if task.done():
                break
        else:
            task.cancel()
            await asyncio.wait([task])
        if task.cancelled():
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])
