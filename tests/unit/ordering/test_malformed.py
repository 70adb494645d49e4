"""Whatever comes over the wire is refused or ignored: no message kind, whatever its fields, ends or holds up a role."""

from __future__ import annotations

import types
from random import Random
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints

import msgspec
import pytest

from tests.unit.ordering.build import create, host, of, publisher, register, sent, subscriber
from txlayer.errors import DecodeError
from txlayer.ordering import effects as fx
from txlayer.ordering.host import Host
from txlayer.ordering.messages import (
    AnyMessage,
    Chained,
    Fill,
    Hello,
    Locate,
    Located,
    Missing,
    Published,
    Refused,
    Register,
    Registered,
    Resend,
    Stamped,
    Voided,
    Welcome,
    decode,
    encode,
)
from txlayer.ordering.records import encode_record
from txlayer.ordering.subscriber_config import Mode
from txlayer.ordering.timestamp import Stamp, rank_at

KINDS = get_args(AnyMessage)
NUMBERS = (
    0,
    1,
    2,
    3,
    5,
    64,
    65_536,
    65_537,
    rank_at(0, 1),
    rank_at(1, 0),
    rank_at(1, 3),
    1 << 53,
    -1,
    2**62,
    2**64 - 1,
)
TEXTS = (
    "",
    "a.x",
    "a.y",
    "b.x",
    "p",
    "q",
    "s",
    "a",
    "b",
    "#",
    "a.#",
    "published",
    "create",
    "register",
    "locate",
    "é/+",
)
FLOATS = (0.0, 0.5, 100.0, -1.0, 1e300, float("inf"), float("nan"))


class Role(Protocol):
    def step(self, event: Any, now: float, /) -> list[fx.Effect]: ...

    def next_deadline(self) -> float | None: ...


def any_of(kind: Any, rng: Random) -> Any:
    """A value of a declared type, seldom a sensible one; bare lists and tags stand for messages."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, Any) or type(kind) is types.UnionType:
        return any_of(rng.choice(args), rng)
    if origin is tuple:
        return [any_of(args[0], rng) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]
    if origin is dict:
        return {any_of(args[0], rng): any_of(args[1], rng) for _ in range(rng.randint(0, 2))}
    if origin is Literal:
        return rng.choice(args)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return fields_of(kind, rng)
    choices: dict[Any, Any] = {
        int: lambda: rng.choice(NUMBERS) if rng.random() < 0.8 else rng.randrange(1 << 40),
        str: lambda: rng.choice(TEXTS),
        bool: lambda: rng.random() < 0.5,
        float: lambda: rng.choice(FLOATS),
        bytes: lambda: rng.randbytes(rng.randint(0, 4)),
        type(None): lambda: None,
    }
    return choices[kind]()


def fields_of(kind: type[msgspec.Struct], rng: Random) -> list[Any]:
    hints = get_type_hints(kind)
    tag = kind.__struct_config__.tag
    return [*([tag] if tag else []), *(any_of(hints[name], rng) for name in kind.__struct_fields__)]


def mutated(message: AnyMessage, rng: Random) -> bytes:
    """One field of a sensible message is replaced."""
    fields: list[Any] = msgspec.msgpack.decode(encode(message))
    hints, names = get_type_hints(type(message)), type(message).__struct_fields__
    at = rng.randrange(len(names)) if names else 0
    if names:
        fields[at + 1] = any_of(hints[names[at]], rng)
    return msgspec.msgpack.encode(fields)


def packets(rng: Random, count: int) -> list[bytes]:
    made = []
    for _ in range(count):
        if rng.random() < 0.5:
            made.append(msgspec.msgpack.encode(fields_of(rng.choice(KINDS), rng)))
        else:
            made.append(mutated(rng.choice(SENSIBLE), rng))
    return made


SENSIBLE: tuple[AnyMessage, ...] = (
    Locate("s", ("a.x",)),
    Located(0, 1, ("a.x",), (0,)),
    create(1),
    create(2),
    Stamped("a.x", 1, 1, 1, Stamp(0, 1, 1)),
    Published("p", "a.x", 1, 1, 1),
    Voided("a.x", 1, 1, 1, 1),
    Resend("a.x", 1),
    register("s", 2, (0, 1), (0,)),
    register("s", 1, (0,), refresh=True),
    Registered(1, False, 0.0, (0, 1), (0, 0)),
    Registered(1, True, 0.0, (0, 1), (5, 0)),
    Missing("s", 0, 1, 1),
    Refused("published", "a.x", 0, 0, 1, "no", number=1),
    Refused("register", "", 1, 0, 1, "no", 3),
    Refused("locate", "a.y", 0, 0, 1, "no"),
    Chained(1, 1, 1, 1, Welcome((rank_at(1, 0),), (3,))),
    Chained(1, 1, 1, 2, Fill(1, 1, rank_at(1, 0), 4, 4, (0,), (0,))),
    Chained(1, 1, 1, 3, Register("t", 1, (0, rank_at(1, 0)), (), ranks=(rank_at(1, 0),), values=(4,))),
)


def survive(role: Role, taken: Any, seed: int, count: int = 300) -> None:
    """Every packet is a `DecodeError`, or a step whose effects can be written and sent."""
    rng, now = Random(f"malformed/{seed}"), 0.0
    for packet in packets(rng, count):
        now += rng.choice((0.0, 0.0, 0.1, 5.0, 70.0))
        try:
            message = decode(packet)
        except DecodeError:
            continue
        for event in (message, fx.Tick()):
            if taken(event):
                for effect in role.step(event, now):
                    written(effect)
        role.next_deadline()


def written(effect: fx.Effect) -> None:
    if isinstance(effect, fx.Persist):
        encode_record(effect.record)
    elif isinstance(effect, fx.Send):
        encode(effect.message)
    elif isinstance(effect, fx.Publish):
        encode(effect.body)


def busy_host(**config: Any) -> Host:
    made = host(neighbours=fx.Neighbours((1, "b"), None), **config)
    made.step(fx.Claimed(1, "b", 1, "log-b", ("b.*",)), 0.0)
    made.step(Locate("s", ("a.x", "a.y")), 0.0)
    made.step(register("s", 1, (0,)), 0.0)
    made.step(create(1), 0.0)
    made.step(Published("p", "a.x", 1, 1, 1), 0.0)
    made.step(Missing("s", 0, 1, 1), 0.0)
    return made


@pytest.mark.parametrize("seed", range(25))
def test_a_host_survives_any_message(seed: int) -> None:
    a = busy_host(durable_tickets=seed % 2 == 0)
    survive(a, a.takes, seed)


@pytest.mark.parametrize("seed", range(25))
def test_a_lower_host_survives_any_message(seed: int) -> None:
    b = host("b", 1, fx.Neighbours(None, (0, "a")))
    b.step(fx.Claimed(0, "a", 1, "log-a", ("a.*",)), 0.0)
    b.step(Hello(0, 1), 0.0)
    b.step(Locate("s", ("b.x",)), 0.0)
    survive(b, b.takes, seed)


@pytest.mark.parametrize("seed", range(25))
def test_a_publisher_survives_any_message(seed: int) -> None:
    p = publisher(causal=seed % 3 == 0)
    for serial in range(4):
        p.step(fx.Offer("a.x" if serial % 2 else "a.y", b"", deadline=90.0 if serial else None), 0.0)
    survive(p, lambda event: True, seed)


@pytest.mark.parametrize("seed", range(25))
def test_a_subscriber_survives_any_message(seed: int) -> None:
    s = subscriber(Mode.UNRELIABLE if seed % 3 == 0 else Mode.TOTAL, expiry=50.0)
    s.step(fx.Want(("a.x", "a.y")), 0.0)
    for topic in ("a.x", "a.y"):
        s.step(fx.BusSubscribed(topic), 0.0)
    s.step(Located(0, 1, ("a.x", "a.y"), (0, 1)), 0.0)
    if seed % 2:
        s.step(Registered(1, False, 0.0, (0, 1), (0, 0)), 0.0)
    survive(s, lambda event: True, seed)


def test_a_sign_of_life_of_nobody_is_refused_and_forgotten() -> None:
    for message in (Register("q", 1, (), (0,), refresh=True), Register("q", 1, (0,), (), refresh=True, anew=True)):
        a = host()
        a.step(Locate("s", ("a.x",)), 0.0)
        assert sent(a.step(message, 0.0), Refused)
        assert a.step(fx.Tick(), 100.0) == []


def test_a_version_that_cannot_be_counted_on_is_not_read() -> None:
    with pytest.raises(DecodeError):
        decode(encode(Register("q", 2**64 - 1, (0,), ())))


def test_only_the_publisher_of_a_number_ends_the_search_for_it() -> None:
    a = host()
    a.step(Locate("s", ("a.x",)), 0.0)
    a.step(create(1), 0.0)
    a.step(Published("p", "a.x", 1, 1, 1), 0.0)
    assert sent(a.step(Missing("s", 0, 1, 1), 0.0), Resend)
    assert sent(a.step(Published("q", "a.x", 1, 1, 1 << 50), 0.0), Refused)
    assert a.searches.open
    a.step(Published("p", "a.x", 1, 1, 1), 0.0)
    assert not a.searches.open


def test_an_answer_without_baselines_or_from_the_future_is_refused() -> None:
    s = subscriber()
    s.step(fx.Want(("a.x",)), 0.0)
    s.step(fx.BusSubscribed("a.x"), 0.0)
    s.step(Located(0, 1, ("a.x",), (0,)), 0.0)
    for answer in (Registered(1, False, 0.0, (), ()), Registered(1, False, 9.0, (0,), (0,))):
        assert [type(effect) for effect in s.step(answer, 1.0)] == [fx.Report]
    assert of(s.step(Registered(1, False, 0.0, (0,), (0,)), 1.0), fx.Changed)


def test_counters_are_taken_from_hosts_alone() -> None:
    a = host()
    a.step(Locate("s", ("a.x",)), 0.0)
    lie = Register("q", 1, (0,), (), ranks=(rank_at(1, 0),), values=(1 << 40,))
    assert sent(a.step(lie, 0.0), Refused)
    assert a.state.counters.get(rank_at(1, 0)) == 0


def test_a_host_makes_no_topic_of_a_wildcard() -> None:
    a = host()
    assert sent(a.step(create(1, topic="a.#"), 0.0), Refused)
    assert sent(a.step(Locate("s", ("a.+",)), 0.0), Refused)
    assert of(a.step(fx.Tick(), 1.0), fx.Persist) == []
