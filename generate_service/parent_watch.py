"""The engine's processes end with the process that started them.

vLLM's engine does not see that the service was killed: it would go on generating for nobody, and
hold the memory that the next engine needs.
"""

import multiprocessing
import os
import pkgutil
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import util
from typing import Any, Final

INTERVAL_S: Final = 0.25
"""Between two looks at the parent. What is left of a killed service ends within this time for each
generation of processes: the engine, then its workers."""

NAME: Final = "tandem-parent-watch"
"""Of the thread."""

_watches: list[threading.Thread] = []
"""At most one that is alive; those of the process that this one was forked from are not."""


def start() -> None:
    """End this process when its parent ends; nothing in a process that nobody spawned.

    May be called again. Not the kernel's PR_SET_PDEATHSIG, which fires when the thread that
    spawned this process ends, although the process goes on. Not multiprocessing's own sentinel
    either: every process that was forked meanwhile holds it open.
    """
    # A process that is forked later has no threads, and vLLM does not call its plug-ins there.
    util.register_after_fork(start, lambda _: _watch_parent())
    _watch_parent()


class Watched:
    """A `target` for `multiprocessing.Process`, of which the process watches its parent.

    From before it has imported what the target's arguments need, which takes vLLM seconds: a
    spawned process unpickles the target first.
    """

    def __init__(self, target: Callable[..., None]) -> None:
        """
        Args:
            target: to be found by its module and name.
        """
        self._target = target

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        start()
        self._target(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[int, str]]:
        # With the parent's id, as it may have ended by then; and with the name alone, as
        # unpickling a function imports its module.
        return _unpickled, (os.getpid(), f"{self._target.__module__}:{self._target.__qualname__}")


def _unpickled(parent: int, name: str) -> Callable[..., None]:
    _watch(parent)

    def run(*args: Any, **kwargs: Any) -> None:
        Watched(pkgutil.resolve_name(name))(*args, **kwargs)

    return run


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        _watch(parent.pid)


def _watch(parent: int) -> None:
    if any(watch.is_alive() for watch in _watches):
        return
    watch = threading.Thread(target=_end_with, args=(parent,), name=NAME, daemon=True)
    _watches[:] = [watch]
    watch.start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(INTERVAL_S)
    # No cleaning up: that talks to the dead, and waits for what they would have said.
    os.kill(os.getpid(), signal.SIGKILL)
