"""Supplied embeddings, alone and among images: sentinels, placeholders, and what is answered."""

from typing import Any

import httpx
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from shared_protocol.json_codec import decode_json
from shared_protocol.request import GenerateRequest
from tests.conftest import SERVED_NAME, Duo
from tests.embeddings import embeds_part, token_embeddings
from tests.parity.answers import Answer, ask, differences
from tests.pictures import data_url, png

pytestmark = [pytest.mark.engine, pytest.mark.anyio]

# Words only, and between them pieces of text that begin and end with a punctuation mark: then a
# span is tokenized alike, whether it stands alone or in the prompt. Some templates trim spaces.
SPANS = ("the quick brown fox", "seven small birds sing of purple rivers")


@pytest.fixture
def tokenizer(duo: Duo) -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(duo.checkpoint)
    return loaded


def chat(parts: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    return {
        "model": SERVED_NAME,
        "messages": [{"role": "user", "content": parts}],
        "temperature": 0.0,
        "max_tokens": 12,
        "logprobs": True,
        "top_logprobs": 3,
        "return_token_ids": True,
        **options,
    }


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def image(seed: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(png(seed))}}


async def post(url: str, path: str, request: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(timeout=300.0, trust_env=False) as client:
        return await client.post(url + path, json=request)


async def answer(url: str, request: dict[str, Any]) -> Answer:
    async with httpx.AsyncClient(timeout=300.0, trust_env=False) as client:
        return await ask(client, url, request)


async def rendered(duo: Duo, request: dict[str, Any]) -> GenerateRequest:
    response = await post(duo.pair, "/v1/chat/completions/render", request)
    assert response.status_code == 200, response.text
    return decode_json(response.content)


ARRANGEMENTS = {
    # Places of the two spans (0, 1) and of images (i) among pieces of text.
    "around an image": ["0", "i", "1"],
    "between images": ["i", "0", "i", "1", "i"],
    "after an image": ["i", "0", "1"],
    "no image": ["0", "1"],
}


def arranged(order: list[str], spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [text("Look:")]
    for number, place in enumerate(order):
        parts.append(image(number) if place == "i" else spans[int(place)])
        parts.append(text(f";then {number}:"))
    return parts


@pytest.mark.parametrize("order", ARRANGEMENTS.values(), ids=ARRANGEMENTS)
async def test_embeddings_of_a_text_are_answered_like_the_text(
    duo: Duo, tokenizer: PreTrainedTokenizerBase, order: list[str]
) -> None:
    ids = [tokenizer.encode(span, add_special_tokens=False) for span in SPANS]
    assert len(ids[0]) != len(ids[1])
    embeds = [embeds_part(token_embeddings(duo.checkpoint, span)) for span in ids]
    as_embeds = chat(arranged(order, embeds))
    as_text = chat(arranged(order, [text(span) for span in SPANS]))

    wire, wire_of_text = await rendered(duo, as_embeds), await rendered(duo, as_text)
    places = supplied_places(wire)
    assert [wire_of_text.token_ids[start:end] for start, end in places] == ids

    ours, expected = await answer(duo.pair, as_embeds), await answer(duo.monolith, as_text)
    assert ours.status == 200
    # What is echoed holds the sentinels, and is compared in a test of its own.
    ours.prompt_token_ids = expected.prompt_token_ids
    assert not differences(ours, expected)


def supplied_places(wire: GenerateRequest) -> list[tuple[int, int]]:
    """Start and end of each supplied span, in prompt order."""
    if wire.prompt_embeds is not None:
        return [(span.offset, span.offset + span.length) for span in wire.prompt_embeds.spans]
    assert wire.features is not None
    return [(place.offset, place.end) for place in wire.features.mm_placeholders["prompt_embeds"]]


@pytest.mark.parametrize("order", ARRANGEMENTS.values(), ids=ARRANGEMENTS)
async def test_only_the_spans_of_embeddings_are_zeroed(
    duo: Duo, tokenizer: PreTrainedTokenizerBase, order: list[str]
) -> None:
    ids = [tokenizer.encode(span, add_special_tokens=False) for span in SPANS]
    rows = [token_embeddings(duo.checkpoint, span) for span in ids]
    wire = await rendered(duo, chat(arranged(order, [embeds_part(row) for row in rows])))
    of_text = await rendered(duo, chat(arranged(order, [text(span) for span in SPANS])))

    vocab_size = await model_vocabulary(duo)
    assert all(0 <= token_id < vocab_size for token_id in wire.token_ids)
    places = supplied_places(wire)
    assert [end - start for start, end in places] == [len(span) for span in ids]
    expected = list(of_text.token_ids)
    for start, end in places:
        expected[start:end] = [0] * (end - start)
    assert wire.token_ids == expected

    if wire.prompt_embeds is not None:
        tensors = wire.prompt_embeds.tensors
    else:
        assert wire.features is not None
        assert of_text.features is not None
        assert wire.features.mm_placeholders["image"] == of_text.features.mm_placeholders["image"]
        assert wire.features.kwargs_data is not None
        tensors = [
            dict(item.tensors())["embedding"]
            for item in wire.features.kwargs_data["prompt_embeds"]
            if item is not None
        ]
    assert [bytes(tensor.data) for tensor in tensors] == [row.numpy().tobytes() for row in rows]


async def model_vocabulary(duo: Duo) -> int:
    async with httpx.AsyncClient(trust_env=False) as client:
        size: int = (await client.get(duo.generate + "/inference/v1/info")).json()["vocab_size"]
        return size


async def test_the_sentinel_is_where_the_models_are_said_to_have_it(
    duo: Duo, tokenizer: PreTrainedTokenizerBase
) -> None:
    inside = len(tokenizer) < await model_vocabulary(duo)
    assert inside == (duo.name == "qwen2_vl")


async def test_the_echoed_prompt_is_the_monoliths(
    duo: Duo, tokenizer: PreTrainedTokenizerBase
) -> None:
    ids = tokenizer.encode(SPANS[0], add_special_tokens=False)
    request = chat([text("Look:"), embeds_part(token_embeddings(duo.checkpoint, ids))])
    ours, theirs = await answer(duo.pair, request), await answer(duo.monolith, request)
    assert ours.prompt_token_ids == theirs.prompt_token_ids
    assert len(tokenizer) in (ours.prompt_token_ids or [])


def variants(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tensors that hold the same rows, as clients come by them."""
    return {
        "of training": torch.nn.Parameter(rows),
        "of a batch": rows.unsqueeze(0),
        "strided": torch.stack([rows, rows], dim=-1)[..., 0],
        "negated view": torch.complex(torch.zeros_like(rows), -rows).conj().imag,
    }


@pytest.mark.parametrize("with_image", [False, True])
async def test_any_tensor_with_the_same_rows_is_the_same(duo: Duo, with_image: bool) -> None:
    rows = token_embeddings(duo.checkpoint, [5, 6, 7])
    rest = [image(2)] if with_image else []
    plain = await answer(duo.pair, chat([text("Look:"), embeds_part(rows), *rest]))
    assert plain.status == 200
    for name, tensor in variants(rows).items():
        other = await answer(duo.pair, chat([text("Look:"), embeds_part(tensor), *rest]))
        assert not differences(other, plain), name


async def test_a_prompt_truncated_to_its_text(duo: Duo) -> None:
    parts = [
        embeds_part(token_embeddings(duo.checkpoint, [5, 6, 7])),
        text("what is this thing that is so long"),
    ]
    request = chat(parts, truncate_prompt_tokens=6)
    assert not differences(await answer(duo.pair, request), await answer(duo.monolith, request))


@pytest.mark.parametrize("with_image", [False, True])
async def test_a_text_that_spells_the_sentinel_is_refused(duo: Duo, with_image: bool) -> None:
    span = embeds_part(token_embeddings(duo.checkpoint, [1, 2, 3]))
    parts = [text("before <prompt_embeds> after"), span, *([image(1)] if with_image else [])]
    response = await post(duo.pair, "/v1/chat/completions", chat(parts))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"


async def test_a_tool_that_spells_the_sentinel_takes_no_embedding(duo: Duo) -> None:
    """Only message texts are looked at by vLLM; what else reaches the prompt is, too."""
    span = embeds_part(token_embeddings(duo.checkpoint, [1, 2, 3]))
    request = chat([text("hello"), span, image(1)])
    request["messages"].insert(
        1,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call-1",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"a": "<prompt_embeds>"}'},
                }
            ],
        },
    )
    response = await post(duo.pair, "/v1/chat/completions/render", request)
    if response.status_code == 200:
        wire = decode_json(response.content)
        assert [end - start for start, end in supplied_places(wire)] == [3]
        assert len([token for token in wire.token_ids if token == 0]) == 3
    else:
        assert response.status_code == 400


@pytest.mark.parametrize("place", ["before", "after"])
async def test_a_text_that_spells_the_placeholder_moves_no_image(
    duo: Duo, tokenizer: PreTrainedTokenizerBase, place: str
) -> None:
    spelled = text(f"the token {PLACEHOLDERS[duo.name]} in a text")
    parts = [spelled, image(1)] if place == "before" else [image(1), spelled]
    response = await post(duo.pair, "/v1/chat/completions", chat(parts))
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "messages"
    # Without an image there is nothing that it could move, and it is as good as any text.
    alone = chat([spelled])
    assert not differences(await answer(duo.pair, alone), await answer(duo.monolith, alone))


PLACEHOLDERS = {
    "gemma3": "<start_of_image>",
    "qwen2_vl": "<|image_pad|>",
    "demo": "<image>",
}
