"""The processor of a model is read from its files once, where vLLM reads it four times.

It asks for it with one tokenizer and then with another, for the names of its options, and for its
chat template. Each time transformers reads the tokenizer anew, which is most of the work: for a
vocabulary of 50,000 tokens half a second and 20 MB.
"""

import copy
from functools import lru_cache
from typing import Any

from transformers import ProcessorMixin
from vllm.renderers import hf
from vllm.transformers_utils import processor as vllm_processor

_read = vllm_processor.get_processor


def install() -> None:
    """Have vLLM take a processor that is there already; may be called again."""
    cached = lru_cache(_Processors().get)
    vllm_processor.cached_get_processor = cached
    hf.cached_get_processor = cached


class _Processors:
    """Those that were read, by model and options."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], Any] = {}

    def get(self, model: str, *args: Any, tokenizer: Any = None, **options: Any) -> Any:
        """As vLLM's `get_processor`.

        One that was read for another class is taken if it is of this class as well: the chat
        template, for which vLLM has several classes, is the same in each.
        """
        key = (model, args, _given(options))
        found = self._found.get(key)
        if not isinstance(found, options.get("processor_cls", ProcessorMixin)):
            with_tokenizer = {} if tokenizer is None else {"tokenizer": tokenizer}
            made = _read(model, *args, **with_tokenizer, **options)
            self._found.setdefault(key, made)
            return made
        return found if tokenizer is None else _with_tokenizer(found, tokenizer)


def _given(options: dict[str, Any]) -> frozenset[tuple[str, Any]]:
    """What was asked for but the class; vLLM names some defaults here and leaves them out there."""
    return frozenset(
        (name, value)
        for name, value in options.items()
        if name != "processor_cls" and value is not None and value is not False
    )


def _with_tokenizer(processor: ProcessorMixin, tokenizer: Any) -> ProcessorMixin:
    """The same processor with another tokenizer of the same files."""
    changed = copy.copy(processor)
    changed.tokenizer = tokenizer
    return changed
