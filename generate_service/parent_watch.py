"""The engine's processes end with the process that started them.

vLLM's engine does not see that the service was killed: it would go on generating for nobody, and
hold the memory that the next engine needs.
"""

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing import util
from typing import Final

INTERVAL_S: Final = 0.25
"""Between two looks at the parent. What is left of a killed service ends within this time for each
generation of processes: the engine, then its workers."""


def start() -> None:
    """End this process when its parent ends; nothing in a process that nobody spawned.

    Called in each of vLLM's processes. Not the kernel's PR_SET_PDEATHSIG, which fires when the
    thread that spawned this process ends, although the process goes on. Not multiprocessing's
    own sentinel either: every process that was forked meanwhile holds it open.
    """
    # A process that is forked later has no threads, and vLLM does not call its plug-ins there.
    util.register_after_fork(start, lambda _: _watch())
    _watch()


def _watch() -> None:
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    threading.Thread(
        target=_end_with, args=(parent.pid,), name="tandem-parent-watch", daemon=True
    ).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(INTERVAL_S)
    # No cleaning up: that talks to the dead, and waits for what they would have said.
    os.kill(os.getpid(), signal.SIGKILL)
