"""What a model cannot place in a prompt does not come to the engine, which it would end."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.models.qwen3_vl import mrope_positions_factor

from generate_service.vllm_positions import table_length
from shared_protocol.errors import InvalidRequest
from shared_protocol.request import GenerateRequest
from tests.checkpoints import checkpoint
from tests.models.altered import (
    features_of,
    last_of_all,
    numbers_of,
    side_by_side,
    with_data,
    with_grid,
    with_token_ids,
    without,
)
from tests.models.door import Door
from tests.models.families import COMMON_FLAGS, FAMILIES, chat, text
from tests.models.media import Part, audio_part, image_part, video_part
from tests.models.supplied_media import picture, rows

pytestmark = [
    # torch's and vLLM's own, on the way to the processors.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

TEXT_ID = 5
OMNI = ("qwen2_5_omni", "qwen3_omni")
NARRATED = ("qwen3_vl", "qwen3_5")
"""Those whose films have words between the frames."""
PLACING = ("qwen2_vl", "qwen2_5_vl", *NARRATED, *OMNI)

Make = Callable[..., GenerateRequest]


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module", params=PLACING)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def door(family: str, loop: asyncio.AbstractEventLoop) -> Iterator[Door]:
    model = FAMILIES[family]
    flags = (*COMMON_FLAGS, *model.flags, "--trust-request-mm-kwargs")
    opened = loop.run_until_complete(Door.open(checkpoint(model.checkpoint), *flags))
    yield opened
    opened.close()


@pytest.fixture
def make(door: Door, loop: asyncio.AbstractEventLoop) -> Make:
    """Returns the request for a chat about parts."""

    def make(*parts: Part, **processor: Any) -> GenerateRequest:
        asked = chat("media", [text("Look:"), *parts, text("end.")])
        _, wire = loop.run_until_complete(door.render(asked | {"mm_processor_kwargs": processor}))
        return wire

    return make


def check_refused(door: Door, wire: GenerateRequest) -> None:
    with pytest.raises(InvalidRequest) as caught:
        door.enter(wire, "binary")
    assert caught.value.param is not None
    assert caught.value.param.startswith("features")


def of(*families: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("family", families, indirect=True)


PICTURE = image_part(1, 64, 64)
FILM = video_part(1, 4, 64, 64)
SOUND = audio_part(1, 1.0)
HEARD = video_part(1, 8, 64, 64, sound=True)
OTHER_HEARD = video_part(2, 4, 96, 64, sound=True)
WOVEN = {"use_audio_in_video": True}


@pytest.mark.parametrize("stretched", [False, True])
def test_the_table_is_known_to_be_as_long_as_vllm_makes_it(
    family: str, door: Door, monkeypatch: pytest.MonkeyPatch, stretched: bool
) -> None:
    config = door.vllm_config
    text_config = config.model_config.hf_text_config
    if stretched:
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
        monkeypatch.setattr(text_config, "rope_parameters", text_config.rope_parameters | yarn)
    with set_current_vllm_config(config):
        rope = get_rope(
            getattr(text_config, "head_dim", None)
            or text_config.hidden_size // text_config.num_attention_heads,
            max_position=text_config.max_position_embeddings,
            rope_parameters=text_config.rope_parameters,
            mrope_positions_factor=mrope_positions_factor(config) if family in NARRATED else 4,
        )
    assert table_length(config.model_config) == rope.cos_sin_cache.shape[0]


def test_a_picture_of_one_frame_comes_through(door: Door, make: Make) -> None:
    wire = make(PICTURE)
    for grid in ([1, 8, 2], [1, 2, 2], [1, 2, 4000]):
        door.enter(with_grid(wire, "image", grid), "binary")


@pytest.mark.parametrize("grid", [[2, 2, 4], [4, 2, 2], [700, 2, 2]])
def test_a_picture_of_several_frames_is_refused(door: Door, make: Make, grid: list[int]) -> None:
    check_refused(door, with_grid(make(PICTURE), "image", grid))


def test_a_side_longer_than_the_encoder_knows_is_refused(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So long a picture has more embeddings than the tiny models are made for."""
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    opened = loop.run_until_complete(Door.open(checkpoint("qwen2_5_vl"), "--max-model-len=8192"))
    with contextlib.closing(opened) as door:
        for modality, part in (("image", PICTURE), ("video", FILM)):
            _, wire = loop.run_until_complete(door.render(chat(modality, [part, text("end.")])))
            door.enter(with_grid(wire, modality, [1, 2, 8192]), "binary")
            with pytest.raises(InvalidRequest, match="8192"):
                door.enter(with_grid(wire, modality, [1, 2, 8194]), "binary")


def slow_film(frames: int, seconds_per_frame: int) -> Part:
    return video_part(1, frames, 64, 64, rate=Fraction(1, seconds_per_frame))


@of("qwen2_5_vl")
def test_a_long_film_whose_last_frame_the_model_can_place(door: Door, make: Make) -> None:
    """Two frames of the grid: as far as from one to the next, and no further."""
    door.enter(make(slow_film(4, 1750)), "binary")


@of("qwen2_5_vl")
def test_a_film_too_long_for_the_model_is_refused(door: Door, make: Make) -> None:
    check_refused(door, make(slow_film(4, 4200)))


@of("qwen2_5_omni")
@pytest.mark.parametrize(("fps", "admitted"), [(0.005, True), (0.002, False)])
def test_films_that_are_looked_at_seldom(
    door: Door, make: Make, fps: float, admitted: bool
) -> None:
    wire = make(video_part(1, 8, 64, 64), fps=fps)
    step = float(numbers_of(wire, "video", "second_per_grid_ts"))
    frames = int(numbers_of(wire, "video", "video_grid_thw")[0])
    # One step more than there is was counted, and 4096 left for text.
    assert frames * step * 25 > 3 * 4096
    if admitted:
        door.enter(wire, "binary")
    else:
        check_refused(door, wire)


@of("qwen2_5_vl")
def test_a_film_leaves_room_for_what_is_asked_for(door: Door, make: Make) -> None:
    """It ends as near to the end of the model's table as the text behind it and 16 tokens."""
    wire = make(FILM)
    assert numbers_of(wire, "video", "video_grid_thw")[0] == 2
    place = features_of(wire).mm_placeholders["video"][0]
    behind = len(wire.token_ids) - place.end
    last = 4 * 4096 - 1 - 16 - behind - place.offset
    assert door.media.film_time is not None
    for further in (0, 1):
        seconds = (last + further) / door.media.film_time.positions_per_second
        step = np.full((), seconds, dtype=np.float32)
        lasting = with_data(wire, "video", second_per_grid_ts=step)
        if further:
            check_refused(door, lasting)
        else:
            door.enter(lasting, "binary")


@of("qwen2_5_vl", *OMNI)
@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 3e38])
def test_a_film_that_lasts_no_time_at_all_is_refused(
    door: Door, make: Make, seconds: float
) -> None:
    step = np.full((), seconds, dtype=np.float32)
    check_refused(door, with_data(make(FILM), "video", second_per_grid_ts=step))


def flag(value: bool) -> np.ndarray[Any, Any]:
    return np.full((), value)


@of(*OMNI)
def test_a_film_is_woven_with_the_sound_that_it_says(door: Door, make: Make) -> None:
    for parts in ([HEARD], [PICTURE, HEARD, OTHER_HEARD]):
        door.enter(make(*parts, **WOVEN), "binary")
    for parts in ([HEARD, SOUND], [SOUND, HEARD]):
        door.enter(make(*parts), "binary")


@of(*OMNI)
def test_a_film_that_says_another_sound_than_it_has_is_refused(door: Door, make: Make) -> None:
    true, false = flag(True), flag(False)
    one, two = make(HEARD, **WOVEN), make(HEARD, OTHER_HEARD, **WOVEN)
    for wire in (
        with_data(make(HEARD), "video", use_audio_in_video=true),
        with_data(make(HEARD, SOUND), "video", use_audio_in_video=true),
        with_data(make(SOUND, HEARD), "video", use_audio_in_video=true),
        without(one, "audio"),
        with_data(one, "video", use_audio_in_video=false),
        with_data(two, "video", use_audio_in_video=false),
    ):
        check_refused(door, wire)


def test_an_item_that_nothing_follows(family: str, door: Door, make: Make) -> None:
    """Qwen3-Omni gives the token behind an item a position along with the item's."""
    for modality, part in (("image", PICTURE), ("video", FILM), ("audio", SOUND)):
        if modality not in FAMILIES[family].modalities:
            continue
        for wire in (
            last_of_all(make(part), modality),
            side_by_side(make(part, part), modality),
        ):
            if family == "qwen3_omni":
                check_refused(door, wire)
            else:
                door.enter(wire, "binary")


@of(*NARRATED)
def test_a_film_of_another_grid_than_the_prompt_spells_is_refused(door: Door, make: Make) -> None:
    wire = make(FILM)
    for grid in ([4, 2, 4], [1, 8, 4]):
        check_refused(door, with_grid(wire, "video", grid))


@of(*NARRATED)
def test_a_film_that_the_prompt_does_not_spell_is_refused(door: Door, make: Make) -> None:
    wire = make(FILM)
    check_refused(door, with_token_ids(wire, [TEXT_ID] * len(wire.token_ids)))


def test_supplied_embeddings_are_held_to_their_grid(loop: asyncio.AbstractEventLoop) -> None:
    opened = loop.run_until_complete(Door.open(checkpoint("qwen2_vl"), "--enable-mm-embeds"))
    with contextlib.closing(opened) as door:
        asked = chat("text", [picture(rows(1))])
        _, wire = loop.run_until_complete(door.render(asked))
        door.enter(wire, "binary")
        for grid in ([1, 2, 4], [1, 4, 8], [2, 4, 4], [1, 2**31, 2**31], [2**31, 0, 0]):
            wrong = with_data(wire, "image", image_grid_thw=np.array(grid))
            check_refused(door, wrong)
