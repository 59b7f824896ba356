"""What media may be, and where they may come from: the settings that bound them, in one value."""

from dataclasses import dataclass

from render_service.media_addresses import AddressRule, address_rule
from render_service.settings import RenderSettings


@dataclass(frozen=True)
class MediaRules:
    """
    Attributes:
        max_bytes: of an item as it is sent or fetched, after a response's content encoding.
        fetch_timeout_s: of everything that getting one item takes, further attempts included.
        image_formats: as Pillow calls them.
        max_video_frames: of the file, whether they are looked at or not.
        max_video_decoded_bytes: of the frames that are looked at.
    """

    addresses: AddressRule
    max_redirects: int
    fetch_timeout_s: float
    max_bytes: int
    image_formats: frozenset[str]
    max_image_pixels: int
    max_audio_s: int
    max_video_frames: int
    max_video_decoded_bytes: int


def media_rules(settings: RenderSettings) -> MediaRules:
    return MediaRules(
        addresses=address_rule(settings.allow_private_media_addresses),
        max_redirects=settings.max_media_redirects,
        fetch_timeout_s=settings.media_fetch_timeout_s,
        max_bytes=settings.max_media_bytes,
        image_formats=frozenset(settings.image_formats),
        max_image_pixels=settings.max_image_pixels,
        max_audio_s=settings.max_audio_s,
        max_video_frames=settings.max_video_frames,
        max_video_decoded_bytes=settings.max_video_decoded_bytes,
    )
