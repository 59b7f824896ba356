"""The documentation of the API against its declarations."""

from docs.api import PAGE, page


def test_the_page_is_what_make_docs_writes() -> None:
    assert PAGE.read_text() == page()
