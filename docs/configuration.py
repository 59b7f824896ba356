"""``python -m docs.configuration``: write what the settings declare into the documentation.

The page marks the places: ``<!-- configuration: NAME -->`` up to ``<!-- end -->``.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from generate_service.settings import COMMAND_LINE as GENERATE
from render_service.settings import COMMAND_LINE as RENDER
from shared_protocol.startup.command_line import CommandLine
from shared_protocol.startup.declared_settings import variable
from shared_protocol.startup.vllm_flags import ACCEPTED, REFUSED, Service

PAGE: Final = Path(__file__).parent / "configuration.md"

_BLOCK: Final = re.compile(
    r"(?P<begin><!-- configuration: (?P<name>\S+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL
)


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text()))


def filled(page: str) -> str:
    """Return the page with each marked place written anew."""
    return _BLOCK.sub(
        lambda block: f"{block['begin']}\n{_WRITERS[block['name']]()}\n{block['end']}", page
    )


def _settings_table(command_line: CommandLine[Any]) -> str:
    rows = ["| flag | variable | default | meaning |", "|---|---|---|---|"]
    for setting in command_line.settings:
        default = setting.shown_default
        default = f"`{default}`" if setting.default else default
        name = setting.flag_name
        rows.append(f"| `--{name}` | `{variable(name)}` | {default} | {setting.about} |")
    return _lines(rows)


def _flags_table(flags: Mapping[str, str]) -> str:
    rows = ["| vLLM's group | flags |", "|---|---|"]
    for group in sorted(set(flags.values())):
        names = sorted(name for name, of in flags.items() if of == group)
        rows.append(f"| {group} | {' '.join(f'`--{name}`' for name in names)} |")
    return _lines(rows)


def _refused_table() -> str:
    rows = ["| flags | reason |", "|---|---|"]
    for reason in dict.fromkeys(REFUSED.values()):
        names = [name for name, why in REFUSED.items() if why == reason]
        rows.append(f"| {' '.join(f'`--{name}`' for name in names)} | {reason} |")
    return _lines(rows)


def _lines(rows: list[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


def _only(service: Service) -> dict[str, str]:
    others = ACCEPTED[service.other]
    return {name: group for name, group in ACCEPTED[service].items() if name not in others}


def _both() -> dict[str, str]:
    return {
        name: RENDER.vllm_flags[name] for name in RENDER.vllm_flags if name in GENERATE.vllm_flags
    }


_WRITERS: Final[dict[str, Callable[[], str]]] = {
    "render": lambda: _settings_table(RENDER),
    "generate": lambda: _settings_table(GENERATE),
    "flags-of-both": lambda: _flags_table(_both()),
    "flags-of-render": lambda: _flags_table(_only(Service.RENDER)),
    "flags-of-generate": lambda: _flags_table(_only(Service.GENERATE)),
    "refused": _refused_table,
}


if __name__ == "__main__":
    main()
