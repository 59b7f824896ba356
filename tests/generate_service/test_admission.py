"""What is measured by the model before its engine sees it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from generate_service.admission import admit
from generate_service.vllm_request import decode_request
from shared_protocol.errors import InvalidRequest
from shared_protocol.items import BatchedField, ItemElement, MultiModalItem
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import Features, GenerateRequest
from shared_protocol.tensors import TensorRef
from tests.generate_service.fake_engine import LIMITS

TEXT = GenerateRequest(request_id="r", token_ids=[1, 2], sampling_params={})


def supplied(count: int = 2, width: int = 4, dtype: str = "float32") -> GenerateRequest:
    """A request with an image as `count` rows, whose placeholder has two positions."""
    rows = TensorRef(dtype, (count, width), np.full((count, width), 0.5, dtype).tobytes())
    item = MultiModalItem({"image_embeds": ItemElement(rows, BatchedField())})
    places = [PlaceholderRange(0, 2)]
    return structs.replace(
        TEXT, features=Features({"image": ["h"]}, {"image": places}, {"image": [item]})
    )


def enter(request: GenerateRequest, **limits: Any) -> Any:
    return decode_request(admit(request, replace(LIMITS, **limits)), default_max_tokens=1).prompt


def refusal(request: GenerateRequest, **limits: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        enter(request, **limits)
    return caught.value


@pytest.mark.parametrize(
    "request_",
    [
        supplied(),
        supplied(dtype="float16"),
        # What several layers of an encoder say, side by side.
        supplied(width=8),
    ],
)
def test_media_as_embeddings_are_let_in(request_: GenerateRequest) -> None:
    (item,) = enter(request_)["mm_kwargs"]["image"]
    assert (item["image_embeds"].data == 0.5).all()


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(supplied(count=1), id="too few rows"),
        pytest.param(supplied(count=3), id="too many rows"),
        pytest.param(supplied(width=5), id="another width"),
        pytest.param(supplied(width=0), id="no width"),
        pytest.param(supplied(dtype="int32"), id="integers"),
    ],
)
def test_media_as_embeddings_that_an_engine_would_fail_of(request_: GenerateRequest) -> None:
    assert str(refusal(request_).param).startswith("features.kwargs_data.image[0]")


def test_media_as_embeddings_have_to_be_enabled() -> None:
    assert (
        "--enable-mm-embeds"
        in refusal(supplied(), media=replace(LIMITS.media, takes_embeds=False)).message
    )


def test_the_prompt_of_an_encoder_is_for_encoder_decoders() -> None:
    encoded = structs.replace(supplied(), encoder_token_ids=[0, 99])
    prompt = enter(encoded, encoder_decoder=True)
    assert prompt["encoder_prompt"]["prompt_token_ids"] == [0, 99]
    assert prompt["decoder_prompt"]["prompt_token_ids"] == [1, 2]
    outside = structs.replace(encoded, encoder_token_ids=[0, 100])
    assert refusal(outside, encoder_decoder=True).param == "encoder_token_ids[1]"
    assert refusal(encoded).param == "encoder_token_ids"
    assert refusal(TEXT, encoder_decoder=True).param == "encoder_token_ids"
