"""Films with their sound between their frames: whether what a film says of it is so."""

from collections.abc import Sequence
from typing import Final

from generate_service.item_rules.reader import ItemReader
from generate_service.item_sample import Sample
from shared_protocol.errors import InvalidRequest
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import Features

FLAG: Final = "use_audio_in_video"
_PARAM: Final = "features.kwargs_data.video"


def overlapping(features: Features) -> bool:
    """Whether the place of any video is, in part, that of a sound."""
    videos, sounds = (_places(features, kind) for kind in ("video", "audio"))
    return any(
        video.offset < sound.end and sound.offset < video.end
        for video in videos
        for sound in sounds
    )


def check_woven_sound(features: Features, sample: Sample) -> None:
    """Check the flags of a request's videos against the places of its sounds.

    The processor weaves all videos of a request or none, each with a sound that has its place. The
    model goes by the flags, and takes the sounds in their order: without one it fails, and with
    another it counts other positions than the prompt has.

    Args:
        sample: of the videos that the model's processor makes.

    Raises:
        InvalidRequest: if a video says that it is woven and is not, or the other way round.
    """
    flags = _flags(features, sample)
    videos, sounds = (
        [(place.offset, place.length) for place in _places(features, kind)]
        for kind in ("video", "audio")
    )
    woven = all(flags) and videos == sounds
    if any(flags) and not woven:
        raise InvalidRequest(
            f"{_PARAM}: {FLAG} is set, so that each video must have it, and a sound in its place",
            param=_PARAM,
        )
    if not any(flags) and overlapping(features):
        raise InvalidRequest(
            f"{_PARAM}: {FLAG} is not set, and a video has a sound in its place", param=_PARAM
        )


def _flags(features: Features, sample: Sample) -> list[bool]:
    """Of the videos that came with one."""
    return [
        bool(ItemReader(item, sample, f"{_PARAM}[{index}]").integer(FLAG))
        for index, item in enumerate((features.kwargs_data or {}).get("video", ()))
        if item is not None and FLAG in item.elements
    ]


def _places(features: Features, modality: str) -> Sequence[PlaceholderRange]:
    return features.mm_placeholders.get(modality, ())
