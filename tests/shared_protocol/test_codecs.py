"""Both encodings carry every request, and the binary one without copying a tensor to read it."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors
from hypothesis import given

from shared_protocol.binary_codec import SAFETENSORS_DTYPES, decode_binary, encode_binary
from shared_protocol.items import BatchedField, ItemElement, MultiModalItem
from shared_protocol.json_codec import decode_json, encode_json
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import Features, GenerateRequest
from shared_protocol.tensors import DTYPE_SIZES, TensorRef
from tests.shared_protocol import strategies
from tests.shared_protocol.bodies import DECODERS, ENCODERS, header_of


def test_random_requests_have_every_member() -> None:
    always = {"request_id", "token_ids", "sampling_params"}
    always |= {"features", "prompt_embeds", "encoder_token_ids"}
    of_one_value = {"content_parts", "output_mode"}
    expected = set(GenerateRequest.__struct_fields__) - always - of_one_value
    assert strategies.OPTIONAL_MEMBERS.keys() == expected


@given(strategies.requests())
def test_a_request_is_the_same_after_either_encoding(request_: GenerateRequest) -> None:
    assert decode_json(encode_json(request_)) == request_
    assert decode_binary(encode_binary(request_)) == request_


@pytest.mark.parametrize("encoding", ENCODERS)
@given(request_=strategies.requests())
def test_encoding_what_was_decoded_gives_the_same_bytes(
    encoding: str, request_: GenerateRequest
) -> None:
    # Equality alone would not tell 1 from 1.0 or True.
    body = ENCODERS[encoding](request_)
    assert ENCODERS[encoding](DECODERS[encoding](body)) == body


@given(strategies.requests())
def test_the_safetensors_library_reads_the_container(request_: GenerateRequest) -> None:
    read = {
        name: (tensor["dtype"], tuple(tensor["shape"]), bytes(tensor["data"]))
        for name, tensor in safetensors.deserialize(encode_binary(request_))  # type: ignore[no-untyped-call]
    }
    assert read == {
        name: (SAFETENSORS_DTYPES[tensor.dtype], tensor.shape, tensor.data)
        for name, tensor in first_names(list(expected_tensors(request_)))
    }


def test_a_stored_container_opens_as_a_safetensors_file(tmp_path: Path) -> None:
    pixels = TensorRef("bfloat16", (2, 3), bytes(range(12)))
    request = image_request(PlaceholderRange(1, 3, [True, False, True]), image_item(pixels))
    path = tmp_path / "request.safetensors"
    path.write_bytes(encode_binary(request))
    with safetensors.safe_open(path, framework="pt") as file:
        assert set(file.keys()) == {
            "token_ids",
            "placeholder/image/0/is_embed",
            "image/0/pixel_values",
        }
        assert file.get_tensor("token_ids").tolist() == [1, 2, 3, 4]
        assert file.get_tensor("placeholder/image/0/is_embed").tolist() == [True, False, True]
        assert file.get_tensor("image/0/pixel_values").shape == (2, 3)


@given(strategies.requests())
def test_decoded_tensors_lie_aligned_in_the_received_buffer(request_: GenerateRequest) -> None:
    body = bytearray(encode_binary(request_))
    start = address(memoryview(body))
    for tensor in items_and_embeds(decode_binary(body)):
        view = tensor.data
        assert isinstance(view, memoryview)
        assert view.obj is body
        if view.nbytes:
            assert start <= address(view) <= start + len(body) - view.nbytes
            assert address(view) % DTYPE_SIZES[tensor.dtype] == 0


def test_an_item_that_stands_twice_travels_once() -> None:
    item = image_item(TensorRef("uint8", (4096,), bytes(4096)))
    once = GenerateRequest(
        request_id="r",
        token_ids=[1, 2, 3, 4],
        sampling_params={},
        features=Features(
            mm_hashes={"image": ["a"], "video": ["a", "b"]},
            mm_placeholders={
                "image": [PlaceholderRange(0, 1)],
                "video": [PlaceholderRange(1, 1), PlaceholderRange(2, 1)],
            },
            kwargs_data={"image": [item], "video": [item, item]},
        ),
    )
    body = encode_binary(once)
    assert len(body) < 2 * 4096
    assert header_of(body).keys() == {"__metadata__", "token_ids", "image/0/pixel_values"}
    assert decode_binary(body) == once


def test_equal_tensors_that_are_not_one_object_each_keep_their_name() -> None:
    first, second = (TensorRef("uint8", (2,), b"ab") for _ in range(2))
    item = MultiModalItem(
        {
            "first": ItemElement(first, BatchedField()),
            "second": ItemElement([second, 1], BatchedField()),
        }
    )
    body = encode_binary(image_request(PlaceholderRange(0, 1), item))
    assert {"image/0/first", "image/0/second/0"} < header_of(body).keys()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("encoding", ENCODERS)
def test_a_number_that_json_cannot_say_is_not_encoded(encoding: str, number: float) -> None:
    item = MultiModalItem({"fps": ItemElement([number], BatchedField())})
    with pytest.raises(ValueError, match="does not cross the wire"):
        ENCODERS[encoding](image_request(PlaceholderRange(0, 1), item))


def image_item(pixels: TensorRef) -> MultiModalItem:
    return MultiModalItem({"pixel_values": ItemElement(pixels, BatchedField())})


def image_request(placeholder: PlaceholderRange, item: MultiModalItem) -> GenerateRequest:
    return GenerateRequest(
        request_id="r",
        token_ids=[1, 2, 3, 4],
        sampling_params={},
        features=Features({"image": ["h"]}, {"image": [placeholder]}, {"image": [item]}),
    )


def items_and_embeds(request: GenerateRequest) -> Iterator[TensorRef]:
    """Every tensor but those that become lists."""
    for name, tensor in expected_tensors(request):
        if not name.endswith("token_ids") and not name.startswith("placeholder/"):
            yield tensor


def expected_tensors(request: GenerateRequest) -> Iterator[tuple[str, TensorRef]]:
    """Every tensor under the name that the binary form has for it."""
    for name in ("token_ids", "encoder_token_ids"):
        if (token_ids := getattr(request, name)) is not None:
            data = b"".join(token_id.to_bytes(4, "little") for token_id in token_ids)
            yield name, TensorRef("int32", (len(token_ids),), data)
    if request.prompt_embeds is not None:
        for index, tensor in enumerate(request.prompt_embeds.tensors):
            yield f"prompt_embeds/{index}", tensor
    if request.features is None:
        return
    for modality, placeholders in request.features.mm_placeholders.items():
        for index, placeholder in enumerate(placeholders):
            mask = placeholder.is_embed
            if mask is not None:
                data = bytes(mask)
                yield (
                    f"placeholder/{modality}/{index}/is_embed",
                    TensorRef("bool", (len(mask),), data),
                )
    for prefix, lists in (
        ("", request.features.kwargs_data),
        ("metadata/", request.features.mm_metadata),
    ):
        for modality, items in (lists or {}).items():
            for index, item in enumerate(items):
                for path, tensor in item.tensors() if item is not None else ():
                    yield f"{prefix}{modality}/{index}/{path}", tensor


def first_names(named: list[tuple[str, TensorRef]]) -> Iterator[tuple[str, TensorRef]]:
    """Drop the further names of an object that stands at several places."""
    seen = set()
    for name, tensor in named:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
