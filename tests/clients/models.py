"""Which models the clients ask: one of random weights what any model answers, the demo the rest.

The demo answers ten times slower, so that `make test-all` asks it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

RANDOM = pytest.mark.parametrize("duo", ["gemma3"], indirect=True)
DEMO = pytest.mark.parametrize("duo", [pytest.param("demo", marks=pytest.mark.slow)], indirect=True)


def asked(of_any: Sequence[Any], of_the_demo: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize `duo` and `ask`."""
    slow = [*of_any, *of_the_demo]
    return pytest.mark.parametrize(
        ("duo", "ask"),
        [
            *(pytest.param("gemma3", ask, id=f"gemma3-{ask.__name__}") for ask in of_any),
            *(
                # An object of its own: what is equal would be put side by side, and the servers of
                # both models started again and again.
                pytest.param(
                    "demo", partial(ask), id=f"demo-{ask.__name__}", marks=pytest.mark.slow
                )
                for ask in slow
            ),
        ],
        indirect=["duo"],
        # Otherwise it is that of a test, as `ask` is no fixture, and each test starts its servers.
        scope="session",
    )
