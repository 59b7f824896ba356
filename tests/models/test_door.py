"""Every family's masks, items and hashes come through the wire as vLLM's processor made them."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.checkpoints import checkpoint
from tests.models.counts import door_counts
from tests.models.door import ENCODINGS, Door, differences, placeholder
from tests.models.families import COMMON_FLAGS, FAMILIES, media_chats

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


def test_media_come_through_as_they_were_made(
    family: str, door: Door, loop: asyncio.AbstractEventLoop
) -> None:
    model = FAMILIES[family]
    for modality in model.modalities:
        for name, chat in media_chats(modality, model.most_items).items():
            prompt, wire = loop.run_until_complete(door.render(chat))
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


def check_woven(prompt: Any) -> None:
    """The sound of a video lies inside the video: one range, complementary masks."""
    videos, audios = (map(placeholder, prompt["mm_placeholders"][of]) for of in ("video", "audio"))
    for video, audio in zip(videos, audios, strict=True):
        assert video[:2] == audio[:2]
        assert video[2] is not None
        assert audio[2] is not None
        assert not any(both for both in map(all, zip(video[2], audio[2], strict=True)))
