"""Sounds: spectra whose frames an encoder's convolutions make fewer."""

from collections.abc import Callable

from generate_service.item_rules.reader import ItemReader, Rule

Shortening = Callable[[int], int]
"""From frames of a spectrum to embeddings."""


def halved(length: int) -> int:
    """After a convolution of stride 2 with padding."""
    return (length + 1) // 2


def halved_twice(length: int) -> int:
    """Gemma 4."""
    return halved(halved(length))


def halved_thrice(length: int) -> int:
    """MOSS-Audio."""
    return halved(halved_twice(length))


def qwen2_5(length: int) -> int:
    """Qwen2.5-Omni: a convolution of stride 2, then pairs of what it made."""
    return (halved(length) - 2) // 2 + 1


def qwen3(length: int) -> int:
    """Qwen3-Omni, Qwen3-ASR: 13 for each 100 frames, and what is left over."""
    return halved_thrice(length % 100) + length // 100 * 13


def measured_spectrum(
    shortening: Shortening, spectrum: str, length: str, *, padded: int = 0
) -> Rule:
    """A spectrum of ``[bands, frames]`` beside the number of its frames.

    Args:
        padded: frames up to which it may be padded, as the longest of a request is no longer.
    """

    def rows(item: ItemReader) -> int:
        item.fixed_size(spectrum, 0)
        frames = item.integer(length)
        given = item.shape(spectrum)[-1]
        item.demand(
            given == frames or frames < given <= padded,
            length,
            f"is {frames}, {spectrum} has {given} frames",
        )
        embeds = shortening(frames)
        item.demand(frames > 0 and embeds > 0, length, "is too short")
        return embeds

    return rows


def masked_frames(rule: Rule, spectrum: str, mask: str) -> Rule:
    """As `rule`, of a spectrum whose frames are true in a mask that may go on, false, behind."""

    def rows(item: ItemReader) -> int:
        embeds = rule(item)
        frames = item.shape(spectrum)[-1]
        heard = item.prefix(mask)
        item.demand(heard == frames, mask, f"has {heard} true entries, it must have {frames}")
        return embeds

    return rows


def counted_spectrum(shortening: Shortening, spectrum: str, count: str) -> Rule:
    """MiMo: frames of ``[frames, bands]`` beside the number of embeddings that they make."""

    def rows(item: ItemReader) -> int:
        embeds = shortening(item.count(spectrum))
        told = item.integer(count)
        item.demand(told == embeds, count, f"is {told}, {spectrum} yields {embeds}")
        return embeds

    return rows


def masked_spectrum(shortening: Shortening, *, most: int) -> Rule:
    """Gemma 4: frames, beside a mask.

    Of a longer sound the engine takes the first `most` of the embeddings that it makes.
    """

    def rows(item: ItemReader) -> int:
        return min(most, shortening(_heard_frames(item)))

    return rows


def padded_sound(embeds: int) -> Rule:
    """Gemma 3n: as many for a sound of any length, which the model cuts or fills up."""

    def rows(item: ItemReader) -> int:
        _heard_frames(item)
        return embeds

    return rows


def _heard_frames(item: ItemReader) -> int:
    """Demand a mask that is true for each frame: vLLM cuts off what its processors have padded."""
    frames = item.count("input_features_padded")
    key = "input_features_mask"
    item.demand(item.shape(key) == (frames,), key, f"must be [{frames}]")
    heard = item.prefix(key)
    item.demand(heard == frames, key, f"has {heard} true entries, it must have {frames}")
    return frames


def waveform(embeds: Shortening) -> Rule:
    """Voxtral: the samples themselves.

    Args:
        embeds: from the number of samples to that of embeddings.
    """

    def rows(item: ItemReader) -> int:
        return embeds(item.count("audio_arrays"))

    return rows


def whole_window(spectrum: str) -> Rule:
    """Whisper: every sound is as long as the window."""

    def rows(item: ItemReader) -> int:
        item.fixed(spectrum)
        return halved(item.shape(spectrum)[-1])

    return rows
