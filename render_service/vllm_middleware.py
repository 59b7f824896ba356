"""vLLM's stack of middleware, built once, when all of it is known."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI


@contextmanager
def stack_left_unbuilt() -> Iterator[None]:
    """Have vLLM's `build_app` return an application whose stack is built by its first request.

    The SageMaker bootstrap with which `build_app` ends builds it, though this tier has middleware
    to add. A second stack would have second instances: vLLM's Prometheus middleware then finds its
    metrics registered by the first one and counts nothing, and one that a user names with
    ``--middleware`` may register something as well.
    """
    kind: Any = FastAPI
    build = kind.build_middleware_stack
    # What Starlette takes for a stack that is still to be built.
    kind.build_middleware_stack = lambda app: None
    try:
        yield
    finally:
        kind.build_middleware_stack = build
