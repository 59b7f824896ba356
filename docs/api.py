"""``python -m docs.api``: write what is declared of vLLM's API into ``docs/api.md``."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from render_service.api_endpoints import BY_TANDEM, BY_VLLM, NOT_OFFERED
from render_service.api_fields import POOLING_PARAMS, REQUESTS, SAMPLING_PARAMS, Fields

PAGE: Final = Path(__file__).with_suffix(".md")

_INTRODUCTION: Final = """\
# API

What the render service does with each endpoint of vLLM's server and with each field of its
requests. This page is written by `make docs` from tables in the code; a test compares the tables
with vLLM, so that nothing of vLLM's is missing here.

Beside vLLM's endpoints, `GET /ready` is 200 while a request would be answered.

## Endpoints

An endpoint that a model has no use for is 404, as in vLLM: `/v1/embeddings` where the model
generates text.

### Answered by vLLM's own route
"""

_BY_TANDEM: Final = """\
### Answered by a route of the render service
"""

_NOT_OFFERED: Final = """\
### Not offered

These are answered with 501 and an error of vLLM's form that says why, also where vLLM has the
endpoint only in its development mode or with a flag.
"""

_FIELDS: Final = """\
## Fields of requests

What is carried to the engine has its effect there, and what is handled on the render tier has it in
vLLM's own classes, which run there. An error of a field's value is vLLM's.
"""

_PARAMETERS: Final = """\
## Parameters of vLLM's engine

vLLM makes these of a request's fields; they are what crosses to the generate service.
"""


def main() -> None:
    PAGE.write_text(page())


def page() -> str:
    return "\n".join(
        [
            _INTRODUCTION,
            _endpoints_table(BY_VLLM, "there"),
            _BY_TANDEM,
            _endpoints_table(BY_TANDEM, "what it does"),
            _NOT_OFFERED,
            _endpoints_table(NOT_OFFERED, "reason"),
            _FIELDS,
            *(
                f"### {name}\n\n{_sentence(request.endpoints)}\n\n{_fields_table(request.fields)}"
                for name, request in REQUESTS.items()
            ),
            _PARAMETERS,
            f"### SamplingParams\n\n{_fields_table(SAMPLING_PARAMS)}",
            f"### PoolingParams\n\n{_fields_table(POOLING_PARAMS)}",
        ]
    )


def _endpoints_table(endpoints: Mapping[str, str], remark_column: str) -> str:
    rows = [
        (_code(name for name, of in endpoints.items() if of == remark), remark)
        for remark in dict.fromkeys(endpoints.values())
    ]
    return _table(("endpoints", remark_column), rows)


def _fields_table(fields: Fields) -> str:
    rows = [(_code(names.split()), effect.place, effect.about) for effect, names in fields.items()]
    return _table(("fields", "where", "how"), rows)


def _sentence(endpoints: str) -> str:
    words = endpoints.split()
    return f"Body of {_code(map(' '.join, zip(words[::2], words[1::2], strict=True)))}."


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(cells)} |\n" for cells in (header, *rows)]
    return "".join([lines[0], "|---" * len(header), "|\n", *lines[1:]])


if __name__ == "__main__":
    main()
