"""What the generate service says of itself to Prometheus, beside what vLLM says of the engine.

Read when it is asked, from plain numbers of one application: metrics of `prometheus_client` belong
to the whole process.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from generate_service.held_items import HeldItems
from generate_service.running_requests import RunningRequests
from shared_protocol.startup.body_memory import BodyMemory

_FROM_ZERO: Final = (400, 401, 413, 500, 503)
"""Of a series that begins with 1, Prometheus does not see the increase; other statuses are rare."""


class Refusals:
    """How many requests were answered with an error in place of tokens.

    Attributes:
        by_status: of HTTP.
    """

    def __init__(self) -> None:
        self.by_status = Counter(dict.fromkeys(_FROM_ZERO, 0))

    def add(self, status: int) -> None:
        self.by_status[status] += 1


class GenerateMetrics:
    """A collector of `prometheus_client`."""

    def __init__(
        self, requests: RunningRequests, memory: BodyMemory, held: HeldItems, refusals: Refusals
    ) -> None:
        self._requests = requests
        self._memory = memory
        self._held = held
        self._refusals = refusals

    def registry(self) -> CollectorRegistry:
        """A registry of its own, so that a process may have several applications."""
        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "tandem_generate_requests",
            "Requests from their head to the end of their answer; --max-concurrent-requests is the "
            "most.",
            self._requests.running,
        )
        yield GaugeMetricFamily(
            "tandem_generate_body_bytes",
            "Bytes of requests' bodies that are held; --max-bodies-bytes is the most.",
            self._memory.taken,
        )
        yield GaugeMetricFamily(
            "tandem_generate_held_item_bytes",
            "Bytes of bodies that are kept for their items; --held-items-bytes is the most.",
            self._held.taken,
        )
        references = CounterMetricFamily(
            "tandem_generate_item_references",
            "Items that a request referred to in place of sending them; those that were not held "
            "any more are sent after all.",
            labels=["held"],
        )
        references.add_metric(["yes"], self._held.recalled)
        references.add_metric(["no"], self._held.missed)
        yield references
        refusals = CounterMetricFamily(
            "tandem_generate_refusals",
            "Requests answered with an error in place of tokens, by HTTP status.",
            labels=["status"],
        )
        for status, count in self._refusals.by_status.items():
            refusals.add_metric([str(status)], count)
        yield refusals
