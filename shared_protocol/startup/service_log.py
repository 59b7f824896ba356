"""The log of a service's process."""

import logging
from importlib.metadata import version
from typing import Final

DISTRIBUTION: Final = "tandem-serving"
PACKAGES: Final = ("generate_service", "render_service", "shared_protocol")
FORMAT: Final = "%(levelname)s %(asctime)s [%(name)s] %(message)s"


def set_up_log() -> None:
    logging.basicConfig(level=logging.INFO, format=FORMAT)
    # A package that vLLM imports raises the levels of the root logger and of its handlers to ERROR.
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT))
    for package in PACKAGES:
        logger = logging.getLogger(package)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        logger.propagate = False
    # A line for each probe of each replica would drown the rest.
    logging.getLogger("httpx").setLevel(logging.WARNING)


def set_level(level: str) -> None:
    """Give the services' own lines the level that ``--log-level`` gives those of vLLM."""
    for package in PACKAGES:
        logging.getLogger(package).setLevel(level)


def own_version() -> str:
    return version(DISTRIBUTION)
