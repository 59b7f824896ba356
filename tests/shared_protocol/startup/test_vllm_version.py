import logging

import pytest

from shared_protocol.startup import vllm_version


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("0.32.0", None),
        ("0.32.0+cpu", None),
        ("0.33.1", "vLLM 0.33.1 is installed"),
        (None, "vLLM is not installed"),
    ],
)
def test_another_version_is_said(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    found: str | None,
    said: str | None,
) -> None:
    monkeypatch.setattr(vllm_version, "installed_version", lambda: found)
    with caplog.at_level(logging.WARNING):
        vllm_version.warn_of_another_version()
    assert (said in caplog.text) if said else not caplog.text


def test_the_pinned_version_is_the_installed_one() -> None:
    assert vllm_version.installed_version() == vllm_version.PINNED
