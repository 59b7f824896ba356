"""The log of a service's process."""

import logging
from importlib.metadata import version
from typing import Final

DISTRIBUTION: Final = "tandem-serving"
FORMAT: Final = "%(levelname)s %(asctime)s [%(name)s] %(message)s"


def set_up_log() -> None:
    logging.basicConfig(level=logging.INFO, format=FORMAT)
    # A line for each probe of each replica would drown the rest.
    logging.getLogger("httpx").setLevel(logging.WARNING)


def own_version() -> str:
    return version(DISTRIBUTION)
