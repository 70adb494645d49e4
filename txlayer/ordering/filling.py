"""A stamp that passes a host on its way up the chain: what may pass, what is learnt from it, what is filled in."""

from __future__ import annotations

from txlayer.ordering.host_state import HostState
from txlayer.ordering.messages import Fill
from txlayer.ordering.timestamp import GONE, fault_in_entries, host_of, log_of


def fault_in_fill(state: HostState, fill: Fill) -> str | None:
    """Why it cannot pass; None if it can."""
    own = state.rank
    if not 1 <= fill.first <= fill.last:
        return f"a stamp of {fill.rank} for {fill.first} to {fill.last}"
    if not fill.ranks or host_of(fill.rank) <= own or fill.home != host_of(fill.rank):
        return f"a stamp of {fill.rank} does not come this way"
    fault = fault_in_entries(fill.rank, fill.ranks, fill.values)
    if fault is not None:
        return fault
    for rank, value in zip(fill.ranks, fill.values, strict=True):
        if host_of(rank) > own and value < state.counters.get(rank) < GONE:
            return f"counter of {rank} went back to {value} on the chain"
        if host_of(rank) == own and log_of(rank) >= state.log and state.manager(rank) is None:
            return f"a stamp names topic {rank}, which does not exist here"
    return None


def fill_in(state: HostState, fill: Fill) -> tuple[int, ...]:
    """Remember the counters of lower hosts, write down ours; the values from here on."""
    own, counters = state.rank, state.counters
    counters.raise_to(fill.rank, fill.last)
    values = list(fill.values)
    for at, rank in enumerate(fill.ranks):
        if host_of(rank) > own:
            counters.raise_to(rank, values[at])
            values[at] = counters.get(rank)  # higher only if it is gone
        elif host_of(rank) == own:
            values[at] = counters.get(rank) if log_of(rank) >= state.log else GONE
    return tuple(values)
