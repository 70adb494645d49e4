"""The small worlds in which the outsider tries its forgeries: between them nearly every kind of message passes by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from txlayer.messages import Access, Conditions, Limit
from txlayer.simulation.faults import Faults
from txlayer.simulation.plan import Plan
from txlayer.simulation.sweep import (
    ALONE,
    ANONYMOUS,
    DURABLE,
    FOLLOWER,
    LOCAL,
    NOBODY,
    PLAIN,
    UNDOABLE,
    Configuration,
    terms_with,
)
from txlayer.transactions.seat import Bounds


@dataclass(frozen=True, slots=True)
class Setting:
    """One of them. Unless it is `steady`, chance decides how its transactions end, with or without an outsider."""

    configuration: Configuration
    steady: bool = True
    faults: dict[str, float] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    """Of the plan: a crash, bounds."""

    def plan(self, level: str) -> Plan:
        """A world without faults of its own, but for a little disorder where nothing is sealed."""
        plan = self.configuration.plan()
        disorder = {"reorder": 0.05} if level == "broker" else {}
        plan.faults = Faults(**disorder, **self.faults)
        plan.crash = ("", 0)
        plan.level = level
        for name, value in self.changes.items():
            setattr(plan, name, value)
        return plan


HOSTED = (NOBODY, NOBODY, PLAIN)
SETTINGS = (
    Setting(Configuration("at home", (PLAIN, ANONYMOUS, PLAIN, FOLLOWER), terms_with(settle_for=Conditions(1)))),
    Setting(Configuration("one shot", (PLAIN, PLAIN, LOCAL, DURABLE), terms_with(one_shot=True), coordinator="s1")),
    Setting(Configuration("one phase", (NOBODY, ALONE, NOBODY), terms_with())),
    Setting(Configuration("finisher", (NOBODY, PLAIN, PLAIN), terms_with(), finishers=True)),
    Setting(Configuration("hosted", (*HOSTED, PLAIN), terms_with(limit=Limit.DISTRIBUTED), coordinator="s1")),
    Setting(Configuration("hosted, locals", (*HOSTED, LOCAL, DURABLE), terms_with(), coordinator="s1")),
    Setting(
        Configuration(
            "two publishers",
            (NOBODY, PLAIN, PLAIN, FOLLOWER, FOLLOWER),
            terms_with(access=Access.MULTI),
            "s1",
            helpers=("s3",),
        )
    ),
    Setting(
        Configuration("one publisher too many", (*HOSTED, PLAIN), terms_with(), coordinator="s1", helpers=("s3",)),
    ),
    Setting(Configuration("refused", (*HOSTED, UNDOABLE, LOCAL), terms_with(), coordinator="s1", refuser="s2")),
    Setting(Configuration("aborted", (*HOSTED, UNDOABLE, LOCAL), terms_with(), coordinator="s1", abort=True)),
    Setting(Configuration("unfulfilled", HOSTED, terms_with(require=Conditions(3)), coordinator="s1")),
    Setting(Configuration("slow", (*HOSTED, PLAIN), terms_with(), coordinator="s1"), False, {"slow_handler": 1.0}),
    Setting(
        Configuration("coordinator dies, finisher", (NOBODY, PLAIN, PLAIN), terms_with(), finishers=True),
        steady=False,
        changes={"crash": ("s0", 14), "restart_after": 8.0},
    ),
    Setting(
        Configuration("coordinator restarts", (*HOSTED, PLAIN), terms_with(), coordinator="s1"),
        steady=False,
        changes={"crash": ("s1", 4), "restart_after": 0.1},
    ),
    Setting(
        Configuration("coordinator loses its log", (NOBODY, PLAIN, PLAIN), terms_with()),
        steady=False,
        changes={"crash": ("s0", 14), "wipe": True},
    ),
    Setting(
        Configuration("follower falls behind", (PLAIN, PLAIN, FOLLOWER), terms_with()),
        steady=False,
        changes={"crash": ("s2", 17), "restart_after": 8.0, "bounds": Bounds(chain_entries=1)},
    ),
)
