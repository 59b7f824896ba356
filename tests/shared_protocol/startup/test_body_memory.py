"""A body counts until its request has ended."""

import pytest

from shared_protocol.errors import Unavailable
from shared_protocol.startup.body_memory import BodyMemory, body_memory_error


def test_what_a_body_took_is_given_back() -> None:
    memory = BodyMemory(most=100, retry_after_s=3)
    with memory.one() as share, memory.one() as other:
        share.take(60)
        other.take(40)
        with pytest.raises(Unavailable) as refused:
            other.take(1)
    assert refused.value.headers() == {"Retry-After": "3"}
    with memory.one() as share:
        share.take(100)


def test_an_announcement_takes_nothing() -> None:
    memory = BodyMemory(most=100, retry_after_s=1)
    with memory.one() as share, memory.one() as other:
        share.announce(100)
        other.take(100)
        with pytest.raises(Unavailable):
            share.announce(1)


def test_the_largest_body_must_find_place() -> None:
    assert body_memory_error(max_body_bytes=10, max_bodies_bytes=10) is None
    error = body_memory_error(max_body_bytes=11, max_bodies_bytes=10)
    assert error is not None
    assert "--max-bodies-bytes (10)" in error
