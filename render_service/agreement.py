"""Whether a replica serves what this render tier renders for."""

from typing import Final

from shared_protocol.serving_info import ServingInfo

_EQUAL_FIELDS: Final = (
    "architecture",
    "adapters",
    "vocab_size",
    "hidden_size",
    "dtype",
    # Render adopts the first replica's. A smaller one would refuse prompts that render let
    # through; a larger one may scale positions differently.
    "max_model_len",
    "enable_prompt_embeds",
    "max_logprobs",
    "runner_type",
    "generation_config",
    "structured_outputs_backend",
    "structured_outputs_options",
    "reasoning_parser",
    "reasoning_token_ids",
    "vllm_version",
)
"""Not among them: names and paths of the model, which are each host's own, and its capacity."""


def differences(expected: ServingInfo, actual: ServingInfo) -> list[str]:
    """Describe each fact on which a replica and this render tier must agree and do not."""
    lines = [
        _difference(field, expected, actual)
        for field in _EQUAL_FIELDS
        if getattr(expected, field) != getattr(actual, field)
    ]
    if _major(expected.protocol_version) != _major(actual.protocol_version):
        lines.append(_difference("protocol_version", expected, actual))
    return lines


def _difference(field: str, expected: ServingInfo, actual: ServingInfo) -> str:
    return f"{field}: ours {getattr(expected, field)!r}, theirs {getattr(actual, field)!r}"


def _major(version: str) -> str:
    return version.partition(".")[0]
