"""LoRA adapters: named on the generate service, offered as models by render, answered alike."""

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.checkpoints import adapter, checkpoint
from tests.conftest import SERVED_NAME
from tests.monolith import Monolith
from tests.pair import Pair

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    folder = tmp_path_factory.mktemp("adapters")
    model = checkpoint("gemma3")
    names = [adapter.build(model, folder / name, seed=seed) for seed, name in enumerate("ab")]
    flags = [f"--served-model-name={SERVED_NAME}"]
    lora = ["--enable-lora", "--max-loras=2", "--lora-modules"]
    lora += [f"{path.name}={path}" for path in names]
    with ExitStack() as stack:
        pair = stack.enter_context(Pair(model, logs=folder, flags=flags, generate_flags=lora))
        monolith = stack.enter_context(Monolith(model, *flags, *lora, log=folder / "monolith.log"))
        yield pair.url, monolith.url


def ask(url: str, model: str) -> httpx.Response:
    chat = {
        "model": model,
        "messages": [{"role": "user", "content": "the quick brown fox"}],
        "temperature": 0.0,
        "max_tokens": 12,
    }
    return httpx.post(f"{url}/v1/chat/completions", json=chat, timeout=120.0, trust_env=False)


def test_each_adapter_changes_the_answer_as_it_does_in_the_monolith(urls: tuple[str, str]) -> None:
    pair, monolith = urls
    answers = {}
    for name in (SERVED_NAME, "a", "b"):
        ours, theirs = ask(pair, name).json(), ask(monolith, name).json()
        assert ours["model"] == theirs["model"] == name
        answers[name] = ours["choices"][0]["message"]["content"]
        assert answers[name] == theirs["choices"][0]["message"]["content"]
    assert len(set(answers.values())) == 3


def test_adapters_are_listed_as_models(urls: tuple[str, str]) -> None:
    listed = [
        {card["id"]: card["parent"] for card in httpx.get(f"{url}/v1/models").json()["data"]}
        for url in urls
    ]
    assert listed[0] == listed[1] == {SERVED_NAME: None, "a": SERVED_NAME, "b": SERVED_NAME}


def test_an_unknown_adapter(urls: tuple[str, str]) -> None:
    assert [ask(url, "c").status_code for url in urls] == [404, 404]
