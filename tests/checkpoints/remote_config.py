"""The configuration file and class of a family that transformers does not know."""

import json
from pathlib import Path
from typing import Any

_MODULE = "configuration"
_SOURCE = '''\
"""Made by the tests: just enough of this family's configuration for vLLM."""

from transformers import AutoConfig, PreTrainedConfig


class Config(PreTrainedConfig):
    model_type = "{model_type}"

    def __init__(self, **members):
        for name, kind in {parts!r}.items():
            if isinstance(members.get(name), dict):
                part = {{key: value for key, value in members[name].items() if key != "model_type"}}
                known = kind != "config"
                members[name] = AutoConfig.for_model(kind, **part) if known else Part(**part)
        super().__init__(**members)

    def get_text_config(self, *args, **kwargs):
        return getattr(self, {text!r}, self)


class Part(PreTrainedConfig):
    model_type = "part"
'''


def save(
    path: Path,
    architecture: str,
    members: dict[str, Any],
    *,
    model_type: str,
    parts: dict[str, str],
    text: str,
    auto_map: dict[str, str] | None = None,
) -> None:
    """Write `config.json` and the class that reads it.

    Args:
        parts: the members that are configurations themselves, with transformers' name of their
            type, or "config" where it has none.
        text: the part that describes the language model.
        auto_map: further classes that come with the checkpoint.
    """
    path.mkdir(parents=True, exist_ok=True)
    source = _SOURCE.format(model_type=model_type, parts=parts, text=text)
    (path / f"{_MODULE}.py").write_text(source)
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "auto_map": {"AutoConfig": f"{_MODULE}.Config", **(auto_map or {})},
        "dtype": "float32",
        **members,
    }
    (path / "config.json").write_text(json.dumps(config, indent=2))
