"""SIGTERM and what follows, on a real process around a fake engine."""

import os
import signal
import threading
import time

import httpx
import pytest

from shared_protocol.answer import FRAMES_CONTENT_TYPE, Failure, TokenDelta
from shared_protocol.frames import FrameReader
from shared_protocol.startup.server import CUT_S, DRAIN_S
from tests.generate_service.fake_service import PATH, REQUEST, FakeService

GRACE_S = 4.0
# What a busy machine may add to any of the times.
SLACK_S = 3.0


class Stream(threading.Thread):
    """A client's stream in a thread of its own.

    Attributes:
        frames: what came, to the end.
        error: why the end did not come.
    """

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.begun = threading.Event()
        self.frames: list[TokenDelta | Failure] = []
        self.error: httpx.TransportError | None = None

    def run(self) -> None:
        reader = FrameReader()
        try:
            with httpx.stream(
                "POST",
                self._url + PATH,
                json=REQUEST | {"stream": True},
                headers={"Accept": FRAMES_CONTENT_TYPE},
                timeout=30.0,
                trust_env=False,
            ) as response:
                for chunk in response.iter_bytes():
                    self.frames.extend(reader.feed(chunk))
                    self.begun.set()
        except httpx.TransportError as error:
            self.error = error


def begin_stream(service: FakeService) -> Stream:
    stream = Stream(service.url)
    stream.start()
    assert stream.begun.wait(10.0)
    return stream


def post(service: FakeService, timeout: float = 30.0) -> httpx.Response:
    return httpx.post(service.url + PATH, json=REQUEST, timeout=timeout, trust_env=False)


def status(service: FakeService, path: str) -> int:
    return httpx.get(service.url + path, timeout=5.0, trust_env=False).status_code


def test_streams_that_outlast_the_grace_end_with_a_failure() -> None:
    with FakeService("forever", shutdown_grace_s=GRACE_S) as service:
        stream = begin_stream(service)
        os.kill(service.pid, signal.SIGTERM)
        start = time.monotonic()
        while status(service, "/ready") == 200:
            assert time.monotonic() - start < 0.5
        assert status(service, "/health") == 200
        assert service.wait_for_exit(GRACE_S + CUT_S + SLACK_S) == 0
        assert time.monotonic() - start > GRACE_S
        stream.join(SLACK_S)
    assert stream.error is None
    assert stream.frames[-1] == Failure("This replica was shut down")
    assert sum(isinstance(frame, Failure) for frame in stream.frames) == 1


def test_requests_that_have_no_answer_yet_may_be_tried_elsewhere() -> None:
    with FakeService("silent", shutdown_grace_s=GRACE_S) as service:
        timer = threading.Timer(1.0, os.kill, (service.pid, signal.SIGTERM))
        timer.start()
        response = post(service)
        assert response.status_code == 503
        assert "Retry-After" in response.headers
        assert service.wait_for_exit(CUT_S + SLACK_S) == 0


def test_requests_finish_and_new_ones_are_answered_meanwhile() -> None:
    with FakeService("two_seconds", shutdown_grace_s=30.0) as service:
        stream = begin_stream(service)
        os.kill(service.pid, signal.SIGTERM)
        # Who is in front has not looked at `/ready` yet.
        late = begin_stream(service)
        # The last one begins before connections are refused, and ends long after that.
        assert service.wait_for_exit(DRAIN_S + 2.0 + SLACK_S) == 0
    for ended in (stream, late):
        ended.join(SLACK_S)
        assert ended.error is None
        last = ended.frames[-1]
        assert isinstance(last, TokenDelta)
        assert last.finish_reason == "length"


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(second: signal.Signals) -> None:
    with FakeService("forever") as service:
        stream = begin_stream(service)
        os.kill(service.pid, signal.SIGTERM)
        time.sleep(0.5)
        os.kill(service.pid, second)
        assert service.wait_for_exit(SLACK_S) == 128 + second
        stream.join(SLACK_S)
    assert stream.error is not None


def test_a_start_is_not_waited_for() -> None:
    with FakeService("starting") as service:
        os.kill(service.pid, signal.SIGTERM)
        assert service.wait_for_exit(DRAIN_S + SLACK_S) == 0


def test_a_client_that_does_not_read_is_not_waited_for() -> None:
    request = REQUEST | {"stream": True}
    with (
        FakeService("flood", shutdown_grace_s=GRACE_S) as service,
        httpx.stream("POST", service.url + PATH, json=request, trust_env=False),
    ):
        os.kill(service.pid, signal.SIGTERM)
        assert service.wait_for_exit(GRACE_S + CUT_S + SLACK_S) == 0
