"""How many embeddings an item yields, and items that no processor would have made."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from generate_service.film_time import FilmTime, check_film_time
from generate_service.item_admission import ItemLimits, MediaLimits, check_media
from generate_service.item_rules import grids, nemotron, positions, sounds, tiles
from generate_service.item_rules.reader import ItemReader, Rule
from generate_service.item_sample import (
    Sample,
    SampleData,
    SampleElement,
    SampleList,
    SampleNumber,
    SampleTensor,
)
from shared_protocol.errors import InvalidRequest
from shared_protocol.items import (
    BatchedField,
    FlatField,
    ItemElement,
    MultiModalItem,
    NestedTensor,
)
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import Features
from shared_protocol.tensors import TensorRef

Elements = dict[str, Any]


def tensor(array: np.ndarray[Any, Any]) -> TensorRef:
    return TensorRef(str(array.dtype), array.shape, np.ascontiguousarray(array).tobytes())


def ones(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.ones(shape, dtype=dtype)


def integers(values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.int64)


def wire(value: Any) -> NestedTensor:
    if isinstance(value, np.ndarray):
        return tensor(value)
    data: NestedTensor = value
    return data


def item_of(elements: Elements) -> MultiModalItem:
    return MultiModalItem(
        {key: ItemElement(wire(value), BatchedField()) for key, value in elements.items()}
    )


def sample_data(value: Any) -> SampleData:
    if isinstance(value, np.ndarray):
        return SampleTensor(str(value.dtype), value.shape)
    if isinstance(value, list):
        return SampleList(sample_data(value[0]))
    return SampleNumber()


def sample_of(elements: Elements) -> Sample:
    return {
        key: SampleElement(sample_data(value), BatchedField()) for key, value in elements.items()
    }


def rows(rule: Rule, elements: Elements, sample: Elements | None = None) -> int:
    reader = ItemReader(item_of(elements), sample_of(sample or elements), "item")
    return rule(reader)


def raster(width: int, height: int, length: int) -> np.ndarray[Any, Any]:
    """Places of a picture, row by row, and padding up to `length`."""
    places = [[x, y] for y in range(height) for x in range(width)]
    return integers(places + [[-1, -1]] * (length - len(places)))


GRID: Elements = {"pixel_values": ones(24, 6), "image_grid_thw": integers([1, 4, 6])}
TILES: Elements = {"pixel_values": ones(3, 3, 8, 8), "num_patches": integers(3)}
MASKED: Elements = TILES | {"pixel_attention_mask": ones(3, 8, 8, dtype="int64")}
NESTED: Elements = {
    "pixel_values": ones(1, 3, 3, 8, 8),
    "pixel_attention_mask": ones(1, 3, 8, 8, dtype="int64"),
    "num_image_patches": integers(3),
}
SHAPED: Elements = {
    "pixel_values": ones(2, 64, 6),
    "num_patches": integers(2),
    "spatial_shapes": integers([[4, 4], [8, 6]]),
}
PHI3: Elements = {"pixel_values": ones(5, 3, 336, 336), "image_sizes": integers([336, 672])}
PLACED: Elements = {
    "pixel_values": ones(36, 5),
    "pixel_position_ids": raster(6, 4, 36),
}
FILM: Elements = {
    "pixel_values_videos": ones(2, 36, 5),
    "pixel_position_ids_videos": np.stack([raster(6, 4, 36)] * 2),
    "video_frame_counts": integers(2),
    "video_num_soft_tokens": [6, 6],
}
SPECTRUM: Elements = {"spectrum": ones(8, 230), "length": integers(230)}
COUNTED: Elements = {"spectrum": ones(230, 8), "count": integers(29)}
HEARD: Elements = {
    "input_features_padded": ones(99, 8),
    "input_features_mask": np.arange(99) < 99,
}
PICTURE: Elements = {
    "pixel_values_flat": ones(3, 64, 96),
    "imgs_sizes": [64, 96],
    "num_tokens_per_image": 6,
}
WORDED: Elements = {
    "pixel_values_flat_video": ones(4, 3, 64, 96),
    "video_num_patches": integers(4),
    "frames_indices": integers([0, 1, 2, 3]),
    "frame_duration_ms": integers(500),
}
CLIPS: Elements = {
    "input_audio_features": ones(2, 50, 8),
    "feature_attention_mask": np.stack([np.arange(50) < 50, np.arange(50) < 20]),
    "audio_num_clips": integers(2),
}
CROPPED: Elements = {
    "pixel_values": ones(3, 8, 8),
    "images_crop": ones(6, 3, 4, 4),
    "images_spatial_crop": integers([2, 3]),
}

GRID_RULE = grids.picture(2)
SPECTRUM_RULE = sounds.measured_spectrum(sounds.qwen3, "spectrum", "length")

PADDED_RULE = sounds.measured_spectrum(sounds.qwen3, "spectrum", "length", padded=400)
PLACED_RULE = positions.placed_patches(2, 100, padded={36, 72})
MASKED_RULE = sounds.masked_frames(SPECTRUM_RULE, "spectrum", "mask")


def worded(indices: list[int], frame_ms: int, height: int, width: int) -> int:
    return len(indices) * (height // 32) * (width // 32) + frame_ms // 100


RULES: Mapping[str, tuple[Rule, Elements, int]] = {
    "grid": (GRID_RULE, GRID, 6),
    "tiles": (tiles.counted_tiles(4), TILES, 12),
    "masked tiles": (tiles.masked_tiles(4), MASKED, 12),
    "nested tiles": (tiles.nested_tiles(4), NESTED, 12),
    "shaped tiles": (tiles.shaped_tiles(2), SHAPED, 16),
    "tiles with newlines": (tiles.newline_tiles, PHI3, 3 * 144 + 1 + 2 * 12),
    "one size": (tiles.one_size(256), {"pixel_values": ones(3, 8, 8)}, 256),
    "frames": (tiles.frames(9, "film", newline=1), {"film": ones(5, 3, 8, 8)}, 46),
    "cropped": (tiles.cropped(16, 4), CROPPED, 16 + 24 + 1),
    "placed patches": (PLACED_RULE, PLACED, 6),
    "placed patches without padding": (
        PLACED_RULE,
        {"pixel_values": ones(24, 5), "pixel_position_ids": raster(6, 4, 24)},
        6,
    ),
    "placed frames": (positions.placed_frames(2, 100), FILM, 12),
    "spectrum": (SPECTRUM_RULE, SPECTRUM, 30),
    "padded spectrum": (PADDED_RULE, SPECTRUM | {"spectrum": ones(8, 400)}, 30),
    "spectrum longer than those that are padded": (
        PADDED_RULE,
        {"spectrum": ones(8, 500), "length": integers(500)},
        65,
    ),
    "masked frames": (MASKED_RULE, SPECTRUM | {"mask": np.arange(300) < 230}, 30),
    "mask of floats": (MASKED_RULE, SPECTRUM | {"mask": ones(230)}, 30),
    "film with words": (nemotron.narrated_film(32, worded), WORDED, 4 * 6 + 5),
    "counted spectrum": (
        sounds.counted_spectrum(sounds.halved_thrice, "spectrum", "count"),
        COUNTED,
        29,
    ),
    "masked spectrum": (sounds.masked_spectrum(sounds.halved_twice, most=750), HEARD, 25),
    "more than is listened to": (sounds.masked_spectrum(sounds.halved_twice, most=20), HEARD, 20),
    "padded sound": (sounds.padded_sound(188), HEARD, 188),
    "waveform": (sounds.waveform(lambda samples: samples // 160), {"audio_arrays": ones(1600)}, 10),
    "whole window": (sounds.whole_window("film"), {"film": ones(8, 400)}, 200),
    "picture": (nemotron.sized_picture(16, 2), PICTURE, 6),
    "clips": (nemotron.clips(sounds.halved_thrice), CLIPS, 7 + 3),
}


@pytest.mark.parametrize("name", RULES)
def test_counts_what_the_encoder_makes(name: str) -> None:
    rule, elements, expected = RULES[name]
    assert rows(rule, elements) == expected


def with_value(elements: Elements, key: str, index: Any, value: Any) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = elements[key].copy()
    array[index] = value
    return array


WRONG: Mapping[str, tuple[str, Elements]] = {
    "patches that the grid has not": ("grid", {"pixel_values": ones(20, 6)}),
    "patches of another width": ("grid", {"pixel_values": ones(24, 5)}),
    "negative grid": ("grid", {"image_grid_thw": integers([1, -4, -6])}),
    "grid that cannot be merged": ("grid", {"image_grid_thw": integers([1, 3, 8])}),
    "grid of two sizes": ("grid", {"image_grid_thw": integers([4, 6])}),
    "picture of two frames": ("grid", {"image_grid_thw": integers([2, 2, 6])}),
    "side longer than the encoder's table": (
        "grid",
        {"image_grid_thw": integers([1, 2, 8194]), "pixel_values": ones(2 * 8194, 6)},
    ),
    "grid of fractions": ("grid", {"image_grid_thw": ones(3)}),
    "other number of tiles": ("tiles", {"num_patches": integers(2)}),
    "no tiles": ("tiles", {"pixel_values": ones(0, 3, 8, 8), "num_patches": integers(0)}),
    "tiles of another size": ("tiles", {"pixel_values": ones(3, 3, 8, 9)}),
    "tile of zeros": ("masked tiles", {"pixel_values": with_value(TILES, "pixel_values", 1, 0)}),
    "mask of zeros": (
        "masked tiles",
        {"pixel_attention_mask": with_value(MASKED, "pixel_attention_mask", 1, 0)},
    ),
    "mask with a hole": (
        "masked tiles",
        {"pixel_attention_mask": with_value(MASKED, "pixel_attention_mask", (1, 3, 3), 0)},
    ),
    "mask of another size": (
        "masked tiles",
        {"pixel_attention_mask": ones(3, 8, 7, dtype="int64")},
    ),
    "tile of zeros among nested ones": (
        "nested tiles",
        {"pixel_values": with_value(NESTED, "pixel_values", (0, 2), 0)},
    ),
    "nested tiles of two pictures": ("nested tiles", {"pixel_values": ones(2, 3, 3, 8, 8)}),
    "more patches than are there": (
        "shaped tiles",
        {"spatial_shapes": integers([[4, 4], [10, 8]])},
    ),
    "side of zero": ("shaped tiles", {"spatial_shapes": integers([[4, 4], [0, 8]])}),
    "odd side": ("shaped tiles", {"spatial_shapes": integers([[4, 4], [3, 8]])}),
    "more tiles than are there": ("tiles with newlines", {"image_sizes": integers([672, 1008])}),
    "size that is no tile": ("tiles with newlines", {"image_sizes": integers([336, 500])}),
    "picture of another size": ("one size", {"pixel_values": ones(3, 8, 16)}),
    "no frames": ("frames", {"film": ones(0, 3, 8, 8)}),
    "other number of crops": ("cropped", {"images_spatial_crop": integers([2, 2])}),
    "crops of zeros": ("cropped", {"images_crop": 0 * ones(6, 3, 4, 4)}),
    "crops that add up to zero": (
        "cropped",
        {"images_crop": with_value(CROPPED, "images_crop", slice(3), -1)},
    ),
    "crops of numbers too small to add": ("cropped", {"images_crop": 1e-40 * ones(6, 3, 4, 4)}),
    "crops of what is no number": ("cropped", {"images_crop": np.inf * ones(6, 3, 4, 4)}),
    "place named twice": (
        "placed patches",
        {"pixel_position_ids": with_value(PLACED, "pixel_position_ids", 3, [2, 0])},
    ),
    "place far away": (
        "placed patches",
        {"pixel_position_ids": with_value(PLACED, "pixel_position_ids", 3, [10**9, 0])},
    ),
    "padding in between": (
        "placed patches",
        {"pixel_position_ids": with_value(PLACED, "pixel_position_ids", 3, [-1, -1])},
    ),
    "nothing but padding": ("placed patches", {"pixel_position_ids": -ones(36, 2, dtype="int64")}),
    "other count of a frame": ("placed frames", {"video_num_soft_tokens": [6, 5]}),
    "other number of frames": ("placed frames", {"video_frame_counts": integers(3)}),
    "length of another spectrum": ("spectrum", {"length": integers(229)}),
    "length of nothing": ("spectrum", {"spectrum": ones(8, 0), "length": integers(0)}),
    "count of another spectrum": ("counted spectrum", {"spectrum": ones(240, 8)}),
    "count that is not the spectrum's": ("counted spectrum", {"count": integers(28)}),
    "spectrum of other bands": ("counted spectrum", {"spectrum": ones(230, 7)}),
    "mask that begins again": (
        "masked spectrum",
        {"input_features_mask": with_value(HEARD, "input_features_mask", 5, False)},
    ),
    "mask of silence": ("masked spectrum", {"input_features_mask": np.arange(99) < 0}),
    "mask of another length": ("padded sound", {"input_features_mask": np.arange(98) < 97}),
    "samples in two rows": ("waveform", {"audio_arrays": ones(0)}),
    "other size of a picture": ("picture", {"imgs_sizes": [64, 64]}),
    "other count of a picture": ("picture", {"num_tokens_per_image": 7}),
    "odd size of a picture": (
        "picture",
        {"pixel_values_flat": ones(3, 48, 96), "imgs_sizes": [48, 96]},
    ),
    "picture of other channels": ("picture", {"pixel_values_flat": ones(4, 64, 96)}),
    "frames of other channels": (
        "film with words",
        {"pixel_values_flat_video": ones(4, 2, 64, 96)},
    ),
    "odd size of frames": ("film with words", {"pixel_values_flat_video": ones(4, 3, 65, 96)}),
    "patches of a film of another width": (
        "placed frames",
        {"pixel_values_videos": ones(2, 36, 6)},
    ),
    "patches of tiles of another width": ("shaped tiles", {"pixel_values": ones(2, 64, 7)}),
    "other number of shaped tiles": ("shaped tiles", {"pixel_values": ones(3, 64, 6)}),
    "tiles that are padded to too much": ("shaped tiles", {"pixel_values": ones(2, 1025, 6)}),
    "tiles that are too small": (
        "shaped tiles",
        {"pixel_values": ones(2, 15, 6), "spatial_shapes": integers([[2, 2], [4, 2]])},
    ),
    "picture that is padded to too much": (
        "placed patches",
        {"pixel_values": ones(108, 5), "pixel_position_ids": raster(6, 4, 108)},
    ),
    "frames that are padded to too much": (
        "placed frames",
        {
            "pixel_values_videos": ones(2, 72, 5),
            "pixel_position_ids_videos": np.stack([raster(6, 4, 72)] * 2),
        },
    ),
    "spectrum that is padded to too much": ("padded spectrum", {"spectrum": ones(8, 401)}),
    "sound that is padded": ("masked spectrum", {"input_features_mask": np.arange(99) < 98}),
    "sound of as many embeddings that is padded": (
        "padded sound",
        {"input_features_mask": np.arange(99) < 98},
    ),
    "crops of another size": ("cropped", {"images_crop": ones(6, 3, 4, 5)}),
    "bands of another processor": ("spectrum", {"spectrum": ones(9, 230)}),
    "mask that counts frames twice": ("masked frames", {"mask": 2 * (np.arange(300) < 230)}),
    "mask of what is not true": ("mask of floats", {"mask": 0.5 * ones(230)}),
    "mask of bytes that are no truth values": (
        "masked spectrum",
        {"input_features_mask": np.full(99, 2, dtype=np.uint8).view(np.bool_)},
    ),
    "mask of more frames": ("masked frames", {"mask": np.arange(300) < 231}),
    "mask of fewer frames": ("mask of floats", {"mask": ones(229)}),
    "other number of clips": ("clips", {"audio_num_clips": integers(3)}),
}


@pytest.mark.parametrize("patches", [16, 48, 65, 256, 1024])
def test_tiles_of_patches_of_other_lengths(patches: int) -> None:
    shapes = {"pixel_values": ones(2, patches, 6), "spatial_shapes": integers([[4, 4], [2, 4]])}
    assert rows(tiles.shaped_tiles(2), SHAPED | shapes, sample=SHAPED) == 6


@pytest.mark.parametrize("name", WRONG)
def test_what_no_processor_makes_is_refused(name: str) -> None:
    rule_name, changes = WRONG[name]
    rule, elements, _ = RULES[rule_name]
    with pytest.raises(InvalidRequest) as caught:
        rows(rule, elements | changes, sample=elements)
    assert caught.value.param is not None
    assert caught.value.param.startswith("item.")


HALF_BLACK = torch.ones(2, 3, 64, 64)
HALF_BLACK[0] = -1.0


def with_pixel(place: int, value: float) -> torch.Tensor:
    crops = HALF_BLACK.clone()
    crops.view(-1)[place] = value
    return crops


def crop_rows(crops: torch.Tensor) -> int:
    """Of two crops beside each other."""
    name = str(crops.dtype).removeprefix("torch.")
    data = TensorRef(name, tuple(crops.shape), crops.view(torch.uint8).numpy().tobytes())
    elements = CROPPED | {"images_crop": data, "images_spatial_crop": integers([2, 1])}
    sample = sample_of(CROPPED | {"images_crop": ones(0, 3, 64, 64)})
    return tiles.cropped(16, 4)(ItemReader(item_of(elements), sample, "item"))


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "crops",
    [
        HALF_BLACK,
        HALF_BLACK.flatten(2).transpose(0, 2).reshape(2, 3, 64, 64),
        HALF_BLACK * (103 / 255),
        # Not of 0, but torch loses what is more.
        with_pixel(0, -1.0 + 1e-5),
    ],
)
def test_crops_that_vllm_takes_for_none(crops: torch.Tensor, dtype: torch.dtype) -> None:
    assert torch.sum(crops.to(dtype)).item() == 0
    with pytest.raises(InvalidRequest, match="add up to 0"):
        crop_rows(crops.to(dtype))


def test_crops_that_another_device_may_take_for_none() -> None:
    # It depends on the place of the pixel whether torch, on this one, loses what is more than 0.
    crops = with_pixel(5000, -1.0 + 1e-5)
    assert torch.sum(crops).item() != 0
    with pytest.raises(InvalidRequest, match="add up to 0"):
        crop_rows(crops)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "crops",
    [
        with_pixel(0, 1.0),
        torch.cat([torch.zeros(1, 3, 64, 64), torch.full((1, 3, 64, 64), -1 / 255)]),
    ],
)
def test_crops_that_vllm_encodes(crops: torch.Tensor, dtype: torch.dtype) -> None:
    assert torch.sum(crops.to(dtype)).item() != 0
    assert crop_rows(crops.to(dtype)) == 16 + 2 * 4 + 1


def features(item: MultiModalItem, place: PlaceholderRange, *, items: int = 1) -> Features:
    return Features(
        mm_hashes={"image": [f"hash-{index}" for index in range(items)]},
        mm_placeholders={"image": [place] * items},
        kwargs_data={"image": [item] * items},
    )


def limits(**changes: Any) -> MediaLimits:
    image = ItemLimits(most=2, sample=sample_of(GRID), rule=GRID_RULE)
    return MediaLimits(**{"items": {"image": image}} | changes)


def refusal(given: Features, known: MediaLimits) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check_media(given, known, hidden_size=16)
    return caught.value


PLACE = PlaceholderRange(offset=0, length=6)


def test_an_item_like_the_processors_is_admitted() -> None:
    check_media(features(item_of(GRID), PLACE), limits(), hidden_size=16)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"image_grid_thw": None}, ".image_grid_thw"),
        ({"pixel_values": ones(24, 6, dtype="float64")}, ".pixel_values"),
        ({"pixel_values": ones(1, 24, 6)}, ".pixel_values"),
        ({"pixel_values": 3}, ".pixel_values"),
        ({"pixel_values": [tensor(ones(24, 6))]}, ".pixel_values"),
        ({"another": ones(1)}, ""),
    ],
)
def test_an_item_made_otherwise_is_refused(changes: Elements, where: str) -> None:
    error = refusal(features(item_of(GRID | changes), PLACE), limits())
    assert error.param == f"features.kwargs_data.image[0]{where}"


def test_an_item_without_an_element_is_refused() -> None:
    item = item_of({"pixel_values": GRID["pixel_values"]})
    error = refusal(features(item, PLACE), limits())
    assert error.param == "features.kwargs_data.image[0]"
    assert "image_grid_thw, pixel_values" in error.message


@pytest.mark.parametrize("supplied", [{}, {"image_embeds": None}])
def test_an_item_without_its_data_is_for_an_engine_with_a_connector(supplied: Elements) -> None:
    item = item_of({"image_grid_thw": GRID["image_grid_thw"], **supplied})
    check_media(features(item, PLACE), limits(takes_remote=True), hidden_size=16)
    assert limits(takes_remote=True).is_remote("image", item)
    assert not limits().is_remote("image", item)
    assert not limits(takes_remote=True).is_remote("image", item_of(GRID))
    known = limits(takes_embeds=True)
    assert "features.kwargs_data.image[0]" in str(refusal(features(item, PLACE), known).param)
    wrong = item_of({"image_grid_thw": ones(3), **supplied})
    error = refusal(features(wrong, PLACE), limits(takes_remote=True))
    assert error.param == "features.kwargs_data.image[0].image_grid_thw"


def test_another_field_is_refused() -> None:
    item = item_of(GRID)
    item.elements["pixel_values"] = ItemElement(
        tensor(GRID["pixel_values"]), FlatField(slices=[[0, 24, None]], dim=99)
    )
    error = refusal(features(item, PLACE), limits())
    assert error.param == "features.kwargs_data.image[0].pixel_values.field"
    assert "flat along dimension 99, it must be batched" in error.message


@pytest.mark.parametrize(
    "place",
    [
        PlaceholderRange(offset=0, length=5),
        PlaceholderRange(offset=0, length=6, is_embed=[True] * 5 + [False]),
        PlaceholderRange(offset=0, length=8, is_embed=[True] * 7 + [False]),
    ],
)
def test_a_mask_of_another_count_is_refused(place: PlaceholderRange) -> None:
    error = refusal(features(item_of(GRID), place), limits())
    assert error.message == (
        "features.kwargs_data.image[0] yields 6 embeddings, its placeholder has "
        f"{place.num_embeds} positions for them"
    )


def test_too_many_items_are_refused() -> None:
    error = refusal(features(item_of(GRID), PLACE, items=3), limits())
    assert error.message == "features.mm_hashes.image: 3 items, at most 2 are allowed"


def test_media_beside_supplied_embeddings_are_refused_where_the_engine_would_die() -> None:
    given = Features(
        mm_hashes={"image": ["a"], "prompt_embeds": ["b"]},
        mm_placeholders={"image": [PLACE], "prompt_embeds": [PlaceholderRange(9, 2)]},
        kwargs_data={"image": [item_of(GRID)]},
    )
    check_media(given, limits(), hidden_size=16)
    error = refusal(given, limits(embeds_beside_items=False))
    assert error.param == "features.mm_hashes.prompt_embeds"


@pytest.mark.parametrize(("sound_at", "refused"), [(0, True), (5, True), (6, False), (20, False)])
def test_a_video_with_its_sound_beside_supplied_embeddings(sound_at: int, refused: bool) -> None:
    bare = ItemLimits(most=2, sample=None, rule=None)
    known = limits(items={"video": bare, "audio": bare}, embeds_beside_interleaved=False)
    given = Features(
        mm_hashes={"video": ["a"], "audio": ["b"], "prompt_embeds": ["c"]},
        mm_placeholders={
            "video": [PLACE],
            "audio": [PlaceholderRange(sound_at, 3)],
            "prompt_embeds": [PlaceholderRange(30, 2)],
        },
        kwargs_data={},
    )
    if refused:
        assert "video with its sound" in refusal(given, known).message
    else:
        check_media(given, known, hidden_size=16)


FILM_TIME = FilmTime(positions_per_second=25.0, most_positions=1000)


def timed_film(step: Any) -> Elements:
    return {
        "pixel_values_videos": ones(16, 6),
        "video_grid_thw": integers([4, 2, 2]),
        "second_per_grid_ts": step,
    }


def check_films(*steps: Any) -> None:
    sample = sample_of(timed_film(np.float32(1.0).reshape(())))
    films: list[MultiModalItem | None] = [item_of(timed_film(step)) for step in steps]
    check_film_time(films, sample, FILM_TIME, param="films")


def scalar(seconds: float) -> np.ndarray[Any, Any]:
    return np.full((), seconds, dtype=np.float32)


def test_films_that_last_as_long_as_the_model_knows() -> None:
    # From the first of four steps to the last it is three.
    check_films(scalar(6.6), scalar(6.6))
    check_films(scalar(0.0), 13)


@pytest.mark.parametrize(
    "steps",
    [
        (scalar(13.4),),
        (scalar(6.6), scalar(6.8)),
        (scalar(-1.0),),
        (scalar(float("nan")),),
        (scalar(float("inf")),),
        # Finite, and infinite once it is made positions.
        (np.full((), 1e308),),
        (ones(2),),
    ],
)
def test_films_that_last_longer_are_refused(steps: tuple[Any, ...]) -> None:
    """Their positions lie outside of the engine's table, which ended it for everybody."""
    with pytest.raises(InvalidRequest):
        check_films(*steps)


def test_a_number_of_half_the_precision() -> None:
    upper_half = np.array([2.5], dtype="<f4").tobytes()[2:]
    item = MultiModalItem(
        {"step": ItemElement(TensorRef("bfloat16", (1,), upper_half), BatchedField())}
    )
    assert ItemReader(item, {}, "item").number("step") == 2.5
