"""A change of a subscription that is under way, and why it is not in force yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer.ordering.directory import Directory
from txlayer.ordering.messages import Event, Void
from txlayer.ordering.timestamp import host_of


@dataclass(slots=True)
class Operation:
    """From one set of topics to the next. `left`: the hosts may have them of us though they are not in `old`."""

    target: tuple[str, ...]
    added: tuple[str, ...]
    old: tuple[int, ...]
    unsubscribed: dict[str, None]
    left: tuple[int, ...] = ()
    version: int = 0
    saved: int = 0
    held: dict[str, list[Event | Void]] = field(default_factory=dict)
    renewal: bool = False

    def hold(self, rank: int, message: Event | Void, ranks: dict[str, int], most: int) -> None:
        """Keep what may be of a topic that is being added; beyond the bound it is asked for again."""
        for topic in self.added:
            held = self.held.setdefault(topic, [])
            if ranks.get(topic, rank) == rank and len(held) < most:
                held.append(message)

    def held_of(self, topic: str, rank: int) -> list[Event | Void]:
        """What came meanwhile of a topic whose rank is known by now."""
        held = self.held.get(topic, ())
        return [one for one in held if (one.stamp.rank if isinstance(one, Event) else one.rank) == rank]


def unanswered(operation: Operation | None, topics: dict[str, int], ranks: dict[str, int], directory: Directory) -> str:
    """Whose answer it waits for. `topics`: those that are subscribed; `ranks`: all that are known."""
    unknown = [topic for topic in operation.target if topic not in ranks] if operation else []
    homes = {topic: directory.home(topic) for topic in unknown}
    nobody = [topic for topic, home in homes.items() if home is None]
    if nobody:
        return f"no answer from a host that claims {', '.join(nobody)}"
    names = dict.fromkeys(home.name for home in homes.values() if home is not None)
    if names:
        return f"no answer from host {', '.join(names)}"
    concerned = [*topics.values()]
    if operation is not None:
        concerned = [*operation.old, *(ranks[topic] for topic in operation.target)]
    hosts = sorted({host_of(rank) for rank in concerned}, reverse=True)
    names = dict.fromkeys(directory.name_of(host) or f"of rank {host}" for host in hosts)
    return f"no answer from host {', or from host '.join(names)}"
