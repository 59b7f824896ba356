"""Transcriptions and translations: the pair's whole answer is the monolith's, or its refusal."""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.checkpoints import checkpoint
from tests.monolith import Monolith
from tests.pair import Pair
from tests.parity.answers import LOGPROB_TOLERANCE
from tests.parity.folding import same, settled
from tests.parity.spoken_requests import SpokenRequest, spoken_requests

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Speech:
    """
    Attributes:
        flags: for every server; `engine_flags` for those that hold the model.
        heard_s: seconds of sound that the model takes at a time.
        detects: whether the language is detected where it is not said.
        answered: names of requests, without their task, that must be answered.
    """

    checkpoint: str
    heard_s: int
    flags: tuple[str, ...] = ()
    engine_flags: tuple[str, ...] = ()
    detects: bool = False
    answered: frozenset[str] = frozenset()


_ALWAYS = frozenset(
    {"one sound", "streamed, with usage", "longer than is heard at a time", "as text", "two beams"}
)
MODELS = {
    "whisper": Speech(
        "whisper",
        4,
        ("--max-model-len=448",),
        detects=True,
        answered=_ALWAYS | {"the language is not said", "with times", "longer, with times"},
    ),
    "qwen3_asr": Speech("qwen3_asr", 30, ("--max-model-len=1024",), answered=_ALWAYS),
    "voxtral": Speech(
        "voxtral",
        30,
        ("--max-model-len=1536", "--tokenizer-mode=mistral", "--config-format=mistral"),
        engine_flags=("--load-format=mistral",),
        answered=_ALWAYS,
    ),
}


def said(response: httpx.Response) -> Any:
    """The answer; a stream's added up, since steps that come together may share an event."""
    if response.headers["content-type"].startswith("application/json"):
        return settled(response.json())
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]", response.text[-300:]
    events = [json.loads(line) for line in lines[:-1]]
    choices = [choice for event in events for choice in event.get("choices", ())]
    return {
        "text": "".join(choice["delta"]["content"] for choice in choices),
        "ends": [
            (choice["finish_reason"], choice.get("stop_reason"))
            for choice in choices
            if choice.get("finish_reason")
        ],
        "kinds": sorted({(event.get("object"), event.get("model")) for event in events}),
        "usage": [event["usage"] for event in events if event.get("usage")][-1:],
        "usage in every event": all(event.get("usage") for event in events),
        "errors": [event["error"] for event in events if "error" in event],
    }


def send(url: str, request: SpokenRequest) -> httpx.Response:
    return httpx.post(url + request.path, **request.form(), timeout=300.0, trust_env=False)


@pytest.mark.parametrize("name", MODELS)
def test_the_whole_answer_is_the_monoliths(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    path = checkpoint(model.checkpoint)
    flags = ("--served-model-name=served", *model.flags)
    requests = spoken_requests(2.5 * model.heard_s)
    with ExitStack() as stack:
        pair = stack.enter_context(
            Pair(path, logs=tmp_path, flags=flags, generate_flags=model.engine_flags)
        )
        monolith = stack.enter_context(
            Monolith(path, *flags, *model.engine_flags, log=tmp_path / "monolith.log")
        )
        # One after the other: then both engines compute the same batches, and agree exactly.
        ours = {name: send(pair.url, request) for name, request in requests.items()}
        theirs = {name: send(monolith.url, request) for name, request in requests.items()}
    found = [
        f"{name}: pair {ours[name].status_code} {said(ours[name])}, "
        f"monolith {answer.status_code} {said(answer)}"
        for name, answer in theirs.items()
        if ours[name].status_code != answer.status_code
        or not same(said(ours[name]), said(answer), LOGPROB_TOLERANCE)
    ]
    assert not found, "\n".join(found)
    answered = {name.partition(": ")[2] for name, answer in theirs.items() if answer.is_success}
    assert answered >= model.answered
    one, another = (said(theirs[f"transcriptions: {name}"]) for name in ("one sound", "another"))
    assert one != another
    if model.detects:
        heard = ("with times, the language is not said", "another language is heard")
        languages = {said(theirs[f"transcriptions: {name}"])["language"] for name in heard}
        assert len(languages) == 2
