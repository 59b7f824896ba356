"""Settings declared as the fields of a frozen dataclass.

A field's name makes its flag and its variable: ``max_body_bytes`` is ``--max-body-bytes`` and
``TANDEM_MAX_BODY_BYTES``. Its metadata say how its text is read and what it is for.
"""

import dataclasses
import ipaddress
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

ENV_PREFIX: Final = "TANDEM_"


class SettingsError(Exception):
    """Why the service does not start, in one line."""


def variable(flag_name: str) -> str:
    """``max-model-len`` -> ``TANDEM_MAX_MODEL_LEN``"""
    return ENV_PREFIX + flag_name.replace("-", "_").upper()


@dataclasses.dataclass(frozen=True)
class Setting:
    """One field of a settings class, as the command line and the documentation see it.

    Attributes:
        read: turns the text of one value into the value, or raises ValueError saying what the
            text is not.
        default: None if it has to be given.
        many: takes one value or more, and is a tuple.
    """

    name: str
    read: Callable[[str], object]
    about: str
    default: object
    many: bool

    @property
    def flag_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def shown_default(self) -> str:
        if self.default is None:
            return "required"
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default)) or "none"
        return "none" if self.default == "" else f"{self.default}"

    @property
    def label(self) -> str:
        return f"--{self.flag_name} ({variable(self.flag_name)})"


def setting(
    read: Callable[[str], object],
    about: str,
    *,
    default: object = None,
    many: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a field; without a default it is required, and a secret one is not shown."""
    return dataclasses.field(
        default=dataclasses.MISSING if default is None else default,
        repr=not secret,
        metadata={"read": read, "about": about, "default": default, "many": many},
    )


def settings_of(settings_class: type) -> list[Setting]:
    return [
        Setting(name=field.name, **field.metadata) for field in dataclasses.fields(settings_class)
    ]


def http_url(text: str) -> str:
    """The URL, possibly with credentials, without a slash at its end: paths are put behind it."""
    try:
        parts = urlsplit(text)
        # Asking for the port checks it.
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.path not in ("", "/") or parts.query or parts.fragment:
        shown = re.sub(r"//[^/]*@", "//***@", text)
        raise ValueError(f"{shown!r} is not a URL like http://HOST:PORT")
    return text.rstrip("/")


def port_number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ValueError(f"{text!r} is not a port between 1 and 65535")
    return int(text)


def positive_int(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{text!r} is not a whole number above 0")
    return int(text)


def whole_number(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def limit(text: str) -> int:
    """A number that 0 stands for no limit in."""
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a whole number, 0 for no limit")
    return int(text)


def positive_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"{text!r} is not a number of seconds above 0")
    return seconds


def address_network(text: str) -> str:
    """A network in CIDR notation, an address, or ``all``."""
    try:
        return text if text == "all" else str(ipaddress.ip_network(text))
    except ValueError:
        raise ValueError(f"{text!r} is not a network like 10.0.0.0/8, or all") from None


def pem_file(text: str) -> str:
    """The path of a file that is there."""
    if not Path(text).is_file():
        raise ValueError(f"{text!r} is not a file")
    return text


def one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return read
