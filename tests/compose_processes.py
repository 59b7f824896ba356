"""What the containers of docker-compose.yml run, so that a test can run it without containers."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from compose_spec import PyOptions

from tests.processes import REPOSITORY

COMPOSE_FILE: Final = REPOSITORY / "docker-compose.yml"

# The one form of interpolation that the file uses.
_VARIABLE: Final = re.compile(r"\$\{(?P<name>\w+):-(?P<default>[^}]*)\}")


@dataclass(frozen=True)
class ContainerProcess:
    """The first process of a container, and the command that says whether it is healthy."""

    command: list[str]
    environment: dict[str, str]
    healthcheck: list[str]


def compose_file() -> dict[str, Any]:
    """Parse and validate the file, and resolve its anchors."""
    compose = PyOptions(apply_merge=True).from_yaml(COMPOSE_FILE.read_text())
    compose.validate()
    content: dict[str, Any] = compose.to_dict()
    return content


def container_process(service: str, environ: Mapping[str, str]) -> ContainerProcess:
    """Resolve what `service` runs; `environ` is the environment of `docker compose`."""
    declared = compose_file()["services"][service]
    kind, *healthcheck = declared["healthcheck"]["test"]
    assert kind == "CMD"
    return ContainerProcess(
        command=_command(declared),
        environment={
            name: _interpolated(value, environ) for name, value in declared["environment"].items()
        },
        healthcheck=healthcheck,
    )


def _command(declared: Mapping[str, Any]) -> list[str]:
    """As compose has it: an entrypoint of its own drops the image's command as well."""
    image = _image_process(declared["build"]["dockerfile"])
    if "entrypoint" in declared:
        return [*declared["entrypoint"], *declared.get("command", [])]
    return [*image.get("ENTRYPOINT", []), *declared.get("command", image.get("CMD", []))]


def _image_process(dockerfile: str) -> dict[str, list[str]]:
    """The last ENTRYPOINT and CMD of a Dockerfile, in their JSON form."""
    text = (REPOSITORY / dockerfile).read_text()
    found = re.findall(r"^(ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE)
    return {instruction: json.loads(words) for instruction, words in found}


def _interpolated(value: str, environ: Mapping[str, str]) -> str:
    text = _VARIABLE.sub(lambda found: environ.get(found["name"]) or found["default"], value)
    assert "$" not in text, f"{value} is interpolated in a way that is not known here"
    return text
