"""What a service's configuration of vLLM says, as both tiers tell each other."""

from typing import Any, Final

_STRUCTURED_OUTPUTS_SWITCHES: Final = (
    "disable_additional_properties",
    "disable_any_whitespace",
    "enable_in_reasoning",
)


def structured_outputs_options(config: Any) -> list[str]:
    """Return the switches that are on in vLLM's `VllmConfig`."""
    options = config.structured_outputs_config
    return [name for name in _STRUCTURED_OUTPUTS_SWITCHES if getattr(options, name)]


def reasoning_token_ids(config: Any) -> list[list[int]]:
    """Return the ids of `ServingInfo.reasoning_token_ids` from vLLM's `VllmConfig`."""
    reasoning = config.reasoning_config
    if reasoning is None or not reasoning.enabled:
        return []
    return [
        list(reasoning.reasoning_start_token_ids),
        list(reasoning.reasoning_end_token_ids),
        list(reasoning.natural_reasoning_end_token_ids),
    ]
