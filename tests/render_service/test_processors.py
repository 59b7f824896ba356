"""A model's processor is read once, whoever asks for it, and is what vLLM would have read."""

import pytest
from transformers import AutoTokenizer, Gemma3Processor, ProcessorMixin, PythonBackend
from vllm.renderers import hf
from vllm.transformers_utils import processor as vllm_processor

from render_service import vllm_processors
from tests.checkpoints import checkpoint


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    def read(model: str, *args: object, **options: object) -> object:
        names.append(model)
        return vllm_processor.get_processor(model, *args, **options)

    # What `install` replaces, so that it is put back.
    for module in (vllm_processor, hf):
        monkeypatch.setattr(module, "cached_get_processor", module.cached_get_processor)
    monkeypatch.setattr(vllm_processors, "_read", read)
    vllm_processors.install()
    return names


def test_all_that_ask_get_one(reads: list[str]) -> None:
    model = str(checkpoint("gemma3"))
    first, second = (AutoTokenizer.from_pretrained(model) for _ in range(2))
    common = {"revision": None, "trust_remote_code": False}
    get = vllm_processor.cached_get_processor
    options = get(model, processor_cls=Gemma3Processor, **common)
    answers = [
        get(model, processor_cls=Gemma3Processor, tokenizer=tokenizer, **common)
        for tokenizer in (first, second, first)
    ]
    classes = (PythonBackend, ProcessorMixin)
    template = hf.cached_get_processor(
        model, processor_cls=classes, code_revision=None, **common
    ).chat_template
    assert reads == [model]
    assert [answer.tokenizer for answer in answers] == [first, second, first]
    assert answers[0] is answers[2]
    own = vllm_processor.get_processor(model, tokenizer=first)
    for answer in answers:
        assert type(answer) is type(own) is Gemma3Processor
        assert answer.image_processor is options.image_processor
        assert answer.to_dict() == own.to_dict()
        assert vars(answer).keys() == vars(own).keys()
    assert template == own.chat_template


def test_of_another_class_it_is_read_again(reads: list[str]) -> None:
    model = str(checkpoint("gemma3"))
    another = type("Other", (Gemma3Processor,), {})
    get = vllm_processor.cached_get_processor
    plain, other = get(model), get(model, processor_cls=another)
    assert [type(plain), type(other)] == [Gemma3Processor, another]
    assert len(reads) == 2


def test_other_options_are_another_processor(reads: list[str]) -> None:
    model = str(checkpoint("gemma3"))
    plain, changed, again = (
        vllm_processor.cached_get_processor(model, **options)
        for options in ({}, {"do_pan_and_scan": True}, {"do_pan_and_scan": True})
    )
    assert len(reads) == 2
    assert changed is again is not plain
