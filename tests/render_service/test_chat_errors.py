"""What goes wrong while a chat is rendered, and is the client's mistake."""

import asyncio
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from vllm.exceptions import VLLMValidationError

from render_service.vllm_chat_route import name_messages_in_errors


@pytest.mark.parametrize(
    "raised",
    [ValueError("no base64"), VLLMValidationError("no picture")],
)
def test_a_part_that_cannot_be_read_names_the_messages(raised: Exception) -> None:
    async def render_chat(request: Any) -> NoReturn:
        raise raised

    renderer: Any = SimpleNamespace(render_chat=render_chat)
    name_messages_in_errors(renderer)
    with pytest.raises(VLLMValidationError) as caught:
        asyncio.run(renderer.render_chat({}))
    assert caught.value.parameter == "messages"
    # The message is vLLM's own, which does not name the field here.
    assert str(caught.value) == str(raised)
