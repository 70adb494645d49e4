"""A hub whose frames travel over the memory bus: publish, subscription, handler thread, as between real sites."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from typing import Any

import txlayer
from txlayer import Bus, Delivery
from txlayer.logs.port import Disk
from txlayer.messages import Scope
from txlayer.security import Seal
from txlayer.simulation.direct import DirectSite, Hub

CONTROL = "txlayer/v1/ctl/orders"
LONG = 30.0


@dataclass(slots=True, eq=False)
class BusHub(Hub):
    """Takes frames off the bus in the order in which they arrive, and syncs logs when nothing else is there."""

    buses: dict[str, Bus] = field(default_factory=dict)
    inbox: queue.SimpleQueue[tuple[str, bytes]] = field(default_factory=queue.SimpleQueue)
    flying: int = 0

    def add(
        self, name: str, disk: Disk, seal: Seal, scope: Scope, finishers: tuple[str, ...] = (), **options: Any
    ) -> DirectSite:
        """A site and its connection."""
        bus = self.buses[name] = txlayer.connect("memory://core-benchmark", name=name)

        def on_delivery(delivery: Delivery) -> None:
            self.inbox.put((name, delivery.payload))

        bus.subscribe(f"txlayer/v1/in/{name}", on_delivery)
        if scope is not Scope.NONE:
            bus.subscribe(CONTROL, on_delivery)
        return Hub.add(self, name, disk, seal, scope, finishers, **options)

    def send(self, site: str, frame: bytes) -> None:
        """To one inbox."""
        self.flying += 1
        self.buses[site].publish(f"txlayer/v1/in/{site}", frame)

    def publish(self, frame: bytes) -> None:
        """To every subscriber."""
        self.flying += sum(site.choice.scope is not Scope.NONE for site in self.sites.values())
        next(iter(self.buses.values())).publish(CONTROL, frame)

    def arrived(self) -> bool:
        """Wait for the first frame that is under way, take all that are there."""
        while self.flying and (not self.queue or not self.inbox.empty()):
            name, frame = self.inbox.get(timeout=LONG)
            self.flying -= 1
            self.queue.append((name, None, frame))
        return bool(self.queue)

    def close(self) -> None:
        """End the connections."""
        for bus in self.buses.values():
            bus.close()
