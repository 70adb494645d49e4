"""A subscription of the ordered bus: a subscriber's role between a subscription of the bus below and a lane of its own.

The bus below delivers into the role; what the role lets through goes to the lane, on whose thread the handler runs.
Without a durable name what has arrived is acknowledged to the broker at once, since nobody would get it again; with
one, the `Keeper` acknowledges what the cursor has passed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from txlayer.adapters.lane import Lane
from txlayer.delivery import Delivery, Gap
from txlayer.errors import Closed, DecodeError, NameTaken, SubscribeFailed, TxLayerError
from txlayer.ordering import effects as fx
from txlayer.ordering.admission import is_former
from txlayer.ordering.directory import check_topic
from txlayer.ordering.messages import AnyMessage, Event
from txlayer.ordering.subscriber import Subscriber
from txlayer.ports import Handler, Stats, Subscription
from txlayer.sequencing import arrivals
from txlayer.sequencing.exchange import Exchange, Letter
from txlayer.sequencing.keeper import Keeper
from txlayer.sequencing.loop import Loop

_logger = logging.getLogger(__name__)
_GOODBYE_SECONDS = 2.0
_LAST_EVENT_SECONDS = 5.0
_MOST_HELD = 65_536
"""Effects that wait for the cursor. Then the bus below waits too."""

SubscribeBelow = Callable[[list[str], Handler], Subscription]


class OrderedSubscription:
    """Thread-safe. Made by `OrderedBus.subscribe`."""

    def __init__(
        self, role: Subscriber, exchange: Exchange, loop: Loop, lane: Lane, keeper: Keeper | None, patience: float
    ) -> None:
        self.closed = False
        self._role = role
        self._exchange = exchange
        self._loop = loop
        self._lane = lane
        self._keeper = keeper
        self._patience = patience
        self._lock = threading.RLock() if keeper is None else keeper.lock
        self._turn = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._failure: str | None = None
        self._changes = 0
        self._room = threading.Event()
        self._held: deque[fx.Effect] = deque()
        self._begun = False
        self._waits = True
        """Effects wait: for the beginning, or until the cursor is saved."""
        self._below: Subscription | None = None
        self._topics: frozenset[str] = frozenset()
        self._stop_ticking: Callable[[], object] = lambda: None
        self._lane_error: Exception | None = None
        lane.on_failed = self._fail
        lane.keep_only(self._wanted)
        if keeper is not None:
            keeper.wanted = self._wanted

    @property
    def name(self) -> str:
        """What the hosts call it."""
        return self._role.name

    @property
    def topics(self) -> frozenset[str]:
        return self._topics

    @property
    def native(self) -> object:
        return self._below.native if self._below is not None else None

    @property
    def error(self) -> Exception | None:
        return self._lane_error or (self._below.error if self._below is not None else None)

    @property
    def stats(self) -> Stats:
        """How many events were handled, came twice, never came, or became dead letters."""
        self._lane.stats.duplicates = self._role.buffer.dropped
        return self._lane.stats

    def start(self, topics: Sequence[str], below: SubscribeBelow, claims: Sequence[fx.Claimed]) -> None:
        """Subscribe at the bus, then with the hosts; returns when it is in force.

        Until the bus has given it the durable name, which another one may hold, nothing is said or heard under it.
        """
        for topic in topics:
            check_topic(topic)
        self.take(claims)
        self._topics = frozenset(topics) | (self._keeper.read() if self._keeper is not None else frozenset())
        self._below = below(sorted(self._topics), self._arrived)
        self._exchange.listen(self.name, self.take)
        former = self._begin().difference(topics)
        self._topics = frozenset(topics)
        self._stop_ticking = self._loop.every_tick(self._tick)
        self._change(self._topics)
        if former:
            self._below.remove(*former)

    def _begin(self) -> frozenset[str]:
        """The name is ours: go on where its last holder has left the cursor in the end. All topics of the bus below."""
        if self._keeper is not None:
            below = self._below
            assert below is not None
            missing = self._keeper.take_over(lambda: below.closed, self._patience) - self._topics
            if missing:
                below.add(*missing)
                self._topics |= missing
            with self._lock:
                self._perform(self._keeper.resume(self._role))
        self._begun = True
        self._room.set()
        self._go_on()
        return self._topics

    def add(self, *topics: str) -> None:
        for topic in topics:
            check_topic(topic)
        with self._turn:
            assert self._below is not None
            self._below.add(*topics)
            before, self._topics = self._topics, self._topics | frozenset(topics)
            try:
                self._change(self._topics)
            except BaseException:
                self._topics = before
                with self._lock:
                    # Nothing is to wait for what is not wanted, whenever the hosts are back.
                    self._perform(self._role.step(fx.Want(tuple(before)), time.monotonic()))
                self._below.remove(*(topic for topic in topics if topic not in before))
                raise

    def remove(self, *topics: str) -> None:
        with self._turn:
            assert self._below is not None
            self._topics = self._topics - frozenset(topics)
            try:
                self._change(self._topics)
            finally:
                self._below.remove(*topics)

    def unsubscribe(self) -> None:
        self._end(True, _LAST_EVENT_SECONDS)

    def close(self, timeout: float = _LAST_EVENT_SECONDS) -> None:
        self._end(False, timeout)

    def take(self, messages: Sequence[AnyMessage | fx.Claimed]) -> None:
        """What the hosts say."""
        with self._lock:
            for message in messages:
                self._perform(self._role.step(message, time.monotonic()))
                if self._keeper is not None and isinstance(message, fx.Claimed):
                    self._keeper.follow(message)

    # From the bus below to the lane

    def _arrived(self, delivery: Delivery) -> None:
        while self._is_full() and not self.closed:
            self._room.clear()
            if self._is_full():
                self._room.wait(0.1)
        if not self._begun:
            return  # what has no acknowledgement comes again
        try:
            event = arrivals.read(delivery)
        except DecodeError as exc:
            _logger.warning("an event of %s: %s", delivery.topic, exc)
            delivery.ack()
            return
        with self._lock:
            if event is None:
                delivery.out_of_order = True  # of a publisher that does not use the ordered bus
                self._lane.put([delivery])
                return
            if is_former(event, self._role.directory):
                delivery.ack()  # it has no place any more; a gap says so
                return
            rank = self._role.topics.get(delivery.topic, event.stamp.rank)
            if rank != event.stamp.rank:
                self._misplaced(delivery, event, rank)
                return
            if self._keeper is not None:
                self._keeper.arrived(event, delivery)
            self._perform(self._role.step(event, time.monotonic()))

    def _is_full(self) -> bool:
        return self._lane.full or not self._begun or len(self._held) >= _MOST_HELD

    def _misplaced(self, delivery: Delivery, event: Event, rank: int) -> None:
        number = event.stamp.number
        _logger.warning("%s has rank %d, its event %d has %d: dropped", delivery.topic, rank, number, event.stamp.rank)
        self._lane.report(Gap(delivery.topic, "", number, number))
        delivery.ack()

    def _wanted(self, topic: str) -> bool:
        return topic in self._topics

    def has_room(self) -> None:
        """The lane has worked off what it had."""
        self._room.set()

    def _hand_over(self, effect: fx.Deliver) -> None:
        delivery = arrivals.delivery_of(effect.topic, effect.event)
        if self._keeper is not None:
            delivery = self._keeper.handed(effect, delivery)
        delivery.out_of_order, delivery.place = effect.out_of_order, effect.event.stamp.number
        self._lane.put([delivery])

    # Effects

    def _perform(self, effects: Sequence[fx.Effect]) -> None:
        letters: list[Letter] = []
        todo = deque(effects)
        while todo:
            if self._waits:
                self._hold(todo)
                break
            effect = todo.popleft()
            match effect:
                case fx.Deliver():
                    self._hand_over(effect)
                case fx.Send():
                    letters.append((effect.to, effect.message))
                case fx.Gap():
                    self._lane.report(Gap(effect.topic, "", effect.first, effect.last, effect.certain))
                case fx.BusSubscribe():
                    # It is subscribed below already: whoever asked for the topic has seen to that.
                    todo.extend(self._role.step(fx.BusSubscribed(effect.topic), time.monotonic()))
                case fx.BusUnsubscribe():
                    pass  # whoever asked for it does
                case fx.Checkpoint():
                    self._checkpoint()
                case fx.Changed():
                    self._settle(None)
                case fx.Failed():
                    self._settle(effect.reason)
                case fx.Report():
                    _logger.warning("subscriber %s: %s", self.name, effect.reason)
                case _:
                    raise AssertionError(effect)
        if letters:
            self._exchange.send(letters)

    def _hold(self, effects: deque[fx.Effect]) -> None:
        """Until the cursor is saved. What is said to hosts is repeated anyway: beyond the limit it is dropped."""
        full = len(self._held) >= _MOST_HELD
        self._held.extend(effect for effect in effects if not (full and isinstance(effect, fx.Send)))

    def _checkpoint(self) -> None:
        if self._keeper is not None:
            self._waits = True
            self._keeper.save_now(self._go_on)

    def _go_on(self) -> None:
        with self._lock:
            self._waits = False
            held, self._held = self._held, deque()
            self._perform(held)
        self._room.set()

    def _settle(self, failure: str | None) -> None:
        self._changes += 1
        self._failure = failure
        self._settled.notify_all()

    def _change(self, topics: frozenset[str], patience: float | None = None) -> None:
        deadline = time.monotonic() + (self._patience if patience is None else patience)
        with self._lock:
            if self.closed:
                raise Closed("the subscription is closed")
            self._failure = None
            self._perform(self._role.step(fx.Want(tuple(topics)), time.monotonic()))
            while frozenset(self._role.topics) != topics or not self._role.at_rest:
                if self._failure is not None:
                    raise SubscribeFailed(self._failure)
                if not self._settled.wait(max(0.0, min(0.05, deadline - time.monotonic()))) and (
                    time.monotonic() >= deadline
                ):
                    raise SubscribeFailed(f"no place in the order of {', '.join(sorted(topics))}: {self._reason()}")

    def _reason(self) -> str:
        trouble = self._keeper.trouble if self._keeper is not None else None
        return trouble or self._role.waits_for()

    def _tick(self) -> None:
        if self._below is not None and self._below.closed and not self.closed:
            threading.Thread(target=self.close, name="txlayer-ordered-end", daemon=True).start()
            return
        with self._lock:
            due, now = self._role.next_deadline(), time.monotonic()
            if due is not None and due <= now:
                self._perform(self._role.step(fx.Tick(), now))
            if self._keeper is not None:
                self._keeper.tick(now)

    # The end

    def _fail(self, error: Exception) -> None:
        if not self.closed:
            self._lane_error = error
            self.close()

    def _end(self, forget: bool, timeout: float) -> None:
        with self._turn:
            if self.closed:
                return
            self._lane.close(timeout)
            if forget or self._keeper is None:
                self._take_leave()
            self.closed = True
        self._stop_ticking()
        if self._keeper is not None and self._begun and not isinstance(self.error, NameTaken):
            self._keeper.end(forget, timeout)  # otherwise the cursor is another holder's
        self._exchange.silence(self.name, self.take)
        if self._below is not None:
            if forget:
                self._below.unsubscribe()
            else:
                self._below.close()

    def _take_leave(self) -> None:
        """Tell the hosts; if they do not answer, the silence will."""
        try:
            self._change(frozenset(), _GOODBYE_SECONDS)
        except TxLayerError as exc:
            _logger.info("subscriber %s leaves without goodbye: %s", self.name, exc)
