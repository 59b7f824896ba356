"""A pooling model through the pair: embeddings, pooling and scores are the monolith's."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.checkpoints import checkpoint
from tests.conftest import SERVED_NAME
from tests.monolith import Monolith
from tests.pair import Pair
from tests.parity.folding import same, settled

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FLAGS = [f"--served-model-name={SERVED_NAME}", "--runner=pooling", "--convert=embed"]
TEXTS = ["the quick brown fox", "seven small birds sing", "x"]

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "one": ("/v1/embeddings", {"input": TEXTS[0]}),
    "several": ("/v1/embeddings", {"input": TEXTS}),
    "token ids": ("/v1/embeddings", {"input": [5, 6, 7]}),
    "base64": ("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"}),
    "chat": ("/v1/embeddings", {"messages": [{"role": "user", "content": TEXTS[1]}]}),
    "pooling": ("/pooling", {"input": TEXTS}),
    "score": ("/score", {"text_1": TEXTS[0], "text_2": TEXTS[1:]}),
    "rerank": ("/rerank", {"query": TEXTS[0], "documents": TEXTS[1:]}),
    "too long": ("/v1/embeddings", {"input": "fox " * 3000}),
    "not generated": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
}


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    logs = tmp_path_factory.mktemp("logs")
    model = checkpoint("qwen2_vl")
    with ExitStack() as stack:
        pair = stack.enter_context(Pair(model, logs=logs, flags=FLAGS))
        monolith = stack.enter_context(Monolith(model, *FLAGS, log=logs / "monolith.log"))
        yield pair.url, monolith.url


@pytest.mark.parametrize(("path", "body"), REQUESTS.values(), ids=REQUESTS)
def test_pooling(urls: tuple[str, str], path: str, body: dict[str, Any]) -> None:
    ours, theirs = (
        httpx.post(url + path, json={"model": SERVED_NAME, **body}, timeout=120.0, trust_env=False)
        for url in urls
    )
    assert ours.status_code == theirs.status_code
    assert same(settled(ours.json()), settled(theirs.json()), 1e-4)
