"""All states that the sites of a search were seen in, and what events make of them, each computed once.

Members are alike. For every exchange of members the table knows the image of each state and message: what the
exchanged site is in after the exchanged events. Images are made by running the exchanged steps, not by renaming.
"""

from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

from txlayer.effects import TimerKey
from txlayer.messages import Scope, Terms
from txlayer.simulation.explored_site import (
    COORDINATOR,
    EVERYONE,
    Deliver,
    ExploredSite,
    Fact,
    Happening,
    Stepped,
    Stepping,
    unpack,
)


class SiteState(NamedTuple):
    """One state of one site."""

    packed: bytes
    timers: tuple[TimerKey, ...]
    prepared: bool
    rests: bool
    life: int


class Result(NamedTuple):
    """What an event makes of a site: its new state, the messages sent, what was seen."""

    site: int
    sent: tuple[int, ...]
    facts: tuple[Fact, ...]


class SiteTable:
    """States of sites and messages, as numbers."""

    def __init__(self, members: tuple[str, ...], terms: Terms) -> None:
        self.names = (COORDINATOR, *members)
        self.exchanges = [dict(zip(self.names, (COORDINATOR, *order), strict=True)) for order in permutations(members)]
        self.sites: list[SiteState] = []
        self.site_images: list[tuple[int, ...]] = []
        self.messages: list[tuple[bytes, int]] = []
        self._terms = terms
        self._after = [[self._composed(after, first) for first in self.exchanges] for after in self.exchanges]
        self._moved = [[self.names.index(exchange[name]) for name in self.names] for exchange in self.exchanges]
        self._site_ids: dict[bytes, int] = {}
        self._message_ids: dict[tuple[bytes, int], int] = {}
        self._body_images: dict[bytes, tuple[bytes, ...]] = {}
        self._message_images: dict[tuple[int, int], int] = {}
        self._results: dict[tuple[int, Happening], Result] = {}

    def first(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The sites after the caller began, and what is in flight then."""
        numbers = []
        for name in self.names[1:]:
            site = ExploredSite(name, Scope.DISTRIBUTED)
            site.start()
            numbers.append(self._site(Stepping(site, self.names)._result().packed))
        for position, name in enumerate(self.names[1:]):
            images = (numbers[self.names.index(exchange[name]) - 1] for exchange in self.exchanges)
            self.site_images[numbers[position]] = tuple(images)
        coordinator = ExploredSite(COORDINATOR, Scope.NONE)
        coordinator.start()
        begun = Stepping(coordinator, self.names).begin(self._terms)
        first = self._site(begun.packed)
        self.site_images[first] = (first,) * len(self.exchanges)
        for _, body in begun.sent:
            self._body_images[body] = (body,) * len(self.exchanges)
        return (first, *numbers), self._sent(begun)

    def step(self, site: int, happening: Happening) -> Result:
        """What an event makes of a site."""
        known = self._results.get((site, happening))
        return known if known is not None else self._compute(site, happening)

    def moved(self, exchange: int, position: int) -> int:
        """Where the site at a position goes."""
        return self._moved[exchange][position]

    def message_image(self, message: int, exchange: int) -> int:
        """The message under an exchange of members."""
        found = self._message_images.get((message, exchange))
        if found is None:
            body, target = self.messages[message]
            found = self._message(self._body_images[body][exchange], self._moved[exchange][target])
            self._message_images[message, exchange] = found
        return found

    def _compute(self, site: int, happening: Happening) -> Result:
        """The step, and the same step under every exchange."""
        orbit: list[Stepped] = []
        for exchange, image in enumerate(self.site_images[site]):
            event = happening
            if isinstance(happening, Deliver):
                event = Deliver(self._body_images[happening.body][exchange], happening.cut)
            orbit.append(Stepping(unpack(self.sites[image].packed), self.names).step(event))
        numbers = [self._site(stepped.packed) for stepped in orbit]
        self._remember_images(numbers)
        for emissions in zip(*(stepped.sent for stepped in orbit), strict=True):
            bodies = [body for _, body in emissions]
            for first, body in enumerate(bodies):
                images = tuple(bodies[after[first]] for after in self._after)
                self._body_images.setdefault(body, images)
        result = Result(numbers[0], self._sent(orbit[0]), orbit[0].facts)
        self._results[site, happening] = result
        return result

    def _remember_images(self, numbers: list[int]) -> None:
        for first, number in enumerate(numbers):
            if not self.site_images[number]:
                self.site_images[number] = tuple(numbers[after[first]] for after in self._after)

    def _sent(self, stepped: Stepped) -> tuple[int, ...]:
        messages: list[int] = []
        for target, body in stepped.sent:
            names = self.names[1:] if target == EVERYONE else (target,)
            messages += [self._message(body, self.names.index(name)) for name in names]
        return tuple(messages)

    def _site(self, packed: bytes) -> int:
        if packed not in self._site_ids:
            self._site_ids[packed] = len(self.sites)
            site = unpack(packed)
            timers = tuple(key for key in site.timers if key[0] != "marks")
            state = SiteState(packed, timers, bool(site.resource.prepared), site.at_rest(), site.life)
            self.sites.append(state)
            self.site_images.append(())
        return self._site_ids[packed]

    def _message(self, body: bytes, target: int) -> int:
        if (body, target) not in self._message_ids:
            self._message_ids[body, target] = len(self.messages)
            self.messages.append((body, target))
        return self._message_ids[body, target]

    def _composed(self, after: dict[str, str], first: dict[str, str]) -> int:
        return self.exchanges.index({name: after[first[name]] for name in self.names})
