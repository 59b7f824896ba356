"""A service that tells what it holds: ``python -m tests.failure.census PORT MODULE ARG...``.

Runs the service of MODULE in this process. Whoever connects to PORT gets a count of this process's
objects by type and of its asyncio tasks by coroutine, as JSON.
"""

import asyncio
import gc
import importlib
import json
import socketserver
import sys
import threading
from collections import Counter
from typing import Final

_PACKAGES: Final = (
    *("vllm", "render_service", "generate_service", "shared_protocol"),
    *("asyncio", "httpx", "httpcore", "anyio", "starlette", "fastapi", "uvicorn", "uvloop"),
)


def census() -> dict[str, int]:
    gc.collect()
    counts: Counter[str] = Counter()
    for thing in gc.get_objects():
        kind = type(thing)
        # Of some classes made by others, it is not a name.
        if str(kind.__module__).partition(".")[0] in _PACKAGES:
            counts[f"{kind.__module__}.{kind.__qualname__}"] += 1
        if issubclass(kind, asyncio.Task) and not thing.done():
            counts[f"task {getattr(thing.get_coro(), '__qualname__', 'of no name')}"] += 1
    return dict(counts)


class _Answer(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(json.dumps(census()).encode())


def main() -> None:
    port, module = int(sys.argv[1]), sys.argv[2]
    server = socketserver.TCPServer(("127.0.0.1", port), _Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.argv = [module, *sys.argv[3:]]
    importlib.import_module(f"{module}.__main__").main()


# The engine's processes are spawned, and import this module again.
if __name__ == "__main__":
    main()
