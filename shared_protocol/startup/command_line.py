"""The command line and the environment of a service: its own settings and vLLM's flags.

Every flag, ours and vLLM's, is also a variable: ``TANDEM_`` and its name in upper case. The
command line wins. Names are checked and our own settings are read before vLLM is imported, which
takes seconds that a typing mistake should not cost.
"""

import argparse
import difflib
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NoReturn, TypeVar

from shared_protocol.startup.declared_settings import (
    ENV_PREFIX,
    Setting,
    SettingsError,
    settings_of,
    variable,
)
from shared_protocol.startup.flag_tokens import (
    as_tokens,
    flag_name,
    flags_among,
    with_dashes,
    words,
)
from shared_protocol.startup.vllm_flags import ACCEPTED, REFUSED, Service

SettingsT = TypeVar("SettingsT")


@dataclass(frozen=True)
class VllmCommandLine:
    """vLLM's own parser, and its check of what was parsed."""

    parser: argparse.ArgumentParser
    validate: Callable[[argparse.Namespace], None]


@dataclass(frozen=True)
class CommandLine(Generic[SettingsT]):
    """What a service can be told when it is started.

    Attributes:
        load_vllm: imports vLLM.
    """

    service: Service
    about: str
    usage: str
    settings_class: type[SettingsT]
    load_vllm: Callable[[], VllmCommandLine]

    def parse(
        self, argv: Sequence[str], environ: Mapping[str, str]
    ) -> tuple[SettingsT, argparse.Namespace]:
        """Read our settings, and vLLM's flags into the namespace that vLLM wants.

        Exits with status 2 and one line about the first thing that is wrong; with status 0 if
        help was asked for.
        """
        tokens = [with_dashes(token) for token in argv]
        # Compose and Kubernetes pass a value that nobody set on as an empty one.
        variables = {
            name: text for name, text in environ.items() if name.startswith(ENV_PREFIX) and text
        }
        try:
            self._answer_help(tokens)
            self._check_names(tokens, variables)
            settings, rest = self._read_own(tokens, variables)
            return settings, self._read_vllm(rest, variables, settings)
        except SettingsError as error:
            print(f"{self._program}: error: {error}", file=sys.stderr)
            sys.exit(2)

    @property
    def _program(self) -> str:
        return f"python -m {self.service}_service"

    @cached_property
    def settings(self) -> list[Setting]:
        return settings_of(self.settings_class)

    @cached_property
    def vllm_flags(self) -> dict[str, str]:
        """The flags that go to vLLM's parser, with their group there."""
        own = {setting.flag_name for setting in self.settings}
        return {name: group for name, group in ACCEPTED[self.service].items() if name not in own}

    @cached_property
    def _known(self) -> set[str]:
        return {setting.flag_name for setting in self.settings} | self.vllm_flags.keys()

    def _check_names(self, tokens: Sequence[str], variables: Mapping[str, str]) -> None:
        given = set()
        for flag in flags_among(tokens):
            given.add(flag_name(flag))
            if flag_name(flag) not in self._known:
                raise SettingsError(self._why_unknown(flag, flag_name(flag), "--{}".format))
        for spelled in variables:
            name = spelled.removeprefix(ENV_PREFIX).replace("_", "-").lower()
            given.add(name)
            if name not in self._known or variable(name) != spelled:
                raise SettingsError(self._why_unknown(spelled, name, variable))
        if "model" not in given:
            raise SettingsError(f"--model ({variable('model')}) is required")

    def _why_unknown(self, spelled: str, name: str, spell: Callable[[str], str]) -> str:
        if name in REFUSED:
            return f"{spelled} cannot be set: {REFUSED[name]}"
        if name in ACCEPTED[self.service.other].keys() - self._known:
            return f"{spelled} belongs to the {self.service.other} service"
        close = difflib.get_close_matches(name, self._known, n=1)
        hint = f", did you mean {spell(close[0])}?" if close else "; --help lists what there is"
        return f"unknown setting {spelled}{hint}"

    def _read_own(
        self, tokens: Sequence[str], variables: Mapping[str, str]
    ) -> tuple[SettingsT, list[str]]:
        """Our settings, and the tokens that are left for vLLM."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.error = _fail  # type: ignore[method-assign]
        for setting in self.settings:
            parser.add_argument(f"--{setting.flag_name}", action="append")
        found, rest = parser.parse_known_args(tokens)
        values = {}
        for setting in self.settings:
            texts = getattr(found, setting.name)
            if texts is None and (text := variables.get(variable(setting.flag_name))):
                texts = words(text) if setting.many else [text]
            if texts:
                values[setting.name] = _read(setting, texts)
            elif setting.default is None:
                raise SettingsError(f"{setting.label} is required")
        return self.settings_class(**values), rest

    def _read_vllm(
        self, tokens: list[str], variables: Mapping[str, str], settings: SettingsT
    ) -> argparse.Namespace:
        vllm = self.load_vllm()
        # The error of vLLM's parser begins with a usage that is longer than a screen.
        vllm.parser.error = _fail  # type: ignore[method-assign]
        typed = {flag_name(flag) for flag in flags_among(tokens)}
        for name in self.vllm_flags.keys() - typed:
            if text := variables.get(variable(name)):
                try:
                    tokens = [*tokens, *as_tokens(vllm.parser, name, text)]
                except ValueError as error:
                    raise SettingsError(f"--{name} ({variable(name)}): {error}") from None
        args = vllm.parser.parse_args(tokens)
        if args.model_tag is not None:
            raise SettingsError(f"unexpected {args.model_tag!r}: the model is given with --model")
        # Flags of vLLM for which we have a default of our own: --host and --port.
        vars(args).update({k: v for k, v in vars(settings).items() if k in args})
        try:
            vllm.validate(args)
        except Exception as error:  # Whatever vLLM raises here says why not to start.
            raise SettingsError(_one_line(str(error).removeprefix("Error: "))) from None
        return args

    def _answer_help(self, tokens: Sequence[str]) -> None:
        for token in tokens:
            if token in ("-h", "--help"):
                print(self.help_text())
                sys.exit(0)
            if token.startswith("--help="):
                self._print_vllm_help(token)

    def help_text(self) -> str:
        lines = [f"usage: {self._program} {self.usage}", "", *_wrapped(self.about), ""]
        lines += _wrapped(
            "Every flag can be set in the environment as well: --max-model-len=1024 as "
            "TANDEM_MAX_MODEL_LEN=1024, a switch as 1 or 0, a list with commas or spaces, an "
            "object as JSON. The command line wins."
        )
        lines += ["", "Tandem's flags"]
        for setting in self.settings:
            default = setting.shown_default
            default = default if setting.default is None else f"default {default}"
            lines += [f"  {setting.label}, {default}", *_wrapped(setting.about, indent=6)]
        lines += ["", "vLLM's flags; --help=FLAG, --help=GROUP and --help=all describe them"]
        for group in sorted(set(self.vllm_flags.values())):
            names = sorted(name for name, of in self.vllm_flags.items() if of == group)
            flags = " ".join(f"--{name}" for name in names)
            lines += [f"  {group}", *_wrapped(flags, indent=6)]
        return "\n".join(lines)

    def _print_vllm_help(self, token: str) -> NoReturn:
        parser = self.load_vllm().parser
        for action in parser._actions:
            flag = next(iter(action.option_strings), "")
            if flag_name(flag) not in self.vllm_flags:
                action.help = argparse.SUPPRESS
        # Prints and exits.
        parser.parse_args([token])
        raise AssertionError("vLLM's parser did not answer --help=")


def _read(setting: Setting, texts: list[str]) -> object:
    try:
        values = tuple(setting.read(text) for text in texts)
    except ValueError as error:
        raise SettingsError(f"{setting.label}: {error}") from None
    if not setting.many:
        return values[-1]
    if len(set(values)) < len(values):
        raise SettingsError(f"{setting.label}: one value is given twice")
    return values


def _fail(message: str) -> NoReturn:
    """Say what argparse says with the variable, and without the names of functions."""
    message = _one_line(message)
    if match := re.fullmatch(r"argument (--[\w-]+)\S*: (.*)", message):
        flag, message = match.groups()
        message = re.sub(
            r"^invalid \S+ value: (.*)|^Value (.*) cannot be .*", r"\1\2 is not valid", message
        )
        message = f"{flag} ({variable(flag_name(flag))}): {message}"
    raise SettingsError(message)


def _one_line(message: str) -> str:
    return " ".join(message.split())


def _wrapped(text: str, *, indent: int = 0) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(
        text, 98, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
