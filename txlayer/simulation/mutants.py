"""Planted bugs: each breaks one rule of the protocol, and the checkers must notice.

A mutant replaces one small method for the time of a run. Most of them are the rules of the protocol switched off one
at a time; some are slips that any implementation might make.

Three rules are missing here, because alone they do no harm that a checker sees, and are tested by themselves
(tests/unit/transactions): that a `Prepare` or `Begin` of an unknown transaction is answered with no, without which the
votes' deadline does the same later; that a vote repeats the digest of the events, which takes a bus that alters them to
matter, and whoever alters them is the outsider's part; that constraints are tested once more when all have voted, after
every single no has been tested against them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from txlayer import messages as m
from txlayer.effects import (
    Broadcast,
    ForgetMarker,
    PublishPlain,
    Send,
    SetTimer,
)
from txlayer.logs.record_log import RecordLog
from txlayer.runtime.write_ahead import WriteAhead
from txlayer.simulation.coordinator_mutations import (
    abort_after_call_reaches_locals,
    any_life,
    block_without_barrier,
    census_before_block,
    confirmed_by_anyone,
    failed_census_not_called,
    forgotten_at_the_fastest,
    presence_decides,
    publisher_abort_decides,
    publisher_death_decides,
)
from txlayer.simulation.member_mutations import (
    believes_opinions,
    delegation_unanswered,
    empty_vote_of_anyone,
    heed_aborts,
    intent_while_the_handler_runs,
    intent_without_events,
    intent_without_hashes,
    mark_removes_applying,
    mark_removes_unapplied,
    named_unheard,
    no_tombstone,
    says_its_opinion,
    skip_aborted,
)
from txlayer.simulation.mutations import (
    ADD,
    APPLIED,
    ON_BEGIN,
    Patch,
    abort_reaches_locals,
    admit_everything,
    admit_questions,
    always,
    appends,
    apply_out_of_order,
    chain_number_again,
    claims_intact,
    compensate_forward,
    complete_early,
    confirm_not_awaited,
    count_only,
    dead_submit_queued,
    deadline_for_delegate,
    delegate_says_first,
    doubter_gives_up,
    finisher_decides,
    forget_after_first_ack,
    forgotten_unknown,
    gap_ignored,
    half_a_log,
    head_unknown,
    inspect_trusts,
    instead,
    key_unknown,
    late_ack_ignored,
    local_commits_early,
    locals_follow_decision,
    mark_removes_prepared,
    not_named_commits,
    numbers_again,
    outputs_first,
    outsiders_vote,
    overtaken,
    presume_commit,
    recover_early,
    register_ignored,
    rejoin,
    settled_means_commit,
    stand_alone,
    unchecked_token,
    unlogged_public,
    vote_twice,
    without,
    yes_of_anyone,
)
from txlayer.transactions.ballot import Ballot
from txlayer.transactions.census import Census
from txlayer.transactions.chain import Chain
from txlayer.transactions.compensation import Compensation
from txlayer.transactions.coordinator_desk import CoordinatorDesk
from txlayer.transactions.creations import Creations
from txlayer.transactions.event_coordinator import EventCoordinator
from txlayer.transactions.executor import Executor
from txlayer.transactions.finisher import Finisher
from txlayer.transactions.forgotten import Forgotten
from txlayer.transactions.local_executor import LocalExecutor
from txlayer.transactions.marks import Marks
from txlayer.transactions.participant import Participant
from txlayer.transactions.publisher import Publisher
from txlayer.transactions.reader import ChainReader
from txlayer.transactions.sequence import Sequence
from txlayer.transactions.subscriber_desk import SubscriberDesk
from txlayer.transactions.tx_coordinator import TxCoordinator


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug. `hint` names the configuration that the sweep had better start with."""

    name: str
    patches: tuple[Patch, ...]
    hint: str = ""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug, for as long as this lasts."""
        for owner, name, _ in self.patches:
            assert hasattr(owner, name), f"{self.name}: {owner.__name__} has no {name} to replace"
        before = [(owner, name, owner.__dict__.get(name)) for owner, name, _ in self.patches]
        for owner, name, new in self.patches:
            setattr(owner, name, new)
        try:
            yield
        finally:
            for owner, name, old in before:
                if old is None:  # it was inherited
                    delattr(owner, name)
                else:
                    setattr(owner, name, old)


MUTANTS = (
    Mutant("nothing waits for the log", (instead(WriteAhead, "admit", admit_everything),)),
    Mutant("questions are answered while an append is pending", (instead(WriteAhead, "admit", admit_questions),), hint="two phases"),
    Mutant("decision sent before it is logged", (outputs_first(TxCoordinator, "_commit"),)),
    Mutant("decision not logged", (without(TxCoordinator, "_commit", appends),)),
    Mutant("intent not logged before the vote", (without(Executor, "_log_intent", appends),)),
    Mutant("a resource is taken for none", (instead(Executor, "_empty", empty_vote_of_anyone),)),
    Mutant("a commit that names an earlier life without a record is not acknowledged", (instead(Executor, "_on_decided_without_us", named_unheard),), hint="one shot, nothing kept, refused by the next life"),
    Mutant("without a resource the intent does not wait for the handlers", (instead(Executor, "_beside_log", intent_while_the_handler_runs),), hint="one shot, no resource"),
    Mutant("a no vote is not logged", (without(Executor, "_refuse", appends),), hint="one phase, refused"),
    Mutant("a no vote is forgotten at restart", (instead(SubscriberDesk, "recover", rejoin),), hint="one phase, refused"),
    Mutant("numbers are used again after a crash", (instead(CoordinatorDesk, "recover", numbers_again),)),
    Mutant("decision is sent once", (without(TxCoordinator, "_on_retry", lambda e: isinstance(e, Broadcast) and isinstance(e.message, m.Decision)),)),
    Mutant("forgotten after the first acknowledgement", (instead(TxCoordinator, "on_ack", forget_after_first_ack),)),
    Mutant("forgotten before the caller confirmed", (instead(TxCoordinator, "_commit", confirm_not_awaited),)),
    Mutant("marks are ignored", (instead(Marks, "finished", always(False)),)),
    Mutant("a mark decides for prepared work", (instead(Executor, "on_below_mark", mark_removes_prepared),)),
    Mutant("a member that is not named commits", (instead(Executor, "on_decision", not_named_commits),)),
    Mutant("constraints are not tested again", (instead(Ballot, "ruling", yes_of_anyone), instead(Ballot, "_without", always(None)))),
    Mutant("votes missing past the deadline count as settled", (instead(Ballot, "on_missing", stand_alone),)),
    Mutant("vote counted twice", (instead(Ballot, "on_vote", vote_twice), instead(Ballot, "ruling", count_only))),
    Mutant("votes of outsiders count", (instead(TxCoordinator, "on_vote", outsiders_vote),)),
    Mutant("census conditions are not tested", (instead(Census, "failure", always("")),)),
    Mutant("begin list is not checked", (instead(Executor, "on_begin", lambda self, begin, frame: ON_BEGIN(self, m.Begin(begin.tx, (*begin.members, self.me()), begin.type), frame)),)),
    Mutant("a member votes on events that it has not got", (instead(Sequence, "gap", gap_ignored), instead(Sequence, "complete", complete_early), instead(Sequence, "intact", claims_intact)), hint="two phases"),
    Mutant("nobody asks in doubt", (instead(Executor, "_ask", always([])),)),
    Mutant("in doubt a member gives up by itself", (instead(Executor, "_ask", doubter_gives_up),)),
    Mutant("token of a decision is not checked", (instead(Executor, "on_decision", unchecked_token),)),
    Mutant("presumed commit", (instead(CoordinatorDesk, "_on_in_doubt", presume_commit),)),
    Mutant("presumed abort for another incarnation", (instead(CoordinatorDesk, "_presumed_aborted", always(True)),), hint="hosted"),
    Mutant("delegation is not logged", (without(TxCoordinator, "_delegate", appends),), hint="one phase"),
    Mutant("a deadline decides for the delegate", (instead(TxCoordinator, "_on_retry", deadline_for_delegate),)),
    Mutant("delegate answers before it has committed", (instead(Executor, "_intend", delegate_says_first),)),
    Mutant("gaps are not asked for", (without(Executor, "_ask_for_gap", lambda e: isinstance(e, Send)),), hint="two phases"),
    Mutant("commit request overtakes events", (instead(TxCoordinator, "on_commit_request", overtaken),)),
    Mutant("event numbers are not checked for repetition", (instead(EventCoordinator, "upto", lambda self, publisher: 0),)),
    Mutant("anyone may publish", (instead(EventCoordinator, "may_publish", always(True)),)),
    Mutant("an open transaction has no deadline", (instead(TxCoordinator, "_on_deadline", always([])),)),
    Mutant("publisher does not repeat itself", (without(Publisher, "_say", lambda e: isinstance(e, SetTimer)),)),
    Mutant("a late creation starts again", (instead(Creations, "take", always(True)), instead(Creations, "ended", always(False)))),
    Mutant("locals act on the decision", (instead(SubscriberDesk, "_to_local", locals_follow_decision),)),
    Mutant("a local member commits without a call", (instead(LocalExecutor, "on_event", local_commits_early),)),
    Mutant("call is not logged", (instead(TxCoordinator, "_record_call", always([])),), hint="durable local"),
    Mutant("local intent is not logged", (without(LocalExecutor, "_go_on", appends),), hint="purely local, one shot"),
    Mutant("chain entry is not logged", (instead(Chain, "add", lambda self, tx, terms, events: replace(ADD(self, tx, terms, events), key="e/lost")),), hint="follower"),
    Mutant("followers get no retransmission", (instead(Chain, "on_retry", always([])),), hint="follower"),
    Mutant("a follower skips gaps", (instead(ChainReader, "on_commit", apply_out_of_order),), hint="follower"),
    Mutant("a follower's position is not logged", (without(ChainReader, "_save", appends),), hint="follower"),
    Mutant("followers are not registered durably", (without(Chain, "on_follow", appends),), hint="follower"),
    Mutant("chain numbers start again after a crash", (instead(Chain, "recover", chain_number_again),), hint="follower"),
    Mutant("a follower works in the unit of the member beside it", (instead(ChainReader, "_unit", lambda self, entry: entry.tx),), hint="follower beside a member"),
    Mutant("compensation in forward order", (instead(Compensation, "_undo_order", compensate_forward),), hint="compensation"),
    Mutant("compensation is forgotten", (instead(Compensation, "start", always([])),), hint="compensation"),
    Mutant("prepared work is forgotten at restart", (instead(SubscriberDesk, "resume", recover_early),), hint="two phases"),
    Mutant("a restarted member trusts that it prepared", (instead(Executor, "on_inspected", inspect_trusts),), hint="two phases"),
    Mutant("a coordinator commits past the register", (instead(TxCoordinator, "_settle", register_ignored),), hint="finisher"),
    Mutant("a finisher decides by itself", (instead(Finisher, "on_settled", finisher_decides),), hint="finisher"),
    Mutant("a coordinator ignores what stands in the register", (instead(TxCoordinator, "on_settled", settled_means_commit),), hint="finisher"),
    Mutant("nobody asks the finisher", (without(Executor, "_ask", lambda e: isinstance(e, Send) and isinstance(e.message, m.InDoubt) and bool(e.message.finisher)),), hint="finisher"),
    Mutant("settling is not logged", (without(TxCoordinator, "_settle", appends),), hint="finisher"),
    Mutant("an old copy of the log is not noticed", (instead(RecordLog, "head", head_unknown),)),
    Mutant("events are not published on commit", (without(TxCoordinator, "_commit", lambda e: isinstance(e, PublishPlain)),)),
    Mutant("what is to be published on commit is not logged", (instead(TxCoordinator, "_record", unlogged_public),), hint="public on commit"),
    Mutant("a late acknowledgement leaves a reader behind for ever", (instead(Chain, "on_ack", late_ack_ignored),)),
    Mutant("a mark leaves before the whole log is read", (instead(Participant, "recover", half_a_log),), hint="one phase"),
    Mutant("what a publisher says to a dead transaction is ignored", (instead(CoordinatorDesk, "_on_publisher", dead_submit_queued),), hint="hosted"),
    Mutant("a refused delegation is not recorded", (without(TxCoordinator, "_delegate_refused", appends),), hint="one phase, refused"),
    Mutant("an abort of members reaches locals", (instead(TxCoordinator, "_abort", abort_reaches_locals),), hint="local by chance, refused"),
    Mutant("a question by key is always answered with aborted", (instead(CoordinatorDesk, "on_inquire", key_unknown),)),
    Mutant("everything forgotten is called unknown", (instead(CoordinatorDesk, "_of_forgotten", forgotten_unknown),)),
    Mutant("forgotten commits are called aborted", (instead(Forgotten, "__contains__", always(False)),)),
    Mutant("markers are forgotten too early", (instead(Executor, "_applied", lambda self: [ForgetMarker(self.tx), *APPLIED(self)]),), hint="two phases"),
    Mutant("a census leaves before its block of numbers is durable", (instead(CoordinatorDesk, "_open", census_before_block),), hint="two phases"),
    Mutant("the next transactions do not wait for their block of numbers", (instead(CoordinatorDesk, "_open", block_without_barrier),), hint="two phases"),
    Mutant("no tombstone is kept", (instead(SubscriberDesk, "on_work", no_tombstone),), hint="two phases"),
    Mutant("a mark removes what is not applied", (instead(Executor, "on_below_mark", mark_removes_unapplied),), hint="two phases"),
    Mutant("a mark removes what is being undone", (instead(Executor, "on_below_mark", mark_removes_applying),), hint="compensation"),
    Mutant("a peer's no is taken as proof", (instead(Executor, "on_peer_in_doubt", says_its_opinion), instead(Executor, "on_decision", believes_opinions)), hint="settle for two, refused"),
    Mutant("lost presence decides for the delegate", (instead(TxCoordinator, "on_presence_lost", presence_decides),), hint="one phase"),
    Mutant("a dead publisher decides for the delegate", (instead(TxCoordinator, "on_presence_lost", publisher_death_decides),), hint="one phase at home"),
    Mutant("the publisher's abort decides for the delegate", (instead(TxCoordinator, "on_abort", publisher_abort_decides),), hint="one phase, aborted after the call"),
    Mutant("a delegation of an unknown transaction is not answered", (instead(SubscriberDesk, "_of_unknown", delegation_unanswered),), hint="one phase"),
    Mutant("a failed census in one shot says that nothing was called", (instead(TxCoordinator, "_fail_census", failed_census_not_called),), hint="durable local, one shot"),
    Mutant("the publisher's abort after its call reaches locals", (instead(TxCoordinator, "_withdraw", abort_after_call_reaches_locals),), hint="local by chance, aborted after the call"),
    Mutant("a follower heeds aborts", (instead(SubscriberDesk, "_on_transaction", heed_aborts), instead(SubscriberDesk, "_on_chain", skip_aborted)), hint="follower"),
    Mutant("an entry is forgotten when the fastest reader has it", (instead(Chain, "_forget", forgotten_at_the_fastest),), hint="follower"),
    Mutant("the intent has no events to undo", (instead(Executor, "_log_intent", intent_without_events),), hint="compensation"),
    Mutant("the intent does not say how to recognise the decision", (instead(Executor, "_log_intent", intent_without_hashes),), hint="two phases"),
    Mutant("a creation is good for any life of its coordinator", (instead(CoordinatorDesk, "on_create", any_life),), hint="one shot, hosted, no key"),
    Mutant("any publisher's confirmation frees the key", (instead(TxCoordinator, "on_confirm", confirmed_by_anyone),), hint="hosted, two publishers"),
    Mutant("what was prepared without an intent stays prepared", (instead(SubscriberDesk, "on_branches", always([])),), hint="two phases"),
    Mutant("a restart rolls back what it has voted for", (instead(SubscriberDesk, "_stands_behind", always(False)),), hint="two phases"),
    Mutant("anyone may commit", (instead(EventCoordinator, "may_end", always(True)),), hint="hosted, two publishers"),
)  # fmt: skip
