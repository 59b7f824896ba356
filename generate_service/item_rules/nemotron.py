"""Nemotron Nano Omni: pictures of any size, films with words between frames, clips of sound."""

from collections.abc import Callable

from generate_service.item_rules.reader import ItemReader, Rule


def sized_picture(patch: int, downsampling: int) -> Rule:
    """A picture whose sides are multiples of ``patch * downsampling`` pixels."""

    def rows(item: ItemReader) -> int:
        unit = patch * downsampling
        height, width = _sides(item, "pixel_values_flat", unit)
        item.demand(
            item.integers("imgs_sizes") == [height, width],
            "imgs_sizes",
            f"must be [{height}, {width}]",
        )
        embeds = height // unit * (width // unit)
        key = "num_tokens_per_image"
        item.demand(item.integer(key) == embeds, key, f"must be {embeds}")
        return embeds

    return rows


def narrated_film(unit: int, embeds: Callable[[list[int], int, int, int], int]) -> Rule:
    """A film between whose frames the model puts words.

    Args:
        unit: pixels of which the sides of a frame are multiples.
        embeds: from the indices of the frames, the milliseconds that one lasts, and the height and
            width of a frame in pixels, to the number of embeddings of pictures and words.
    """

    def rows(item: ItemReader) -> int:
        pixels = "pixel_values_flat_video"
        frames = item.shape(pixels)[0]
        height, width = _sides(item, pixels, unit)
        key = "video_num_patches"
        item.demand(frames > 0 and item.integer(key) == frames, key, f"must be {frames}")
        indices = item.integers("frames_indices")
        item.demand(len(indices) == frames, "frames_indices", f"must have {frames} entries")
        return embeds(indices, item.integer("frame_duration_ms"), height, width)

    return rows


def _sides(item: ItemReader, pixels: str, unit: int) -> tuple[int, int]:
    """Return height and width of pictures of ``[..., channels, height, width]``."""
    item.fixed_size(pixels, -3)
    height, width = item.shape(pixels)[-2:]
    item.demand(
        height > 0 and width > 0 and height % unit == 0 and width % unit == 0,
        pixels,
        f"must have sides in multiples of {unit}",
    )
    return height, width


def clips(subsampled: Callable[[int], int]) -> Rule:
    """A sound cut into clips, each with a mask of its frames.

    Args:
        subsampled: from frames of a spectrum to embeddings.
    """

    def rows(item: ItemReader) -> int:
        spectra = "input_audio_features"
        count, frames, _ = item.shape(spectra)
        item.demand(count > 0 and item.same_sizes(spectra, -1), spectra, "has other bands")
        item.demand(item.integer("audio_num_clips") == count, "audio_num_clips", f"must be {count}")
        key = "feature_attention_mask"
        mask = item.array(key)
        item.demand(mask.shape == (count, frames), key, f"must be [{count}, {frames}]")
        return sum(subsampled(int(clip.sum())) for clip in mask != 0)

    return rows
