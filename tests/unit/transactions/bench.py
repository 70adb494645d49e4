"""Sites wired back to back: the smallest world, without time, faults or a log that takes time."""

from collections import deque
from dataclasses import dataclass, field

from txlayer import messages as m
from txlayer.effects import (
    Answer,
    Append,
    AskScope,
    Broadcast,
    Drop,
    Effect,
    ForgetSettlements,
    Input,
    Opened,
    PrepareUnit,
    PresenceChanged,
    PublishPlain,
    Received,
    Resolve,
    RunHandler,
    ScopeChosen,
    Send,
    Settle,
    Surface,
    TimerFired,
)
from txlayer.logs.register import MemoryRegister
from txlayer.messages import Outcome, Scope, TxId
from txlayer.resources.memory import MemoryResource
from txlayer.runtime.settling import forget, leave_keys, settle
from txlayer.runtime.unit_work import WORK, HandlerFailed, UnitWork
from txlayer.tokens import Keyring
from txlayer.transactions.participant import Participant
from txlayer.transactions.scope import chain_for
from txlayer.transactions.seat import Bounds, Seat


class Handlers:
    def __init__(self) -> None:
        self.failing: list[str] = []
        self.failing_undo = False
        self.undone: list[str] = []

    def handle(self, tx: TxId, event: m.Numbered, work) -> None:
        if event.item.payload.decode() in self.failing:
            raise HandlerFailed("told to fail")
        work.put(event.item.payload.decode(), tx)

    def compensate(self, tx: TxId, event: m.Numbered, work) -> None:
        if self.failing_undo:
            raise HandlerFailed("told to fail")
        self.undone.append(event.item.payload.decode())


@dataclass
class Site:
    """One participant with its records, resource and timers in plain sight."""

    name: str
    scope: ScopeChosen | None = None
    bounds: Bounds = field(default_factory=Bounds)
    life: int = 1
    log: str = ""
    records: dict = field(default_factory=dict)
    timers: dict = field(default_factory=dict)
    resource: MemoryResource = field(default_factory=MemoryResource)
    handlers: Handlers = field(default_factory=Handlers)
    opened: dict = field(default_factory=dict)
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    surfaced: list[Surface] = field(default_factory=list)
    finishers: tuple[str, ...] = ()
    public: list[str] = field(default_factory=list)
    asked: int = 0

    def __post_init__(self) -> None:
        self.log = self.log or f"log-{self.name}"
        self.participant = Participant(self.seat())

    def presence(self, alive: bool = True) -> PresenceChanged:
        return PresenceChanged(self.name, self.life, alive, ("orders",), self.log)

    def seat(self) -> Seat:
        keyring = Keyring(self.name.encode() * 8)
        return Seat(
            self.name, self.log, self.life, keyring, bounds=self.bounds, finishers=self.finishers
        )  # fmt: skip


class Bench:
    """Delivers at once and in order; `lose` and `sent` let a test see and stop messages."""

    def __init__(self, *sites: Site) -> None:
        self.sites = {site.name: site for site in sites}
        self.queue: deque[tuple[str, Input]] = deque()
        self.sent: list[tuple[str, m.AnyMessage]] = []
        self.relayed: list[bytes] = []
        self.lose = lambda target, message: False
        self.spy = lambda site, effect: None
        self.prepares_along = False
        self.register = MemoryRegister()
        for site in sites:
            leave_keys(self.register, site.seat())
            for other in sites:
                self.give(site.name, other.presence())

    def give(self, name: str, event: Input) -> None:
        self.queue.append((name, event))
        self.run()

    def run(self) -> None:
        while self.queue:
            name, event = self.queue.popleft()
            site = self.sites[name]
            for _, effects in site.participant.step(event):
                for effect in effects:
                    self._perform(site, effect)

    def fire(self, name: str, timer: str, role: str | None = None) -> None:
        """Let every timer of this name run out."""
        site = self.sites[name]
        for key in [key for key in site.timers if key[2] == timer and (role is None or key[0] == role)]:
            del site.timers[key]
            self.give(name, TimerFired(key))

    def restart(self, name: str) -> None:
        """The site dies and comes back; its records and what its resource holds durably survive."""
        site = self.sites[name]
        site.life += 1
        site.resource.crash()
        site.timers.clear()
        site.participant = Participant(site.seat())
        for _, effects in site.participant.recover(list(site.records.values())):
            for effect in effects:
                self._perform(site, effect)
        self.run()

    def start_anew(self, name: str) -> None:
        """The site's process ends; the next one has a new log in memory, and everybody hears of it."""
        site = self.sites[name]
        site.log += "'"
        site.records.clear()
        site.timers.clear()
        site.participant = Participant(site.seat())
        for other in self.sites.values():
            self.give(other.name, site.presence())
            self.give(name, other.presence())

    def kinds(self) -> list[str]:
        return [type(message).__name__ for _, message in self.sent]

    def _perform(self, site: Site, effect: Effect) -> None:
        self.spy(site, effect)
        match effect:
            case Append():
                site.records.pop(effect.key, None)
                site.records[effect.key] = effect.record
            case Drop():
                site.records.pop(effect.key, None)
            case Send():
                self._deliver(effect.site, effect.message)
            case Broadcast():
                for name in self.sites:
                    self._deliver(name, effect.message)
            case Answer():
                self.relayed.append(effect.frame)
            case AskScope():
                site.asked += 1
                choice = site.scope or ScopeChosen(effect.tx, Scope.NONE)
                fields = {n: getattr(choice, n) for n in choice.__slots__ if n != "tx"}
                self.queue.append((site.name, ScopeChosen(effect.tx, **fields)))
            case Opened():
                site.opened[effect.call] = effect.tx
            case Resolve():
                site.outcomes.setdefault(effect.call, []).append(effect.outcome)
            case Surface():
                site.surfaced.append(effect)
            case PublishPlain():
                site.public.append(effect.event.item.payload.decode())
            case Settle():
                self.queue.append((site.name, settle(self.register, site.participant.seat, effect)))
            case ForgetSettlements():
                forget(self.register, site.participant.seat, effect)
            case _ if type(effect).__name__ == "SetTimer":
                site.timers[effect.key] = effect.seconds
            case _ if type(effect).__name__ == "CancelTimer":
                site.timers.pop(effect.key, None)
            case _ if isinstance(effect, WORK):
                work = UnitWork(site.resource, site.handlers)
                result = work.perform(effect)
                if self.prepares_along and isinstance(effect, RunHandler) and effect.prepares and result.ok:
                    result = work.perform(PrepareUnit(effect.tx))
                if result is not None:
                    self.queue.append((site.name, result))

    def _deliver(self, target: str, message: m.AnyMessage) -> None:
        self.sent.append((target, message))
        if target in self.sites and not self.lose(target, message):
            self.queue.append((target, Received(message, b"frame")))


def member(**options) -> ScopeChosen:
    """A distributed member that gives its name; or a site of another scope."""
    tx, scope = TxId("", "", 0, ""), options.pop("scope", Scope.DISTRIBUTED)
    kind = chain_for(scope, options.pop("durable", False))
    if kind is not None:
        scope, options["reads"] = Scope.NONE, (kind, *options.get("reads", ()))
    return ScopeChosen(tx, scope, **{"identity": True, **options})
