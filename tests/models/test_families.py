"""Each family through the pair and through `vllm serve`: the same tokens and logprobs."""

from pathlib import Path

import pytest

from tests.models.families import FAMILIES
from tests.models.measuring import measure

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

RUN = [name for name, family in FAMILIES.items() if family.not_run is None]


@pytest.mark.parametrize("name", RUN)
def test_pair_equals_monolith(name: str, tmp_path: Path) -> None:
    measured = measure(name, tmp_path)
    assert measured.error is None
    assert not measured.failures, "\n".join(measured.failures)
    assert measured.cases > 0
