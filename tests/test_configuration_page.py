"""The documentation of the settings against their declarations."""

from docs.configuration import PAGE, filled


def test_the_page_is_what_make_docs_writes() -> None:
    text = PAGE.read_text()
    assert "<!-- configuration: render -->" in text
    assert text == filled(text)
