"""Who is there: names held by living processes, on any bus that keeps a latest value per key.

A holder announces a *word* under its key and repeats it as a heartbeat; where the bus has a last will, the will is the
word that it is dead. Watchers count a name as dead when its word says so or no word came for `SILENCE` heartbeats, by
their own monotonic clock.

One live holder per name. To enter, a process looks at the last word:

- none, or a dead one: free;
- the same incarnation and an earlier life: its own past, taken over at once;
- anything else: it listens. A heartbeat within the silence time means `NameTaken`; silence, or the word that the holder
  is dead, means free.

Each entry raises the *epoch*. A holder that sees a word of a higher epoch knows that it was replaced while it slept
and stops; one that sees a lower epoch (the late last will of an earlier life, say) repeats its own word over it. Of two
who enter at once with the same epoch, the one whose word the bus shows first stays.
"""

from __future__ import annotations

import enum
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from txlayer.errors import BusError, Closed, NameTaken
from txlayer.ports import Identity, SiteView, Standing, Watch, WatchHandler
from txlayer.receipt import Receipt
from txlayer.ticker import Ticker

_logger = logging.getLogger(__name__)
SITES = "sites"
BEAT = 1.0
SILENCE = 5.0
"""Seconds without a word after which a holder counts as dead: five heartbeats, so that a stalled machine does not."""


UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)
"""What decoding raises of a latest value, which anybody may have written whom the broker lets."""


class Word(msgspec.Struct, frozen=True):
    """What a holder says of itself."""

    incarnation: str
    life: int
    epoch: int
    nonce: str
    alive: bool = True
    beat: int = 0
    info: dict[str, str] = {}

    @property
    def identity(self) -> Identity:
        return Identity(self.incarnation, self.life)


def encode(word: Word) -> bytes:
    return msgspec.json.encode(word)


def decode(value: bytes | None) -> Word | None:
    """None for no word, and for bytes that are none of ours."""
    if value is None:
        return None
    try:
        return msgspec.json.decode(value, type=Word)
    except UNREADABLE:
        return None


def must_listen(last: Word | None, identity: Identity) -> bool:
    """Whether the last word may come from a living process that `identity` must not replace."""
    if last is None or not last.alive:
        return False
    return last.incarnation != identity.incarnation or last.life >= identity.life


class Verdict(enum.Enum):
    """What a holder makes of a word under its own key."""

    MINE = enum.auto()
    REPEAT = enum.auto()
    REPLACED = enum.auto()


def judge(mine: Word, word: Word | None, confirmed: bool) -> Verdict:
    """`confirmed`: my word has been seen on the bus before this one."""
    if word is None or word.epoch < mine.epoch:
        return Verdict.REPEAT
    if word.nonce == mine.nonce:
        return Verdict.MINE if word.alive else Verdict.REPEAT
    if word.epoch > mine.epoch or not confirmed:
        return Verdict.REPLACED
    return Verdict.REPEAT


class LatestValues(Protocol):
    """The part of a bus that presence stands on."""

    def announce(self, key: str, value: bytes | None) -> Receipt: ...

    def watch(self, prefix: str, handler: WatchHandler | None = None) -> Watch: ...


class Holder:
    """Holds one name: `listen`, give `will` to the bus where it has one, `enter`, and in the end `leave`."""

    def __init__(
        self,
        values: LatestValues,
        ticker: Ticker,
        key: str,
        identity: Identity,
        info: Mapping[str, str] | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._values = values
        self._ticker = ticker
        self._key = key
        self.on_lost = on_lost
        self._changed = threading.Condition()
        self._word: Word | None = None
        """The last one that the watch has told of. Its snapshot may be ahead: words that come late would seem new."""
        self._last: Word | None = None
        self.before: Word | None = None
        """The last word of the holder before this one."""
        self._heard = self._claiming = self._confirmed = self._lost = self._left = False
        self._said: Receipt | None = None
        self._cancel_beat: Callable[[], None] = lambda: None
        self._mine = Word(identity.incarnation, identity.life, 1, os.urandom(8).hex(), info=dict(info or {}))
        self._watch = values.watch(key, self._on_word)

    @property
    def lost(self) -> bool:
        return self._lost

    @property
    def epoch(self) -> int:
        """Higher than that of every holder before."""
        return self._mine.epoch

    @property
    def will(self) -> bytes:
        """What the bus should announce when this process dies."""
        return encode(msgspec.structs.replace(self._mine, alive=False))

    def listen(self) -> Word | None:
        """The last word of whoever held the name before; `NameTaken` while the holder lives.

        After a crash that no last will told of, this takes `SILENCE` seconds.
        """
        self._watch.catch_up()
        with self._changed:
            last = self._last = self._word
            if last is not None and must_listen(last, self._mine.identity):
                self._await_end_of(last)
            last = self._last = self.before = self._word
            self._mine = msgspec.structs.replace(self._mine, epoch=last.epoch + 1 if last else 1)
            # From here on, not only from our own word on: whoever enters in between has the same epoch and was first.
            self._claiming = True
        return last

    def _await_end_of(self, holder: Word) -> None:
        self._changed.wait_for(lambda: self._heard or self._is_gone(holder), SILENCE)
        if self._heard and not self._is_gone(holder):
            self._watch.close()
            raise NameTaken(f"{self._key} is held by a living process (incarnation {holder.incarnation})")

    def _is_gone(self, holder: Word) -> bool:
        """Whether a holder has said goodbye, or its last will has; the late will of an earlier one says nothing."""
        word = self._word
        return word is None or (not word.alive and word.epoch >= holder.epoch)

    def enter(self, timeout: float = 10.0) -> None:
        """Announce and stay; returns when the bus shows that the name is ours."""
        try:
            if self._lost:
                raise NameTaken(f"{self._key} was entered by another process meanwhile")
            self._values.announce(self._key, encode(self._mine)).wait(timeout)
            self._await_own_word(timeout)
        except BaseException:
            self.leave()
            raise
        self._cancel_beat = self._ticker.every(BEAT, self._beat)

    def _await_own_word(self, timeout: float) -> None:
        with self._changed:
            answered = self._changed.wait_for(lambda: self._confirmed or self._lost, timeout)
        if self._lost:
            raise NameTaken(f"{self._key} was entered by another process at the same time")
        if not answered:
            raise BusError(f"{self._key}: the bus did not show our own word within {timeout} s")

    def update(self, info: Mapping[str, str]) -> None:
        """Change what others see beside the name."""
        with self._changed:
            self._mine = msgspec.structs.replace(self._mine, info=dict(info))
            self._say()

    def leave(self, *, forget: bool = False) -> None:
        """Say that we are gone; `forget` removes the entry."""
        with self._changed:
            if self._left:
                return
            self._left = True
        self._cancel_beat()
        self._watch.close()
        if self._confirmed and not self._lost:
            try:
                self._values.announce(self._key, None if forget else self.will)
            except (BusError, Closed) as exc:
                _logger.warning("%s could not be told that we leave: %s", self._key, exc)

    def _beat(self) -> None:
        """While the broker is away one word waits for it, not one for every second."""
        if self._said is None or self._said.done:
            self._say()

    def _say(self) -> None:
        with self._changed:
            if not self._lost and not self._left:
                self._mine = msgspec.structs.replace(self._mine, beat=self._mine.beat + 1)
                self._said = self._values.announce(self._key, encode(self._mine))

    def _on_word(self, key: str, value: bytes | None) -> None:
        if key != self._key or self._left or self._lost:
            return
        word = decode(value)
        with self._changed:
            self._word, last, held = word, self._last, self._confirmed
            if word and last and word.alive and (word.nonce != last.nonce or word.beat > last.beat):
                self._heard = True
            verdict = judge(self._mine, word, held)
            if self._claiming and verdict is Verdict.MINE:
                self._confirmed = True
            elif self._claiming and verdict is Verdict.REPLACED:
                self._lost = True
            self._changed.notify_all()
        if held and verdict is Verdict.REPEAT:
            self._say()
        elif held and self._lost:
            self._cancel_beat()
            self.on_lost()


def _is_older(word: Word, known: Word) -> bool:
    """A last will repeats the beat of the entry, so only the words of the living are compared by it."""
    return word.epoch < known.epoch or (word.alive and word.nonce == known.nonce and word.beat < known.beat)


class Roster:
    """Everybody's presence, as seen from here. `on_change` hears of each site that enters, changes or dies."""

    def __init__(self, values: LatestValues, on_change: Callable[[SiteView], object] = lambda view: None) -> None:
        self._values = values
        self._on_change = on_change
        self._lock = threading.Condition()
        self._reporting = threading.RLock()
        self._words: dict[str, Word] = {}
        self._heard: dict[str, float] = {}
        self._reported: dict[str, SiteView] = {}
        self._fresh: set[str] = set()
        self._started = time.monotonic()
        self._ticker = Ticker("roster")
        self._watch = values.watch(SITES, self._on_word)
        for key, value in sorted(self._watch.snapshot().items()):
            self._on_word(key, value)  # the watch's own thread may not have got to them yet
        self._ticker.every(BEAT / 2, self._report)

    def sites(self) -> list[SiteView]:
        """All entries, by name. Soon after the start it first waits for a heartbeat of those that claim to live."""
        deadline = self._started + SILENCE
        with self._lock:
            self._lock.wait_for(self._all_fresh, max(0.0, deadline - time.monotonic()))
            return [self._view(name) for name in sorted(self._words)]

    def remove(self, name: str) -> None:
        """Delete the entry of a dead site; `NameTaken` while it lives."""
        view = next((view for view in self.sites() if view.name == name), None)
        if view is not None and view.standing is Standing.ALIVE:
            raise NameTaken(f"site {name} is alive: end it before its entry is removed")
        self._values.announce(f"{SITES}/{name}", None).wait(10.0)

    def close(self) -> None:
        self._watch.close()
        self._ticker.close()

    def __enter__(self) -> Roster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _all_fresh(self) -> bool:
        return all(name in self._fresh or not word.alive for name, word in self._words.items())

    def _on_word(self, key: str, value: bytes | None) -> None:
        name = key.removeprefix(f"{SITES}/")
        word = decode(value)
        if word is None and value is not None:
            return
        with self._lock:
            if word is None:
                self._words.pop(name, None)
                self._reported.pop(name, None)
                self._heard.pop(name, None)
                self._fresh.discard(name)
                return
            known = self._words.get(name)
            if known is not None and (word == known or _is_older(word, known)):
                return  # shown again, which is no sign of life, or the late word of an earlier life
            if known is not None:
                self._fresh.add(name)
            self._words[name] = word
            self._heard[name] = time.monotonic()
            self._lock.notify_all()
        self._report()

    def _view(self, name: str) -> SiteView:
        word = self._words[name]
        alive = word.alive and time.monotonic() - self._heard[name] < SILENCE
        return SiteView(name, word.identity, Standing.ALIVE if alive else Standing.DEAD, word.info)

    def _report(self) -> None:
        with self._reporting:  # the watch and the ticker both report: each site's changes in their order
            with self._lock:
                views = [self._view(name) for name in sorted(self._words)]
                changed = [view for view in views if self._reported.get(view.name) != view]
                self._reported.update({view.name: view for view in changed})
                self._lock.notify_all()
            for view in changed:
                self._on_change(view)
