"""Everything works on brokers that allow exactly what the table in docs/buses.md lists."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.conftest import DEADLINE, eventually
from tests.contract.conftest import BusWorld, ServerWorld
from tests.sites.conftest import Notes, Sites
from txlayer import Delivery, Identity, Status, at_least, ordered
from txlayer.testing.kafka import Kafka
from txlayer.testing.mosquitto import Mosquitto

PAGE = Path(__file__).parents[2] / "docs" / "buses.md"
DURABLE = "own-name"
ON_TOPICS = (AclOperation.CREATE, AclOperation.WRITE, AclOperation.READ, AclOperation.DESCRIBE)


def listed(pattern: str) -> list[str]:
    """The names that the table has."""
    table = PAGE.read_text().partition("## What a broker's access list must allow")[2].partition("\n## ")[0]
    return re.findall(pattern, table)


def use_everything(world: BusWorld, folder: Path) -> None:
    """Events, latest values, transactions, the ordered bus: on topics below `own`."""
    use_events(world)
    use_transactions(world, folder)
    use_the_ordered_bus(world)


def use_events(world: BusWorld) -> None:
    bus, inbox = world.connect(), list[Delivery]()
    bus.enter("somebody", Identity("log"))
    subscriptions = [
        bus.subscribe(bus.topic("own", "events"), inbox.append),
        bus.subscribe(bus.topic("own", "events"), inbox.append, durable=DURABLE),
    ]
    bus.publish(bus.topic("own", "events"), b"x").wait(DEADLINE)
    eventually(lambda: len(inbox) == 2)
    for subscription in subscriptions:
        subscription.unsubscribe()
        assert subscription.error is None


def use_transactions(world: BusWorld, folder: Path) -> None:
    sites, notes = Sites(world, folder), Notes()
    try:
        member = sites.member("member", "own/meetings", notes.handler("member"), log=sites.file("member"))
        publisher = sites.start("publisher", log=sites.file("publisher"))
        sites.know(publisher, "own/meetings", member)
        with publisher.transaction("own/meetings", {}, settle_for=at_least(1)) as tx:
            tx.publish({"time": "15:00"})
        assert tx.outcome is not None
        assert tx.outcome.status is Status.COMMITTED
        assert notes.of("member") == [{"time": "15:00"}]
    finally:
        sites.close()


def use_the_ordered_bus(world: BusWorld) -> None:
    inbox: list[Delivery] = []
    bus = ordered(world.url, sequencer="embedded", deadline=DEADLINE, connect_timeout=DEADLINE)
    try:
        bus.subscribe(bus.topic("own", "prices"), inbox.append)
        bus.publish(bus.topic("own", "prices"), b"x").wait(DEADLINE)
        eventually(lambda: [delivery.payload for delivery in inbox] == [b"x"])
    finally:
        bus.close()


def test_mosquitto_needs_to_allow_what_the_table_lists(
    private_mqtt_broker: Callable[..., Mosquitto], tmp_path: Path
) -> None:
    rules = tmp_path / "rules"
    allowed = ["own/#", *listed(r"`(txlayer/v1/[a-z]+/#)`")]
    rules.write_text("".join(f"topic readwrite {topic}\n" for topic in allowed))
    world = ServerWorld(private_mqtt_broker(acl_file=rules))
    try:
        use_everything(world, tmp_path)
    finally:
        world.close()


def test_kafka_needs_to_allow_what_the_table_lists(private_kafka_broker: Callable[..., Kafka], tmp_path: Path) -> None:
    broker = private_kafka_broker(
        sasl={"me": "word"},
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS",  # whoever does not log in: the broker itself, and this test
    )
    prefix, literal = ResourcePatternType.PREFIXED, ResourcePatternType.LITERAL
    topics = ["own.", *listed(r"`(txlayer\.v1\.[a-z]+\.)`")]
    rules = [_allow(ResourceType.TOPIC, topic, prefix, what) for topic in topics for what in ON_TOPICS]
    rules += [_allow(ResourceType.GROUP, group, prefix, AclOperation.READ) for group in listed(r"prefix `(txlayer-)`")]
    rules += [_allow(ResourceType.GROUP, DURABLE, literal, what) for what in (AclOperation.READ, AclOperation.DELETE)]
    cluster = (AclOperation.IDEMPOTENT_WRITE, AclOperation.DESCRIBE_CONFIGS)
    rules += [_allow(ResourceType.BROKER, "kafka-cluster", literal, what) for what in cluster]
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.ports['internal']}"})
    for answer in admin.create_acls(rules).values():
        answer.result(DEADLINE)
    world = ServerWorld(broker)
    world.url = f"kafka://me:word@{broker.address}"
    try:
        use_everything(world, tmp_path)
    finally:
        world.close()


def _allow(kind: ResourceType, name: str, pattern: ResourcePatternType, what: AclOperation) -> AclBinding:
    return AclBinding(kind, name, pattern, "User:me", "*", what, AclPermissionType.ALLOW)
