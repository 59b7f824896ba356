"""Whether items are such as the served model's own processor makes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from generate_service.film_time import FilmTime, check_film_time
from generate_service.item_rules.reader import ItemReader, Rule
from generate_service.item_sample import Sample, check_like_sample, filled_keys
from generate_service.woven_sound import FLAG, check_woven_sound, overlapping
from shared_protocol.errors import InvalidRequest
from shared_protocol.items import FlatField, ItemElement, MultiModalItem, supplied_key
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import Features
from shared_protocol.tensors import TensorRef

PROMPT_EMBEDS_MODALITY: Final = "prompt_embeds"

_EMBEDDING_DTYPES: Final = frozenset({"float16", "bfloat16", "float32", "float64"})


@dataclass(frozen=True)
class ItemLimits:
    """What the items of one modality are measured by.

    Attributes:
        most: how many may be in one request; None for any number.
        sample: one that the processor made; None if it makes none by itself.
        rule: finds how many embeddings an item yields; None where none is known for the model.
    """

    most: int | None
    sample: Sample | None
    rule: Rule | None


@dataclass(frozen=True)
class MediaLimits:
    """
    Attributes:
        items: by modality, without `prompt_embeds`.
        takes_embeds: whether media may come as embeddings that a client has made.
        prunes_videos: whether the model keeps but a part of a video's embeddings.
        embeds_beside_items: whether one prompt may have both media and supplied embeddings.
        embeds_beside_interleaved: whether that goes for a video with its sound between its frames.
        film_time: what a request's films may last; None for a model without such a limit.
        takes_remote: whether the engine has a connector that brings what an item is about, so that
            the item may come without it.
    """

    items: Mapping[str, ItemLimits] = field(default_factory=dict)
    takes_embeds: bool = False
    prunes_videos: bool = False
    embeds_beside_items: bool = True
    embeds_beside_interleaved: bool = True
    film_time: FilmTime | None = None
    takes_remote: bool = False

    def is_remote(self, modality: str, item: MultiModalItem) -> bool:
        """Whether a connector is to bring what `item` is about, of which it tells only the size."""
        known = self.items.get(modality)
        if not self.takes_remote or known is None or known.sample is None:
            return False
        supplied = item.elements.get(supplied_key(modality))
        if supplied is not None:
            return supplied.data is None
        return not item.elements.keys() & filled_keys(known.sample)


def check_media(features: Features, limits: MediaLimits, *, hidden_size: int) -> None:
    """Check all items but those of supplied prompt embeddings.

    Raises:
        InvalidRequest: with ``param`` naming what the model's processor would not have made.
    """
    modalities = [kind for kind in features.mm_hashes if kind != PROMPT_EMBEDS_MODALITY]
    for modality in modalities:
        known = limits.items.get(modality)
        param = f"features.mm_hashes.{modality}"
        if known is None:
            raise InvalidRequest(
                f"features: the model takes no {modality}, it takes "
                f"{', '.join(sorted(limits.items)) or 'text only'}",
                param=param,
            )
        count = len(features.mm_hashes[modality])
        if known.most is not None and count > known.most:
            raise InvalidRequest(
                f"{param}: {count} items, at most {known.most} are allowed", param=param
            )
    if modalities and PROMPT_EMBEDS_MODALITY in features.mm_hashes:
        _check_beside_embeds(features, limits, modalities[0])
    for modality in modalities:
        items = (features.kwargs_data or {}).get(modality, [])
        places = features.mm_placeholders[modality]
        for index, (item, place) in enumerate(zip(items, places, strict=False)):
            if item is not None:
                param = f"features.kwargs_data.{modality}[{index}]"
                supplied = item.elements.get(key := supplied_key(modality))
                sample = limits.items[modality].sample
                if sample is not None and limits.is_remote(modality, item):
                    _check_remote(item, sample, param)
                elif supplied is None:
                    _check_item(item, limits.items[modality], place, param)
                else:
                    _check_supplied(
                        supplied, modality, place, limits, hidden_size, f"{param}.{key}"
                    )
    if "video" in modalities:
        _check_films(features, limits)


def _check_films(features: Features, limits: MediaLimits) -> None:
    """What the films of a request have to keep to together."""
    sample = limits.items["video"].sample
    if sample is None:
        return
    if FLAG in sample:
        check_woven_sound(features, sample)
    if limits.film_time is not None:
        films = (features.kwargs_data or {}).get("video", [])
        check_film_time(films, sample, limits.film_time, param="features.kwargs_data.video")


def _check_beside_embeds(features: Features, limits: MediaLimits, modality: str) -> None:
    if not limits.embeds_beside_items:
        kind = modality
    elif not limits.embeds_beside_interleaved and overlapping(features):
        kind = "video with its sound"
    else:
        return
    raise InvalidRequest(
        f"This model's encoder makes more than embeddings of its {kind}, so that one prompt cannot "
        "have it and supplied embeddings",
        param=f"features.mm_hashes.{PROMPT_EMBEDS_MODALITY}",
    )


def _check_item(
    item: MultiModalItem, limits: ItemLimits, place: PlaceholderRange, param: str
) -> None:
    if limits.sample is None:
        return
    check_like_sample(item, limits.sample, param=param)
    if limits.rule is not None:
        _check_rows(_rows(ItemReader(item, limits.sample, param), limits.rule), place, param)


def _check_remote(item: MultiModalItem, sample: Sample, param: str) -> None:
    """What there is has to be as the processor makes it; its rows cannot be counted."""
    told = item.elements.keys() & sample.keys()
    check_like_sample(
        MultiModalItem({key: item.elements[key] for key in told}),
        {key: sample[key] for key in told},
        param=param,
    )


def _rows(item: ItemReader, rule: Rule) -> int:
    try:
        return rule(item)
    except (ArithmeticError, ValueError) as error:
        # Rules that ask vLLM's own functions about sizes that no picture has.
        raise InvalidRequest(f"{item.param}: {error}", param=item.param) from error


def _check_rows(rows: int, place: PlaceholderRange, param: str) -> None:
    if rows != place.num_embeds:
        raise InvalidRequest(
            f"{param} yields {rows} embeddings, its placeholder has {place.num_embeds} positions "
            "for them",
            param=param,
        )


def _check_supplied(
    element: ItemElement,
    modality: str,
    place: PlaceholderRange,
    limits: MediaLimits,
    hidden_size: int,
    param: str,
) -> None:
    """Check an item that came as embeddings, which the model takes as they are."""
    if not limits.takes_embeds:
        raise InvalidRequest(
            "Media as embeddings are not taken: --enable-mm-embeds is not set, or the model's "
            "code cannot take them",
            param=param,
        )
    tensor = element.data
    # Some models want what several layers of their encoder say, side by side.
    if (
        not isinstance(tensor, TensorRef)
        or len(tensor.shape) != 2
        or not tensor.shape[1]
        or tensor.shape[1] % hidden_size
        or tensor.dtype not in _EMBEDDING_DTYPES
    ):
        raise InvalidRequest(
            f"{param} must be a tensor of floats of shape (length, {hidden_size})", param=param
        )
    if isinstance(element.field, FlatField) and element.field.dim != 0:
        raise InvalidRequest(f"{param}.field must be flat along 0", param=f"{param}.field")
    if not (modality == "video" and limits.prunes_videos):
        _check_rows(tensor.shape[0], place, param)
