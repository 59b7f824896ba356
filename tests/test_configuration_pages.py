"""The documentation of the settings against their declarations."""

from pathlib import Path

import pytest

from docs.configuration import PAGES, filled


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_is_what_make_docs_writes(page: Path) -> None:
    text = page.read_text()
    assert "<!-- configuration: render -->" in text
    assert text == filled(text)
