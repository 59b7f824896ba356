"""The table of flags against vLLM's own parser."""

import warnings
from collections.abc import Iterator

from generate_service.settings import COMMAND_LINE
from shared_protocol.startup.vllm_flags import ACCEPTED, ALIASES, REFUSED, Service

with warnings.catch_warnings():
    # torch warns of its own functions while vLLM is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    PARSER = COMMAND_LINE.load_vllm().parser


def flags() -> Iterator[tuple[str, list[str]]]:
    """Each flag of vLLM's parser with the group that its help shows it in."""
    for group in PARSER._action_groups:
        for action in group._group_actions:
            if action.option_strings and action.dest != "help":
                yield (
                    str(group.title),
                    [option for option in action.option_strings if not option.startswith("--no-")],
                )


def test_every_flag_of_vllm_is_placed() -> None:
    vllm = {names[0].removeprefix("--"): group for group, names in flags()}
    placed = {**ACCEPTED[Service.RENDER], **ACCEPTED[Service.GENERATE]}
    assert vllm.keys() == placed.keys() | REFUSED.keys()
    assert placed == {name: group for name, group in vllm.items() if name not in REFUSED}


def test_no_flag_is_taken_and_refused() -> None:
    for accepted in ACCEPTED.values():
        assert not accepted.keys() & REFUSED.keys()


def test_aliases_are_those_of_vllm() -> None:
    vllm = {alias: names[0].removeprefix("--") for _, names in flags() for alias in names[1:]}
    # -O3 is no option of the parser: it is rewritten before parsing.
    assert vllm | {"-O": "optimization-level"} == ALIASES


def test_a_flag_is_named_as_its_member_of_the_namespace() -> None:
    for action in PARSER._actions:
        if action.option_strings and action.dest != "help":
            assert action.option_strings[0] == "--" + action.dest.replace("_", "-")
