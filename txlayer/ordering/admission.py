"""Whether a subscriber takes what comes from the bus: what cannot be, what is too early, what is of a former log."""

from __future__ import annotations

from txlayer.ordering.directory import Directory
from txlayer.ordering.messages import Event, Void
from txlayer.ordering.subscriber_config import Mode
from txlayer.ordering.timestamp import fault_in, fault_in_entries, host_of


def fault_in_message(message: Event | Void, directory: Directory, mode: Mode) -> str | None:
    """Why this cannot be; None if it can."""
    if isinstance(message, Event):
        fault = fault_in(message.stamp)
        if fault is None and message.stamp.base and mode is Mode.UNRELIABLE:
            fault = f"stamp {message.stamp.rank}/{message.stamp.number} rests on a base, which this mode cannot use"
    else:
        fault = fault_in_entries(message.rank, message.ranks, message.values)
        if message.first < 1 or message.last < message.first:
            fault = f"void {message.first} to {message.last}"
    rank, epoch = _place(message)
    if fault is None and (host_of(rank) not in directory.claims or epoch < 1):
        fault = f"topic of rank {rank}: epoch {epoch} of its host is not known here"
    return fault


def is_ahead(message: Event | Void, directory: Directory) -> bool:
    """Whether the message is of an epoch that the directory has not shown yet."""
    rank, epoch = _place(message)
    return epoch > directory.claims[host_of(rank)].epoch


def is_former(message: Event | Void, directory: Directory) -> bool:
    """Whether the message is of a log that its host no longer has: a gap is reported, or will be."""
    rank, epoch = _place(message)
    return directory.is_gone(host_of(rank), epoch)


def _place(message: Event | Void) -> tuple[int, int]:
    if isinstance(message, Event):
        return message.stamp.rank, message.stamp.epoch
    return message.rank, message.epoch
