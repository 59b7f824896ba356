"""Images that come again are not decoded again."""

import base64
import io
from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import pytest
from PIL import Image
from vllm.exceptions import VLLMValidationError
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.media import ImageMediaIO

from render_service.media_rules import media_rules
from render_service.settings import RenderSettings
from render_service.vllm_decoded_images import DecodedImages
from render_service.vllm_media_connector import GuardedConnector
from render_service.vllm_media_fetch import MediaSessions

RULES = media_rules(RenderSettings(generate_url=("http://generate:1",)))


def picture(color: tuple[int, ...], *, side: int = 8) -> bytes:
    file = io.BytesIO()
    mode = "RGB" if len(color) == 3 else "RGBA"
    Image.new(mode, (side, side), color).save(file, format="PNG")
    return file.getvalue()


@pytest.fixture
def decoded() -> Iterator[mock.Mock]:
    with mock.patch.object(
        ImageMediaIO, "load_bytes", autospec=True, side_effect=ImageMediaIO.load_bytes
    ) as load:
        yield load


def test_each_is_decoded_once(decoded: mock.Mock) -> None:
    images, reader = DecodedImages(2**20), ImageMediaIO()
    red, blue = picture((255, 0, 0)), picture((0, 0, 255))
    for _ in range(3):
        for data, color in ((red, (255, 0, 0)), (blue, (0, 0, 255))):
            loaded = images.load(reader, data)
            assert loaded.media.getpixel((0, 0)) == color
            assert loaded.original_bytes == data
    assert decoded.call_count == 2


def test_nobody_writes_on_what_is_kept() -> None:
    images, reader, data = DecodedImages(2**20), ImageMediaIO(), picture((255, 0, 0))
    for _ in range(3):
        media = images.load(reader, data).media
        assert media.getpixel((0, 0)) == (255, 0, 0)
        media.putpixel((0, 0), (1, 2, 3))


def test_how_it_is_to_be_read_matters() -> None:
    images, data = DecodedImages(2**20), picture((0, 0, 0, 0))
    for _ in range(2):
        for background in ((255, 255, 255), (1, 2, 3)):
            reader = ImageMediaIO(rgba_background_color=background)
            assert images.load(reader, data).media.getpixel((0, 0)) == background
        assert images.load(ImageMediaIO(image_mode=None), data).media.mode == "RGBA"


@pytest.mark.parametrize("color", [(9, 9, 9), (9, 9, 9, 128)])
def test_it_has_the_hash_that_it_had(color: tuple[int, ...]) -> None:
    images, reader, data = DecodedImages(2**20), ImageMediaIO(), picture(color)
    hashes = {
        MultiModalHasher.hash_kwargs("blake3", image=images.load(reader, data)) for _ in range(3)
    }
    own = MultiModalHasher.hash_kwargs("blake3", image=ImageMediaIO().load_bytes(data))
    assert hashes == {own}


def test_the_oldest_goes(decoded: mock.Mock) -> None:
    one = 8 * 8 * 4
    images, reader = DecodedImages(2 * one), ImageMediaIO()
    first, second, third = (picture((number, 0, 0)) for number in range(3))
    for data in (first, second, third, third, second):
        images.load(reader, data)
    assert decoded.call_count == 3
    images.load(reader, first)
    assert decoded.call_count == 4


@pytest.mark.parametrize("most_bytes", [0, 8 * 8 * 4 - 1])
def test_nothing_is_kept_beyond_the_limit(decoded: mock.Mock, most_bytes: int) -> None:
    images, reader, data = DecodedImages(most_bytes), ImageMediaIO(), picture((1, 1, 1))
    for _ in range(2):
        images.load(reader, data)
    assert decoded.call_count == 2


def test_requests_share_them_and_each_is_checked(decoded: mock.Mock) -> None:
    images, data = DecodedImages(2**20), picture((5, 6, 7), side=16)
    url = "data:image/png;base64," + base64.b64encode(data).decode()

    def fetch(max_image_pixels: int = 10**6) -> Image.Image:
        rules = replace(RULES, max_image_pixels=max_image_pixels)
        connector = GuardedConnector(
            rules=rules, sessions=MediaSessions(rules.addresses), images=images
        )
        loaded: Image.Image = connector.fetch_image(url)
        return loaded

    for _ in range(2):
        assert fetch().size == (16, 16)
    assert decoded.call_count == 1
    with pytest.raises(VLLMValidationError, match="more than the 100"):
        fetch(max_image_pixels=100)
