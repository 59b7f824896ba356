"""One request to the pair and to the monolith, plain and streamed: what both say."""

from typing import Any

import httpx

from tests.conftest import SERVED_NAME
from tests.parity.adding_up import Said, said, said_by_stream
from tests.parity.conftest import Thinker
from tests.parity.numbering import events_of, numbered

Json = Any


def ask_both(thinker: Thinker, path: str, **request: Any) -> Json:
    """Return the body of the plain answer, after comparing whole answers."""
    ours, theirs = (_post(url, path, request) for url in (thinker.pair, thinker.monolith))
    assert ours.status_code == theirs.status_code, ours.text
    body = ours.json()
    assert numbered(body) == numbered(theirs.json())
    return body


def stream_from_both(thinker: Thinker, path: str, **request: Any) -> Said:
    """Return what the streamed answer adds up to, after comparing what both do.

    The events themselves are not the same: each is what the engine wrote until somebody looked.
    """
    ours, theirs = (
        said_by_stream(path, events_of(_post(url, path, request | {"stream": True}).text))
        for url in (thinker.pair, thinker.monolith)
    )
    assert ours == theirs
    return ours


def both_say(thinker: Thinker, path: str, **request: Any) -> Said:
    """Return what the plain answer says, after comparing it and the streamed one."""
    stream_from_both(thinker, path, **request)
    return said(path, ask_both(thinker, path, **request))


def _post(url: str, path: str, request: dict[str, Any]) -> httpx.Response:
    body = {"model": SERVED_NAME, "temperature": 0.0, **request}
    return httpx.post(url + path, json=body, timeout=300.0, trust_env=False)
