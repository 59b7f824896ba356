"""The instruments of `make bench`, on servers of which is known what they do."""

import asyncio
import json
import multiprocessing
import time
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.serving.cpu_time import cpu_seconds, spent
from benchmarks.serving.load import chat, run_load
from benchmarks.serving.page import page
from benchmarks.serving.plot import plot
from benchmarks.serving.rounds import Round
from benchmarks.serving.set_ups import MONOLITH, PAIR
from benchmarks.serving.workloads import WORKLOADS

pytestmark = pytest.mark.anyio


SLOW = Round(
    model="demo",
    set_up=MONOLITH,
    workload="text, whole",
    concurrency=1,
    seconds=2.0,
    requests=4,
    errors=[],
    tokens=8,
    p50_s=0.5,
    p95_s=1.0,
    first_p50_s=0.25,
    cpu_s={"front": 0.4, "engine": 9.0},
    load_before=0.5,
)


async def answer(request: web.Request) -> web.StreamResponse:
    """Two tokens, the first after 50 ms and the second after 50 more; some requests fail."""
    body = await request.json()
    if body["messages"][0]["content"].startswith("3:"):
        raise web.HTTPServiceUnavailable
    await asyncio.sleep(0.05)
    usage = {"completion_tokens": 2}
    if not body["stream"]:
        await asyncio.sleep(0.05)
        return web.json_response({"usage": usage})
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"role": "assistant"}\n\ndata: {"content": "a"}\n\n')
    await asyncio.sleep(0.05)
    last = json.dumps({"usage": usage}).encode()
    await response.write(b'data: {"content": "b"}\n\ndata: ' + last + b"\n\ndata: [DONE]\n\n")
    return response


@pytest.mark.parametrize("name", ["text, streamed", "text, whole"])
async def test_times_tokens_and_errors(name: str) -> None:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    bodies = [WORKLOADS[name].request(seed) for seed in range(8)]
    async with TestServer(app) as server:
        answers, seconds = await run_load(chat(str(server.make_url("")).rstrip("/")), bodies, 4)
    good = [entry for entry in answers if entry.error is None]
    assert len(answers) == 8
    assert len(good) == 7
    assert sum(entry.tokens for entry in good) == 14
    assert all(entry.whole_s >= 0.1 for entry in good)
    assert all((entry.first_s < entry.whole_s) == ("streamed" in name) for entry in good)
    # Four at once.
    assert 0.2 <= seconds < sum(entry.whole_s for entry in good)


def test_no_request_comes_twice() -> None:
    for workload in WORKLOADS.values():
        one, again, another = (json.dumps(workload.request(seed)) for seed in (1, 1, 2))
        assert one == again != another


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    time.sleep(60)


def test_cpu_is_counted_where_it_is_used() -> None:
    process = multiprocessing.get_context("spawn").Process(target=burn, args=(0.5,))
    process.start()
    try:
        assert process.pid is not None
        before = cpu_seconds({"front": process.pid})
        deadline = time.monotonic() + 30
        used = {"front": 0.0}
        while used["front"] < 0.4 and time.monotonic() < deadline:
            time.sleep(0.1)
            used = spent(before, cpu_seconds({"front": process.pid}))
        assert 0.4 <= used["front"] < 5
        assert used.keys() == {"front"}
    finally:
        process.kill()
        process.join()


def test_the_page_shows_ratios_of_medians() -> None:
    fast = replace(
        SLOW, set_up=PAIR, seconds=1.0, p50_s=0.1, cpu_s={"render": 0.4, "generate": 0.2}
    )
    written = page([SLOW, fast, replace(fast, errors=["oh"]), SLOW, fast], "About.")
    load = "| demo | text, whole | 1 |"
    assert f"{load} vllm serve | 2.0 | 500 ms | 1000 ms | 250 ms | 100.0 ms |" in written
    assert f"{load} pair | 2.00 | 0.20 | 1.00 | 1.00 | 1.50 | 0.50 | 1 |" in written
    assert written.endswith("About.\n")


def test_the_plot_has_a_curve_of_each_that_was_asked() -> None:
    points = [(MONOLITH, 1, 0.5), (MONOLITH, 8, 1.0), (PAIR, 1, 0.25), (PAIR, 8, 1.0)]
    drawn = plot([replace(SLOW, set_up=s, concurrency=c, p50_s=p) for s, c, p in points])
    curves = [
        line.get("points")
        for line in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}polyline")
    ]
    # Down is more: half and all of the height, a quarter and all of it; and none of the stock pair.
    assert curves == ["40,110 260,40", "40,145 260,40", ""]
