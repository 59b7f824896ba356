"""A rendered prompt made ready for an engine: sentinels consumed, stray markers refused."""

from functools import cached_property
from itertools import chain
from typing import Any

from vllm.inputs import EngineInput
from vllm.renderers import BaseRenderer
from vllm.renderers.chat_utils import PROMPT_EMBEDS_PLACEHOLDER_TOKEN

from render_service.sentinels import check_no_stray, consume_sentinels, spans_of_mask
from render_service.vllm_request import encode_placeholders
from shared_protocol.placeholders import PlaceholderRange

_PROMPT_EMBEDS = "prompt_embeds"


class PromptConsumer:
    """Consumes the sentinels of rendered prompts, for one model's tokenizer."""

    def __init__(self, renderer: BaseRenderer) -> None:
        self._renderer = renderer
        self._model_config = renderer.model_config
        self._marker_ids: dict[str, frozenset[int]] = {}

    def consume(self, prompt: EngineInput) -> EngineInput:
        """Return the prompt with every id inside the vocabulary; the one given stays as it is.

        Raises:
            InvalidRequest: if a text of the prompt spells a marker of its media.
        """
        if prompt["type"] == "embeds":
            return self._consume_embeds(prompt)
        if prompt["type"] != "multimodal":
            return prompt
        placeholders = encode_placeholders(prompt["mm_placeholders"])
        token_ids = prompt["prompt_token_ids"]
        reserved = frozenset[int]().union(
            *(self._markers(modality, token_ids, of) for modality, of in placeholders.items())
        )
        check_no_stray(token_ids, reserved, chain.from_iterable(placeholders.values()))
        spans = [(span.offset, span.length) for span in placeholders.get(_PROMPT_EMBEDS, ())]
        return _with(prompt, prompt_token_ids=consume_sentinels(token_ids, spans))

    def _consume_embeds(self, prompt: Any) -> EngineInput:
        if "prompt_token_ids" not in prompt:
            return prompt
        spans = list(spans_of_mask(prompt["is_token_ids"]))
        ranges = [PlaceholderRange(offset, length) for offset, length in spans]
        token_ids = prompt["prompt_token_ids"]
        check_no_stray(token_ids, self._sentinel_ids(), ranges)
        return _with(prompt, prompt_token_ids=consume_sentinels(token_ids, spans))

    def _sentinel_ids(self) -> frozenset[int]:
        tokenizer: Any = self._renderer.get_tokenizer()
        return frozenset({tokenizer.convert_tokens_to_ids(PROMPT_EMBEDS_PLACEHOLDER_TOKEN)})

    def _markers(
        self, modality: str, token_ids: list[int], ranges: list[PlaceholderRange]
    ) -> frozenset[int]:
        """The tokens by which the items of a modality were placed.

        For media these are the added tokens that take embeddings. Where none of them is in the
        text that vLLM writes for an item (Gemma 3 writes the token that begins an image), it is
        the tokens of that text, as far as the ranges hold them: what a template puts around an
        item is no marker.
        """
        if modality == _PROMPT_EMBEDS:
            return self._sentinel_ids()
        embedded = {
            token
            for place in ranges
            for start, end in place.embedded_runs()
            for token in token_ids[start:end]
        }
        written = self._written_ids(modality)
        if embedded & written:
            return self._added_ids & embedded
        inside = {token for place in ranges for token in token_ids[place.offset : place.end]}
        return self._added_ids & (embedded | (written & inside))

    def _written_ids(self, modality: str) -> frozenset[int]:
        if modality not in self._marker_ids:
            from vllm.model_executor.model_loader import get_model_cls

            text = get_model_cls(self._model_config).get_placeholder_str(modality, 1)
            tokenizer = self._renderer.get_tokenizer()
            ids = tokenizer.encode(text, add_special_tokens=False) if text else []
            self._marker_ids[modality] = frozenset(ids)
        return self._marker_ids[modality]

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        """Tokens that a text spells as a whole; some tokenizers add runs of line breaks, too."""
        # A tokenizer without that table (Mistral's) makes no control token of a text.
        added = getattr(self._renderer.get_tokenizer(), "added_tokens_decoder", {})
        return frozenset(token_id for token_id, token in added.items() if token.content.strip())


def _with(prompt: EngineInput, **members: Any) -> EngineInput:
    return {**prompt, **members}
