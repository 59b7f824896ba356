"""Every family's masks, items and hashes come through the wire as vLLM's processor made them."""

import asyncio
import contextlib
import io
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from PIL import Image
from vllm.inputs import ExplicitEncoderDecoderPrompt

from shared_protocol.errors import InvalidRequest
from tests.checkpoints import checkpoint
from tests.models.counts import door_counts
from tests.models.door import ENCODINGS, Door, differences, placeholder
from tests.models.families import COMMON_FLAGS, FAMILIES, chat, media_chats
from tests.models.media import Part, audio_part, image_part, samples, video_part
from tests.models.resizing import padded, resized_tensors
from tests.models.supplied_media import encoded, rows, supplied_pictures, supplied_sounds
from tests.pictures import data_url

pytestmark = [
    # torch's and vLLM's own, on the way to the processors.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One for all: the front end of a family is bound to the loop it was built on."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def door(family: str, loop: asyncio.AbstractEventLoop) -> Iterator[Door]:
    model = FAMILIES[family]
    opened = loop.run_until_complete(
        Door.open(checkpoint(model.checkpoint), *COMMON_FLAGS, *model.flags, *model.front_flags)
    )
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def gemma4(loop: asyncio.AbstractEventLoop) -> Iterator[Door]:
    flags = (*COMMON_FLAGS, "--trust-request-mm-kwargs")
    opened = loop.run_until_complete(Door.open(checkpoint("gemma4"), *flags))
    yield opened
    opened.close()


# What may be longer, or shorter, than the item at hand has it: padding, and what yields as many
# embeddings all the same.
ELASTIC = {
    ("llava_onevision", "pixel_values", 0),
    ("phi3_v", "pixel_values", 0),
    ("lfm2_vl", "pixel_values", 1),
    ("moss_audio", "audio_data", 1),
    ("mimo_omni_sound", "audio_features", 0),
    ("qwen2_5_omni", "feature_attention_mask", 0),
    ("voxtral", "audio_arrays", 0),
    ("voxtral_realtime", "audio_arrays", 0),
}


def test_tensors_of_other_sizes_are_refused(
    family: str, door: Door, loop: asyncio.AbstractEventLoop
) -> None:
    """Of each tensor, along each dimension: one more and one less of what is at its end."""
    admitted = set()
    for modality in FAMILIES[family].modalities:
        _, wire = loop.run_until_complete(door.render(media_chats(modality)["one"]))
        for resized in resized_tensors(wire):
            with contextlib.suppress(InvalidRequest):
                door.enter(resized.request, "binary")
                admitted.add((family, resized.key, resized.axis))
    assert admitted <= ELASTIC


def test_media_come_through_as_they_were_made(
    family: str, door: Door, loop: asyncio.AbstractEventLoop
) -> None:
    model = FAMILIES[family]
    for modality in model.modalities:
        for name, asked in media_chats(modality, model.most_items).items():
            prompt, wire = loop.run_until_complete(door.render(asked))
            for encoding in ENCODINGS:
                entered = door.enter(wire, encoding)
                assert not differences(prompt, entered), (modality, name, encoding)
                assert entered["prompt_token_ids"] == prompt["prompt_token_ids"]
            assert wire.features is not None
            for kind, places in prompt["mm_placeholders"].items():
                counts = [place.get_num_embeds() for place in places]
                sent = wire.features.mm_placeholders[kind]
                assert [place.num_embeds for place in sent] == counts, (modality, name)
            for count in door_counts(door, wire):
                assert count.tensors == count.mask, (modality, name, count)
            if modality == "audio in video":
                check_woven(prompt)


def stripes(dark: int, light: int) -> Part:
    """A picture of as many pixels of either shade, as wide as two of DeepSeek-OCR-2's crops."""
    shades = np.where(np.arange(1536) // 32 % 2, light, dark).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(np.tile(shades, (768, 1))).convert("RGB").save(file, format="PNG")
    return {"type": "image_url", "image_url": {"url": data_url(file.getvalue())}}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_picture_whose_crops_add_up_to_nothing(
    dtype: str, loop: asyncio.AbstractEventLoop
) -> None:
    # vLLM's encoder takes it for one without crops, and yields fewer rows than its placeholder has.
    opened = loop.run_until_complete(Door.open(checkpoint("deepseek_ocr2"), f"--dtype={dtype}"))
    with contextlib.closing(opened) as door:
        for shades, refused in (((0, 255), True), ((127, 128), True), ((0, 254), False)):
            prompt, wire = loop.run_until_complete(door.render(chat("image", [stripes(*shades)])))
            assert len(prompt["mm_kwargs"]["image"][0]["images_crop"].data) == 2
            if refused:
                with pytest.raises(InvalidRequest, match="images_crop has numbers that add up to"):
                    door.enter(wire, "binary")
            else:
                assert not differences(prompt, door.enter(wire, "binary"))


SUPPLIED = {
    **dict(supplied_pictures()),
    **dict(supplied_sounds()),
    # For models that take one tensor for a picture, whatever its size.
    "rows alone": [{"type": "image_embeds", "image_embeds": encoded(rows(1))}],
    "two alone": [{"type": "image_embeds", "image_embeds": encoded(rows(seed))} for seed in (1, 2)],
}


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("qwen2_vl", {"picture", "two pictures", "film"}),
        ("llava_onevision", {"rows alone", "two alone"}),
    ],
)
def test_media_as_embeddings_come_through(
    name: str, taken: set[str], loop: asyncio.AbstractEventLoop
) -> None:
    opened = loop.run_until_complete(
        Door.open(checkpoint(name), "--enable-mm-embeds", '--limit-mm-per-prompt={"image": 4}')
    )
    with contextlib.closing(opened) as door:
        for kind in taken:
            prompt, wire = loop.run_until_complete(door.render(chat("text", SUPPLIED[kind])))
            for encoding in ENCODINGS:
                entered = door.enter(wire, encoding)
                assert not differences(prompt, entered), (kind, encoding)


def test_a_sound_longer_than_the_model_listens(loop: asyncio.AbstractEventLoop) -> None:
    opened = loop.run_until_complete(Door.open(checkpoint("gemma4"), *COMMON_FLAGS))
    with contextlib.closing(opened) as door:
        prompt, wire = loop.run_until_complete(door.render(chat("audio", [audio_part(1, 35.7)])))
        for encoding in ENCODINGS:
            assert not differences(prompt, door.enter(wire, encoding))


@pytest.mark.parametrize(
    ("options", "rows_made"),
    [({"base_size": 768}, 144 + 2 * 144 + 1), ({"image_size": 1024}, 256 + 2 * 256 + 1)],
)
def test_sizes_for_which_vllm_counts_wrong(
    options: dict[str, int], rows_made: int, loop: asyncio.AbstractEventLoop
) -> None:
    flags = (*COMMON_FLAGS, "--trust-request-mm-kwargs")
    opened = loop.run_until_complete(Door.open(checkpoint("deepseek_ocr2"), *flags))
    with contextlib.closing(opened) as door:
        asked = chat("image", [image_part(1, 2000, 1000)]) | {"mm_processor_kwargs": options}
        prompt, wire = loop.run_until_complete(door.render(asked))
        assert prompt["mm_placeholders"]["image"][0].get_num_embeds() != rows_made
        with pytest.raises(InvalidRequest):
            door.enter(wire, "binary")


@pytest.mark.parametrize("name", ["gemma4", "qwen3_vl", "qwen3_5"])
def test_a_film_of_hours(name: str, loop: asyncio.AbstractEventLoop) -> None:
    film = video_part(1, 12, 64, 64, rate=Fraction(1, 3600))
    flags = (*COMMON_FLAGS, *FAMILIES[name].flags)
    opened = loop.run_until_complete(Door.open(checkpoint(name), *flags))
    with contextlib.closing(opened) as door:
        prompt, wire = loop.run_until_complete(door.render(chat("video", [film])))
        for encoding in ENCODINGS:
            assert not differences(prompt, door.enter(wire, encoding))


def test_pictures_of_more_or_fewer_patches_than_a_tile(loop: asyncio.AbstractEventLoop) -> None:
    flags = (*COMMON_FLAGS, "--trust-request-mm-kwargs")
    opened = loop.run_until_complete(Door.open(checkpoint("lfm2_vl"), *flags))
    with contextlib.closing(opened) as door:
        asked = [chat("image", [image_part(1, *sides)]) for sides in ((10, 2000), (2000, 10))]
        for tokens in (4, 8, 32, 64, 256):
            options = {"mm_processor_kwargs": {"max_image_tokens": tokens}}
            asked.append(chat("image", [image_part(2, 150, 90)]) | options)
        for request in asked:
            prompt, wire = loop.run_until_complete(door.render(request))
            for encoding in ENCODINGS:
                assert not differences(prompt, door.enter(wire, encoding))
            for count in door_counts(door, wire):
                assert count.tensors == count.mask


@pytest.mark.parametrize("tokens", [70, 140, 280, 560, 1120])
def test_pictures_padded_to_what_a_client_chose(
    tokens: int, gemma4: Door, loop: asyncio.AbstractEventLoop
) -> None:
    options = {"mm_processor_kwargs": {"max_soft_tokens": tokens}}
    asked = chat("image", [image_part(1, 150, 90)]) | options
    prompt, wire = loop.run_until_complete(gemma4.render(asked))
    assert not differences(prompt, gemma4.enter(wire, "binary"))


@pytest.mark.parametrize(
    ("part", "lengths"),
    [
        (image_part(1, 64, 64), {"pixel_values": 0, "pixel_position_ids": 0}),
        (video_part(1, 4, 64, 64), {"pixel_values_videos": 1, "pixel_position_ids_videos": 1}),
        (audio_part(1, 1.0), {"input_features_padded": 0, "input_features_mask": 0}),
    ],
)
def test_padding_that_the_processor_does_not_make(
    part: Part, lengths: dict[str, int], gemma4: Door, loop: asyncio.AbstractEventLoop
) -> None:
    # The encoder attends over it.
    _, wire = loop.run_until_complete(gemma4.render(chat("media", [part])))
    gemma4.enter(wire, "binary")
    with pytest.raises(InvalidRequest, match=r"padded to|true entries"):
        gemma4.enter(padded(wire, lengths, times=30), "binary")


def test_a_sound_padded_further_than_the_longest(loop: asyncio.AbstractEventLoop) -> None:
    opened = loop.run_until_complete(Door.open(checkpoint("moss_audio"), "--trust-remote-code"))
    with contextlib.closing(opened) as door:
        _, wire = loop.run_until_complete(door.render(chat("audio", [audio_part(1, 10.0)])))
        door.enter(padded(wire, {"audio_data": 1}, times=30), "binary")
        with pytest.raises(InvalidRequest, match="audio_data has"):
            door.enter(padded(wire, {"audio_data": 1}, times=61), "binary")


def test_a_spectrum_without_its_mask_does_not_come_through(loop: asyncio.AbstractEventLoop) -> None:
    # vLLM's processor asks for no mask, and its model fails without it, in the engine.
    opened = loop.run_until_complete(Door.open(checkpoint("qwen2_5_omni"), "--enable-mm-embeds"))
    with contextlib.closing(opened) as door:
        _, wire = loop.run_until_complete(door.render(chat("text", SUPPLIED["sound"])))
        for encoding in ENCODINGS:
            with pytest.raises(InvalidRequest, match="feature_attention_mask"):
                door.enter(wire, encoding)


def test_the_prompts_of_an_encoder_decoder_come_through(loop: asyncio.AbstractEventLoop) -> None:
    heard = ExplicitEncoderDecoderPrompt(
        encoder_prompt={
            "prompt": "",
            "multi_modal_data": {"audio": (samples(1, 2.0, 16_000).astype("f4"), 16_000)},
        },
        decoder_prompt={"prompt": "<|startoftranscript|>"},
    )
    opened = loop.run_until_complete(Door.open(checkpoint("whisper"), "--max-model-len=448"))
    with contextlib.closing(opened) as door:
        prompt, wire = loop.run_until_complete(door.render_raw(heard))
        for encoding in ENCODINGS:
            entered = door.enter(wire, encoding)
            encoder, decoder = entered["encoder_prompt"], entered["decoder_prompt"]
            assert entered["type"] == "enc_dec"
            assert encoder["prompt_token_ids"] == prompt["encoder_prompt"]["prompt_token_ids"]
            assert decoder["prompt_token_ids"] == prompt["decoder_prompt"]["prompt_token_ids"]
            assert not differences(prompt["decoder_prompt"], decoder)


def check_woven(prompt: Any) -> None:
    """The sound of a video lies inside the video: one range, complementary masks."""
    videos, audios = (map(placeholder, prompt["mm_placeholders"][of]) for of in ("video", "audio"))
    for video, audio in zip(videos, audios, strict=True):
        assert video[:2] == audio[:2]
        assert video[2] is not None
        assert audio[2] is not None
        assert not any(both for both in map(all, zip(video[2], audio[2], strict=True)))
