"""What the render service says of itself to Prometheus; read when it is asked, from plain numbers.

Not by metrics of `prometheus_client`, which belong to the whole process, or to files of several
processes where ``PROMETHEUS_MULTIPROC_DIR`` is set: these are of one application and its pool.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from render_service.replicas import ReplicaPool
from shared_protocol.startup.body_memory import BodyMemory

CONCURRENCY: Final = "concurrency"
BODY_MEMORY: Final = "body_memory"
KEY_LIMITS: Final = "key_limits"
NO_REPLICA: Final = "no_replica"


class Refusals:
    """How many requests were refused, by reason."""

    def __init__(self) -> None:
        # From 0 on: of a series that begins with 1, Prometheus does not see the increase.
        self._counts = dict.fromkeys((CONCURRENCY, BODY_MEMORY, KEY_LIMITS, NO_REPLICA), 0)

    @property
    def counts(self) -> Mapping[str, int]:
        return self._counts

    def add(self, reason: str) -> None:
        self._counts[reason] += 1


class RenderMetrics:
    """A collector of `prometheus_client`: the pool, the memory and the refusals as they are now."""

    def __init__(
        self, pool: ReplicaPool, memory: BodyMemory, refusals: Refusals, *, addresses: bool
    ) -> None:
        """
        Args:
            addresses: whether to say of each replica, by its address, how it is.
        """
        self._pool = pool
        self._memory = memory
        self._refusals = refusals
        self._addresses = addresses

    def registry(self) -> CollectorRegistry:
        """A registry of its own, so that a process may have several applications."""
        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def collect(self) -> Iterable[Metric]:
        replicas = self._pool.status(addresses=self._addresses)["replicas"]
        yield from _of_all(replicas)
        if self._addresses:
            yield from _of_each(replicas)
        yield GaugeMetricFamily(
            "tandem_render_body_bytes",
            "Bytes of requests' bodies that are held; --max-bodies-bytes is the most.",
            self._memory.taken,
        )
        yield from self._counts()

    def _counts(self) -> Iterable[Metric]:
        counts = self._pool.counts
        yield CounterMetricFamily(
            "tandem_render_requests_sent_on",
            "Requests sent to one more generate service, since another had not begun them.",
            counts.sent_on,
        )
        yield _labelled(
            CounterMetricFamily(
                "tandem_render_requests_lost",
                "Requests to generate services that ended without the end of their answer.",
                labels=["reason"],
            ),
            {"failed": counts.failed, "stalled": counts.stalled, "error": counts.errors},
        )
        yield _labelled(
            CounterMetricFamily(
                "tandem_render_refusals", "Requests of clients refused.", labels=["reason"]
            ),
            self._refusals.counts,
        )


def _of_all(replicas: list[dict[str, Any]]) -> Iterable[Metric]:
    ready = [replica for replica in replicas if replica["ready"]]
    out = [replica for replica in replicas if not replica["ready"]]
    yield GaugeMetricFamily(
        "tandem_render_replicas_known", "Generate services that are known.", len(replicas)
    )
    yield GaugeMetricFamily(
        "tandem_render_replicas_ready", "Generate services that are in rotation.", len(ready)
    )
    yield _labelled(
        GaugeMetricFamily(
            "tandem_render_outstanding_requests",
            "Requests that generate services have and have not finished, by the services' state.",
            labels=["state"],
        ),
        {
            state: sum(replica["outstanding"] for replica in those)
            for state, those in (("ready", ready), ("out", out))
        },
    )


def _of_each(replicas: list[dict[str, Any]]) -> Iterable[Metric]:
    yield _labelled(
        GaugeMetricFamily(
            "tandem_render_replica_ready",
            "Whether a generate service is in rotation (--ready-addresses=on).",
            labels=["replica"],
        ),
        {replica["url"]: int(replica["ready"]) for replica in replicas},
    )
    yield _labelled(
        GaugeMetricFamily(
            "tandem_render_replica_outstanding_requests",
            "Requests that a generate service has and has not finished (--ready-addresses=on).",
            labels=["replica"],
        ),
        {replica["url"]: replica["outstanding"] for replica in replicas},
    )


def _labelled(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, int]
) -> GaugeMetricFamily | CounterMetricFamily:
    for label, value in values.items():
        family.add_metric([label], value)
    return family
