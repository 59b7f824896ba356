"""What a token of a command line, or a variable that stands for one, says about a flag."""

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from shared_protocol.startup.vllm_flags import ACCEPTED, ALIASES

# argparse takes a token with a space in its name for a value.
_FLAG: Final = re.compile(r"--?[A-Za-z][\w-]*(?=[=.]|$)")
_TRUTH: Final = {"1": True, "true": True, "0": False, "false": False}


def with_dashes(token: str) -> str:
    """vLLM takes ``--max_model_len`` for ``--max-model-len``; a value keeps its underscores."""
    match = _FLAG.match(token)
    return match[0].replace("_", "-") + token[match.end() :] if match else token


def flags_among(tokens: Iterable[str]) -> Iterator[str]:
    return (match[0] for token in tokens if (match := _FLAG.match(token)))


def flag_name(flag: str) -> str:
    """The name in our tables of a flag as it was typed: without dashes, alias or negation."""
    if flag.startswith("-O"):
        flag = "-O"
    if flag in ALIASES:
        return ALIASES[flag]
    name = flag.removeprefix("--")
    positive = name.removeprefix("no-")
    return positive if any(positive in accepted for accepted in ACCEPTED.values()) else name


def words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def as_tokens(parser: argparse.ArgumentParser, name: str, text: str) -> list[str]:
    """Say a variable's text as it would be said on the command line of `parser`.

    Raises:
        ValueError: saying what the text is not.
    """
    flag = f"--{name}"
    action: Any = parser._option_string_actions[flag]
    if action.nargs == 0:
        if text.lower() not in _TRUTH:
            raise ValueError(f"{text!r} is not one of {', '.join(_TRUTH)}")
        if _TRUTH[text.lower()]:
            return [flag]
        return [f"--no-{name}"] if isinstance(action, argparse.BooleanOptionalAction) else []
    if action.nargs == "+":
        return [flag, *_items(text)]
    if isinstance(action, argparse._AppendAction):
        return [f"{flag}={item}" for item in _items(text)]
    return [f"{flag}={text}"]


def _items(text: str) -> list[str]:
    """The items of a list; those with commas or spaces of their own come as a JSON list."""
    if not text.startswith("["):
        return words(text)
    try:
        items = json.loads(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a JSON list") from None
    return [item if isinstance(item, str) else json.dumps(item) for item in items]
