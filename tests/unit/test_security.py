"""Each level keeps out whom it says, and nobody else; decoders raise one kind of error whatever they are fed."""

import os
import random

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from txlayer import messages as m
from txlayer.codec import KINDS, VERSION, Frame, decode_body, decode_frame, encode_body, encode_frame
from txlayer.errors import DecodeError, LogCorrupt, NewerVersion, SealBroken, UnknownKind, UsageError
from txlayer.records import AnyRecord, decode_record, encode_record
from txlayer.runtime.inbox import received
from txlayer.security import BrokerSeal, SecretSeal, SignedSeal
from txlayer.tokens import Keyring, digest_of, member_hash, reveals

TX = m.TxId("c", "log", 1, "ab")
TERMS = m.Terms("orders", (("a", "b"),), require=m.Conditions(1, 2, ("x",), ("x", "y")), settle_for=m.Conditions(1))
EVENT = m.Numbered(1, m.Item("orders", b"payload", (("k", "v"),)), "p")
KEYS = {name: Ed25519PrivateKey.from_private_bytes(name.encode() * 32) for name in ("c", "d")}
PUBLIC = {name: key.public_key() for name, key in KEYS.items()}
SEALS = (BrokerSeal(), SecretSeal([b"the secret"]), SignedSeal("c", KEYS["c"], PUBLIC))


def samples() -> list[m.AnyMessage]:
    """One message of every kind, made from the annotations of its fields."""
    ring = Keyring(b"secret")
    values = {
        m.TxId: TX, m.Terms: TERMS, m.Item: EVENT.item, m.Numbered: EVENT, m.Hashes: ring.hashes(TX),
        m.Pseudonym: ring.pseudonym(TX), m.Standing: m.Standing(5, (2, 3)), m.Status: m.Status.ABORTED,
        m.ChainKind: m.ChainKind.CALLS, str: "c", int: 3, float: 1.5, bytes: b"bytes", bool: True,
        tuple[m.Item, ...]: (EVENT.item,), tuple[m.Numbered, ...]: (EVENT,), tuple[bytes, ...]: (b"a", b"b"),
        tuple[str, ...]: ("a",), tuple[tuple[str, str], ...]: (("a", "b"),),
        m.TxId | None: TX, m.Terms | None: TERMS, m.Asked: ("log", 2, 3),
        m.Join | None: m.Join(TX, ring.pseudonym(TX), ring.hashes(TX), "c"),
    }  # fmt: skip
    return [kind(**{f.name: values[f.type] for f in msgspec.structs.fields(kind)}) for kind in KINDS.values()]


def test_every_kind_survives_encoding() -> None:
    for message in samples():
        assert BrokerSeal().open(BrokerSeal().close(message)).message == message
    assert len(samples()) == len(KINDS) >= 35


def test_unknown_kind_is_told_apart_and_newer_version_is_refused_by_name() -> None:
    stranger = encode_frame(Frame(VERSION, "", msgspec.msgpack.encode(["Novelty", 1, 2])))
    with pytest.raises(UnknownKind, match="Novelty"):
        decode_body(decode_frame(stranger))
    newer = encode_frame(Frame(VERSION + 1, "", encode_body(m.Decline(TX, b"a"))))
    with pytest.raises(NewerVersion, match="Decline of version 2"):
        decode_body(decode_frame(newer))


def test_old_readers_ignore_new_fields_and_new_readers_supply_defaults() -> None:
    longer = msgspec.msgpack.encode(["Decline", [*msgspec.structs.astuple(TX)], b"a", "", "a field of tomorrow"])
    assert decode_body(Frame(VERSION, "", longer)) == m.Decline(TX, b"a")
    shorter = msgspec.msgpack.encode(["Confirm", [*msgspec.structs.astuple(TX)], "p"])
    assert decode_body(Frame(VERSION, "", shorter)) == m.Confirm(TX, "p")


def test_secret_keeps_out_everyone_without_it_and_can_be_rotated() -> None:
    old, new, both = (
        SecretSeal([b"old secret"]),
        SecretSeal([b"new secret"]),
        SecretSeal([b"new secret", b"old secret"]),
    )
    message = m.Decline(TX, b"a")
    assert both.open(old.close(message)).message == message
    assert new.open(both.close(message)).message == message
    for frame in (BrokerSeal().close(message), old.close(message)):
        with pytest.raises(SealBroken):
            new.open(frame)
    with pytest.raises(UsageError):
        SecretSeal([b"short"])


def test_altering_any_byte_of_a_sealed_frame_breaks_it() -> None:
    seal = SecretSeal([b"the secret"])
    frame = seal.close(m.CommitRequest(TX, "p", 3))
    for spot in range(len(frame)):
        with pytest.raises(DecodeError):
            seal.open(frame[:spot] + bytes([frame[spot] ^ 1]) + frame[spot + 1 :])


def test_signed_members_cannot_speak_for_each_other() -> None:
    c, d = (SignedSeal(name, KEYS[name], PUBLIC) for name in ("c", "d"))
    for message in samples():
        speaker = message.tx.coordinator if hasattr(message, "tx") and message.tx else None
        if isinstance(message, m.Decision | m.Prepare | m.Census | m.Begin | m.Event | m.Called):
            assert speaker == "c"
            assert c.open(c.close(message)).sender == "c"
            with pytest.raises(SealBroken, match="may not send"):
                c.open(d.close(message))
    with pytest.raises(SealBroken, match="may not send Decline for 'c'"):
        c.open(d.close(m.Decline(TX, b"a", "c")))
    with pytest.raises(SealBroken, match="not on the list"):
        c.open(SignedSeal("e", KEYS["d"], {}).close(m.Decline(TX, b"a")))
    forged = decode_frame(d.close(m.Decline(TX, b"a")))
    with pytest.raises(SealBroken, match="not signed by"):
        c.open(encode_frame(Frame(forged.version, "c", forged.body, forged.seal)))


def test_relay_is_opened_and_must_prove_itself() -> None:
    seal = SecretSeal([b"the secret"])
    decision = m.Decision(TX, b"token")
    event = received(seal, seal.close(m.Relay(TX, seal.close(decision))))
    assert event is not None
    assert event.message == decision
    with pytest.raises(SealBroken):
        received(seal, seal.close(m.Relay(TX, BrokerSeal().close(decision))))
    assert received(seal, seal.close(m.Relay(TX, seal.close(m.Decline(TX, b"opinion"))))) is None


def test_tokens_settle_one_bit_and_link_nothing() -> None:
    ring, other = Keyring(b"one"), Keyring(b"two")
    second = m.TxId("c", "log", 2, "ab")
    assert reveals(ring.token(TX, "yes"), ring.pseudonym(TX).yes)
    assert not reveals(ring.token(TX, "no"), ring.pseudonym(TX).yes)
    assert not reveals(other.token(TX, "yes"), ring.pseudonym(TX).yes)
    assert not reveals(ring.token(second, "yes"), ring.pseudonym(TX).yes)
    assert member_hash(ring.pseudonym(TX)) != member_hash(ring.pseudonym(second))
    assert Keyring(b"one").member(TX) == ring.member(TX), "a restart derives the same"


def test_digest_covers_order_and_content() -> None:
    one, two = EVENT, m.Numbered(2, m.Item("orders", b"other"), "p")
    assert len({digest_of((one, two)), digest_of((two, one)), digest_of((one,)), digest_of(())}) == 4


FRAMES = int(os.environ.get("TXLAYER_FUZZ", "200000"))


def test_mutated_and_random_frames_give_a_decode_error_and_nothing_else() -> None:
    rng = random.Random(4)
    frames = [(seal, seal.close(message)) for seal in SEALS for message in samples()]
    survived: dict[type, int] = dict.fromkeys(map(type, SEALS), 0)
    for _ in range(FRAMES):
        seal, genuine = rng.choice(frames)
        frame = bytearray(genuine)
        for _ in range(rng.choice([1, 1, 2, 8])):
            spot = rng.randrange(len(frame))
            match rng.randrange(4):
                case 0:
                    frame[spot] = rng.randrange(256)
                case 1:
                    del frame[spot:]
                    frame += b"\xff"
                case 2:
                    frame[spot:spot] = rng.randbytes(rng.randrange(6))
                case _:
                    frame[spot] ^= 1 << rng.randrange(8)
        for opener in (seal, BrokerSeal()):
            try:
                received(opener, bytes(frame))
            except DecodeError:
                continue
            survived[type(opener)] += bytes(frame) != genuine
    assert survived[BrokerSeal] < FRAMES
    assert survived[SecretSeal] == survived[SignedSeal] == 0, "whatever was altered"


@settings(max_examples=2000, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_are_no_message_and_no_record(data: bytes) -> None:
    for seal in SEALS:
        try:
            received(seal, data)
        except DecodeError:
            continue
    try:
        record: AnyRecord = decode_record(data)
    except LogCorrupt:
        return
    encode_record(record)
