"""The generate replicas: who is in rotation, and who gets the next request."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self

from render_service.agreement import differences
from render_service.discovery import stands_for_itself, urls_behind
from render_service.item_names import HeldNames
from render_service.outgoing_request import Shipment
from render_service.replica_answer import NotAccepted
from render_service.transport import (
    Exchange,
    GenerateTransport,
    NoAnswer,
    NotReady,
    without_userinfo,
)
from shared_protocol.answer import TokenDelta
from shared_protocol.binary_codec import BINARY_CONTENT_TYPE
from shared_protocol.errors import InternalError, MissingFeatures, ReplicaFailed, Unavailable
from shared_protocol.serving_info import ServingInfo

logger = logging.getLogger(__name__)

LATE_S: Final = 2.0
_PROGRESS_INTERVAL_S: Final = 5.0
_DISCOVERY_INTERVAL_S: Final = 5.0


class Request(Protocol):
    """What is to be generated, for whichever replica."""

    def shipment(self, held: Container[str]) -> Shipment: ...


@dataclass(eq=False)
class Replica:
    """
    Attributes:
        url: where it is, possibly with credentials; `name` is the part to show.
        outstanding: requests that it has and has not finished.
        reason: why it is out of rotation; None while it is in rotation.
        info: what it said of itself last.
        probed_reason: what the last probe found.
        suspect: set when a request failed since the last probe began.
        exchanges: the requests that are running there.
        silent_s: for how long no probe was answered.
        late: whether it was in rotation until it fell silent, and that is not long ago.
        busy: whether it has refused a request for its load since the last probe. It is in rotation
            all the same, behind the others: there may be nobody else, and it is well.
        held: the names of items that it is thought to hold.
    """

    url: str
    name: str
    outstanding: int = 0
    reason: str | None = "not probed yet"
    info: ServingInfo | None = None
    probed_reason: str | None = "not probed yet"
    suspect: asyncio.Event = field(default_factory=asyncio.Event)
    exchanges: set[Exchange] = field(default_factory=set)
    silent_s: float = 0.0
    late: bool = False
    busy: bool = False
    held: HeldNames = field(default_factory=HeldNames)

    @property
    def ready(self) -> bool:
        return self.reason is None


@dataclass
class PoolCounts:
    """What has happened since the pool was made.

    Attributes:
        sent_on: requests sent to one more replica, since another had not begun them.
        failed: requests whose replica was lost while it had them, or answered with no answer.
        stalled: those given up since their replica had answered no probe for `stall_s`.
        errors: requests that a replica itself answered with a fault of its own; so it does when
            its engine dies.
    """

    sent_on: int = 0
    failed: int = 0
    stalled: int = 0
    errors: int = 0


class ReplicaPool:
    """Probes the replicas while it is open, and sends each request to one that is in rotation.

    A replica that fails a request leaves the rotation at once; a probe, which follows soon,
    brings it back. One that refuses a request for its load comes behind the others until then.

    One that does not answer a probe leaves the rotation as well, and the requests that it has not
    begun go elsewhere. While nobody is in rotation, those that were until they fell silent are
    asked for `late_s` more: a host that is busy for a moment is likelier than one that is lost.

    The requests that a silent replica has begun may still go on, until it was silent for
    `stall_s`: then they end with `ReplicaFailed`. A replica that answers its probes may take any
    time for tokens.

    Attributes:
        counts: what became of requests.
    """

    def __init__(
        self,
        urls: Sequence[str],
        transport: GenerateTransport,
        *,
        expected: ServingInfo | None = None,
        probe_interval_s: float = 0.3,
        late_s: float = LATE_S,
        stall_s: float = 20.0,
        discover: Callable[[str], Awaitable[frozenset[str]]] = urls_behind,
        discovery_interval_s: float = _DISCOVERY_INTERVAL_S,
    ) -> None:
        """
        Args:
            expected: what a replica must serve to be in rotation; see `expect`.
            late_s: for how long a silent replica is asked all the same, if there is no other.
            stall_s: how long a replica may be silent before its requests are given up.
            discover: finds the replicas behind a URL whose host is a name.
        """
        self._names = [url for url in urls if not stands_for_itself(url)]
        self._replicas = [
            Replica(url, without_userinfo(url)) for url in urls if stands_for_itself(url)
        ]
        names = {without_userinfo(url) for url in urls}
        if not names or len(names) < len(urls):
            raise ValueError("the pool needs at least one replica, and each one once")
        self._transport = transport
        self._expected = expected
        self._probe_interval_s = probe_interval_s
        self._late_s = late_s
        self._stall_s = stall_s
        self.counts = PoolCounts()
        self._draining = False
        self._requests_over = False
        self._discover = discover
        self._discovery_interval_s = discovery_interval_s
        self._probing: dict[Replica, asyncio.Task[None]] = {}
        self._discovering: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._first: asyncio.Future[ServingInfo] = asyncio.get_running_loop().create_future()
        for replica in self._replicas:
            self._begin_probing(replica)
        self._discovering = [
            asyncio.create_task(self._keep_discovering(url)) for url in self._names
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._discovering, *self._probing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def drain(self) -> None:
        """Say "not ready" from now on; requests that still come are answered."""
        self._draining = True

    def end_requests(self) -> None:
        """End what still runs: nobody waits for it any longer."""
        self._requests_over = True
        for replica in self._probing:
            for exchange in list(replica.exchanges):
                exchange.cut()

    def has_ready_replica(self) -> bool:
        return any(replica.ready for replica in self._replicas)

    def takes_requests(self) -> bool:
        """Whether there is a replica to ask, if only one that is late."""
        return bool(self._candidates())

    def unavailable(self, *, retry_after_s: int = 1) -> Unavailable:
        """The error to answer with while no replica takes requests."""
        return Unavailable(
            "No generate replica takes requests at the moment", retry_after_s=retry_after_s
        )

    def status(self, *, addresses: bool = True) -> dict[str, Any]:
        """What to say of the pool.

        Args:
            addresses: whether to say where replicas are and why they are out of rotation, of which
                the reason may tell an address as well.
        """
        rows = []
        for replica in self._replicas:
            where = {"url": replica.name, "reason": replica.reason} if addresses else {}
            rows.append({"ready": replica.ready, "outstanding": replica.outstanding, **where})
        return {"ready": self.has_ready_replica() and not self._draining, "replicas": rows}

    async def wait_for_first(self, timeout_s: float) -> ServingInfo:
        """Wait until one replica is ready, and return what it serves.

        Raises:
            TimeoutError: naming each replica and why it is not ready.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not self._first.done():
            remaining = deadline - loop.time()
            if remaining <= 0:
                raise TimeoutError(
                    f"no generate replica was ready after {timeout_s:g} s: {self._reasons()}"
                )
            await asyncio.wait([self._first], timeout=min(remaining, _PROGRESS_INTERVAL_S))
            if not self._first.done():
                logger.info("waiting for a generate replica: %s", self._reasons())
        return self._first.result()

    def _reasons(self) -> str:
        reasons = [f"{replica.name}: {replica.reason}" for replica in self._replicas]
        return "; ".join(reasons) or "no address is known yet"

    def expect(self, expected: ServingInfo) -> None:
        """From now on keep replicas that serve something else out of rotation."""
        self._expected = expected
        for replica in self._replicas:
            if replica.ready:
                self._conclude(replica, self._disagreement(replica))

    @asynccontextmanager
    async def generate(
        self,
        request: Request,
        *,
        content_type: str = BINARY_CONTENT_TYPE,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[AsyncIterator[TokenDelta]]:
        """Send a request to the least loaded replica; inside the context, iterate over its deltas.

        The request goes to a second replica only if the first has not begun it.

        Raises:
            Unavailable: on entering, if no replica takes the request.
            TandemError: on entering or iterating, as `GenerateTransport.stream`.
        """
        async with AsyncExitStack() as stack:
            yield await self._first_that_accepts(stack, request, content_type, headers)

    async def _first_that_accepts(
        self,
        stack: AsyncExitStack,
        request: Request,
        content_type: str,
        headers: Mapping[str, str] | None,
    ) -> AsyncIterator[TokenDelta]:
        tried: set[Replica] = set()
        whole: set[Replica] = set()
        retry_after_s: list[int] = []
        while (replica := self._least_loaded(tried)) is not None:
            if tried and replica not in whole:
                self.counts.sent_on += 1
            shipment = request.shipment(() if replica in whole else replica.held)
            attempt = self._attempt(replica, shipment, content_type, headers)
            try:
                return await stack.enter_async_context(attempt)
            except NotAccepted as refusal:
                tried.add(replica)
                retry_after_s.append(refusal.retry_after_s or 1)
            except MissingFeatures as missing:
                # It has begun nothing.
                replica.held.forget(missing.hashes)
                if not shipment.has_names:
                    raise
                whole.add(replica)
        raise self.unavailable(retry_after_s=min(retry_after_s, default=1))

    def _candidates(self) -> list[Replica]:
        in_rotation = [replica for replica in self._replicas if replica.ready]
        return in_rotation or [replica for replica in self._replicas if replica.late]

    def _least_loaded(self, tried: set[Replica]) -> Replica | None:
        candidates = [r for r in self._candidates() if r not in tried]
        # Ties are broken by chance: many render processes choose without knowing of each other.
        return min(candidates, key=lambda r: (r.busy, r.outstanding, random.random()), default=None)

    @asynccontextmanager
    async def _attempt(
        self,
        replica: Replica,
        shipment: Shipment,
        content_type: str,
        headers: Mapping[str, str] | None,
    ) -> AsyncIterator[AsyncIterator[TokenDelta]]:
        replica.outstanding += 1
        try:
            async with self._transport.stream(
                replica.url,
                shipment.body,
                content_type=content_type,
                headers=headers,
                exchanges=replica.exchanges,
                on_named=lambda names: replica.held.add(shipment.note(names)),
            ) as deltas:
                yield deltas
        except (NotAccepted, ReplicaFailed) as error:
            if isinstance(error, NotAccepted):
                logger.info("%s did not take a request: %s", replica.name, error)
            if isinstance(error, NotAccepted) and error.busy:
                replica.busy = True
            else:
                replica.reason = f"failed a request: {error}"
                replica.late = False
            replica.suspect.set()
            if isinstance(error, ReplicaFailed):
                self._count_lost(replica)
            raise
        except InternalError:
            self.counts.errors += 1
            raise
        finally:
            replica.outstanding -= 1

    def _count_lost(self, replica: Replica) -> None:
        if self._requests_over:
            # It is this process that has ended them.
            return
        if self._has_stalled(replica):
            self.counts.stalled += 1
        else:
            self.counts.failed += 1

    def _has_stalled(self, replica: Replica) -> bool:
        return replica.silent_s >= self._stall_s

    async def _keep_discovering(self, url: str) -> None:
        """Have one replica for each address behind the name in `url`."""
        found: dict[str, Replica] = {}
        while True:
            urls = await self._discovered(url) or found.keys()
            for new in urls - found.keys():
                found[new] = self._add(new)
            for gone in found.keys() - urls:
                self._remove(found.pop(gone))
            await asyncio.sleep(self._discovery_interval_s)

    async def _discovered(self, url: str) -> frozenset[str]:
        """Nothing if the name is not resolved: what was found before is the best guess then."""
        try:
            return await self._discover(url)
        except OSError as error:
            logger.warning("%s is not resolved: %s", without_userinfo(url), error)
        except Exception:
            # Without this task the pool would never hear of another replica.
            logger.exception("looking for the replicas behind %s failed", without_userinfo(url))
        return frozenset()

    def _add(self, url: str) -> Replica:
        replica = Replica(url, without_userinfo(url))
        self._replicas.append(replica)
        self._begin_probing(replica)
        return replica

    def _remove(self, replica: Replica) -> None:
        """Give it no more requests; those that it has go on, and it is probed as long."""
        logger.info("%s is no replica any more", replica.name)
        self._replicas.remove(replica)
        if not replica.outstanding:
            self._probing[replica].cancel()

    def _begin_probing(self, replica: Replica) -> None:
        task = asyncio.create_task(self._keep_probing(replica))
        self._probing[replica] = task
        task.add_done_callback(lambda _: self._probing.pop(replica))

    async def _keep_probing(self, replica: Replica) -> None:
        # A replica that refuses requests under load but is ready is probed again after each
        # refusal; this bounds how often.
        gap_s = self._probe_interval_s / 3
        while replica in self._replicas or replica.outstanding:
            replica.suspect.clear()
            reason = await self._probe(replica)
            # What a probe found before a request failed is no news any more.
            if reason is not None or not replica.suspect.is_set():
                self._conclude(replica, reason)
            self._give_up_requests(replica)
            await asyncio.sleep(gap_s)
            if replica.silent_s:
                replica.silent_s += gap_s
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._probe_interval_s - gap_s):
                    await replica.suspect.wait()

    def _give_up_requests(self, replica: Replica) -> None:
        """Of a silent replica those that it has not begun; after a while all that it has."""
        if not replica.silent_s:
            return
        stalled = self._has_stalled(replica)
        is_asked = replica in self._candidates()
        given_up = [e for e in replica.exchanges if stalled or not (e.begun or is_asked)]
        if stalled and given_up:
            logger.error(
                "%s has answered no probe for %g s: the %d requests that it has end",
                replica.name,
                replica.silent_s,
                len(given_up),
            )
        for exchange in given_up:
            exchange.cut()

    async def _probe(self, replica: Replica) -> str | None:
        """Find out why the replica should get no requests; None if it should."""
        begun_at = asyncio.get_running_loop().time()
        try:
            replica.info = await self._transport.probe(replica.url)
        except NoAnswer as error:
            # No more than what it was given: this process itself may have been late.
            waited_s = asyncio.get_running_loop().time() - begun_at
            replica.silent_s += min(waited_s, self._transport.probe_timeout_s)
            return str(error)
        except NotReady as error:
            replica.silent_s = 0.0
            return str(error)
        except Exception:
            # Without its probe a replica would stay out, or in, forever.
            logger.exception("the probe of %s failed", replica.name)
            return "its probe failed"
        replica.silent_s = 0.0
        return self._disagreement(replica)

    def _disagreement(self, replica: Replica) -> str | None:
        if self._expected is None or replica.info is None:
            return None
        lines = differences(self._expected, replica.info)
        return f"serves something else: {'; '.join(lines)}" if lines else None

    def _conclude(self, replica: Replica, reason: str | None) -> None:
        was_asked = replica.ready or replica.late
        replica.late = was_asked and 0 < replica.silent_s < self._late_s
        replica.reason = reason
        replica.busy = False
        if reason is None and replica.info is not None and not self._first.done():
            self._first.set_result(replica.info)
        known, replica.probed_reason = replica.probed_reason, reason
        if _kind(reason) == _kind(known):
            return
        if reason is None:
            logger.info("%s is in rotation", replica.name)
        else:
            logger.warning("%s is out of rotation: %s", replica.name, reason)


def _kind(reason: str | None) -> str | None:
    """What is worth a line of the log: how a connection failed differs from one to the next."""
    return reason and reason.partition(" (")[0]
