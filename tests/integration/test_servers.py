"""The servers themselves, spoken to with plain client libraries."""

from __future__ import annotations

import queue
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from txlayer.testing import native
from txlayer.testing.kafka import Kafka
from txlayer.testing.mosquitto import Mosquitto
from txlayer.testing.postgres import Postgres
from txlayer.testing.server import How, Server

paho = pytest.importorskip("paho.mqtt.client")
confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")
psycopg = pytest.importorskip("psycopg")

SECONDS = 30.0


class MqttClient:
    """A paho client whose events can be waited for."""

    def __init__(self, server: Server, name: str = "", **credentials: str) -> None:
        host, _, port = server.address.rpartition(":")
        self.connected: queue.Queue[Any] = queue.Queue()
        self.received: queue.Queue[bytes] = queue.Queue()
        self.subscribed: queue.Queue[Any] = queue.Queue()
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
        self.client.on_connect = lambda client, data, flags, reason, properties: self.connected.put((flags, reason))
        self.client.on_message = lambda client, data, message: self.received.put(message.payload)
        self.client.on_subscribe = lambda client, data, mid, reasons, properties: self.subscribed.put(reasons)
        if credentials:
            self.client.username_pw_set(credentials["user"], credentials["password"])
        if isinstance(server, Mosquitto) and server.url.startswith("mqtts"):
            self.client.tls_set_context(ssl.create_default_context(cafile=str(server.ca_file)))
        keep = paho.Properties(paho.PacketTypes.CONNECT)
        keep.SessionExpiryInterval = 3600
        self.client.connect(host, int(port), clean_start=not name, properties=keep if name else None)
        self.client.loop_start()
        self.flags, self.reason = self.connected.get(timeout=SECONDS)

    def subscribe(self, topic: str) -> None:
        self.client.subscribe(topic, qos=1)
        self.subscribed.get(timeout=SECONDS)

    def publish(self, topic: str, payload: bytes) -> None:
        self.client.publish(topic, payload, qos=1).wait_for_publish(SECONDS)

    def receive(self) -> bytes:
        return self.received.get(timeout=SECONDS)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@contextmanager
def mqtt_client(server: Server, name: str = "", **credentials: str) -> Iterator[MqttClient]:
    client = MqttClient(server, name, **credentials)
    try:
        yield client
    finally:
        client.close()


def kafka_settings(server: Server, **more: object) -> dict[str, object]:
    return {"bootstrap.servers": server.address, "log_level": 0, **more}


def create_topic(server: Server, topic: str) -> None:
    client = admin.AdminClient(kafka_settings(server))  # must outlive the request
    made = client.create_topics([admin.NewTopic(topic, 1, 1)])
    made[topic].result(SECONDS)


def produce(server: Server, topic: str, value: bytes) -> None:
    errors: list[object] = []
    producer = confluent_kafka.Producer(kafka_settings(server, **{"enable.idempotence": True}))
    producer.produce(topic, value, on_delivery=lambda error, message: errors.append(error))
    producer.flush(SECONDS)
    assert errors == [None]


def consume(server: Server, topic: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(kafka_settings(server, **{"group.id": "test", "enable.auto.commit": False}))
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(count, timeout=SECONDS)]
    finally:
        consumer.close()


def test_the_mqtt_broker_takes_and_gives_messages(mqtt_broker: Server) -> None:
    with mqtt_client(mqtt_broker) as client:
        client.subscribe("servers/test")
        client.publish("servers/test", b"hello")

        assert client.receive() == b"hello"


def test_an_idempotent_producer_works_on_the_kafka_broker(kafka_broker: Server) -> None:
    create_topic(kafka_broker, "servers-test")
    produce(kafka_broker, "servers-test", b"hello")

    assert consume(kafka_broker, "servers-test", 1) == [b"hello"]


def test_the_postgres_server_prepares_transactions(postgres_server: Server) -> None:
    with psycopg.connect(postgres_server.url) as connection:
        connection.tpc_begin("servers-test")
        connection.execute("select 1")
        connection.tpc_prepare()
        connection.tpc_rollback()


def test_postgres_servers_are_different_ones_and_kept(postgres_servers: Callable[[int], list[Server]]) -> None:
    two = postgres_servers(2)

    assert len({server.url for server in two}) == 2
    assert postgres_servers(1) == two[:1]


def test_a_killed_mosquitto_comes_back_with_its_sessions(private_mqtt_broker: Callable[..., Mosquitto]) -> None:
    broker = private_mqtt_broker(persistence=True)
    with mqtt_client(broker, "durable") as client:
        client.subscribe("servers/test")
    broker.restart()
    with mqtt_client(broker) as publisher:
        publisher.publish("servers/test", b"while away")
    url = broker.url

    broker.restart()
    with mqtt_client(broker, "durable") as client:
        assert client.flags.session_present
        assert client.receive() == b"while away"

    broker.kill()
    broker.restart()
    with mqtt_client(broker) as client:
        assert not client.reason.is_failure
    assert broker.how is How.NATIVE
    assert broker.url == url


def test_mosquitto_refuses_a_wrong_password(private_mqtt_broker: Callable[..., Mosquitto]) -> None:
    broker = private_mqtt_broker(user="alice", password="secret")

    with mqtt_client(broker, user="alice", password="secret") as client:
        assert not client.reason.is_failure
    with mqtt_client(broker, user="alice", password="wrong") as client:
        assert client.reason.is_failure
    assert "secret" not in repr(broker)


def test_mosquitto_speaks_tls_with_a_certificate_of_its_own(private_mqtt_broker: Callable[..., Mosquitto]) -> None:
    broker = private_mqtt_broker(tls=True)

    with mqtt_client(broker) as client:
        client.subscribe("servers/test")
        client.publish("servers/test", b"sealed")
        assert client.receive() == b"sealed"


def test_a_killed_kafka_comes_back_with_its_data(private_kafka_broker: Callable[..., Kafka]) -> None:
    broker = private_kafka_broker()
    create_topic(broker, "kept")
    produce(broker, "kept", b"before")
    url = broker.url

    broker.kill()
    broker.restart()
    produce(broker, "kept", b"after")

    assert consume(broker, "kept", 2) == [b"before", b"after"]
    assert broker.url == url


def test_kafka_refuses_a_wrong_password(private_kafka_broker: Callable[..., Kafka]) -> None:
    broker = private_kafka_broker(sasl={"alice": "secret"})

    def log_in(password: str) -> tuple[Any, queue.Queue[Any]]:
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN"}
        login |= {"sasl.username": "alice", "sasl.password": password}
        errors: queue.Queue[Any] = queue.Queue()
        return admin.AdminClient(kafka_settings(broker, error_cb=errors.put, **login)), errors

    client, _ = log_in("secret")
    assert client.list_topics(timeout=SECONDS).brokers
    client, errors = log_in("wrong")
    client.poll(SECONDS)
    assert errors.get(timeout=SECONDS).code() == confluent_kafka.KafkaError._AUTHENTICATION


@pytest.mark.parametrize("end", ["kill", "immediate", "fast"])
def test_prepared_transactions_survive(end: str, private_postgres_server: Callable[..., Postgres]) -> None:
    server = private_postgres_server()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("create table t (a int)")
        connection.execute("begin")
        connection.execute("insert into t values (1)")
        connection.execute("prepare transaction 'kept'")

    if end == "kill":
        server.kill()
        server.restart()
    else:
        server.restart(mode=end)  # type: ignore[arg-type]

    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("commit prepared 'kept'")
        assert connection.execute("select a from t").fetchall() == [(1,)]
        assert connection.execute("show fsync").fetchone() == ("on",)


def test_settings_reach_the_servers(
    private_mqtt_broker: Callable[..., Mosquitto], private_postgres_server: Callable[..., Postgres]
) -> None:
    broker = private_mqtt_broker(max_packet_size=100)
    with mqtt_client(broker) as client:
        client.subscribe("servers/test")
    with psycopg.connect(private_postgres_server(max_connections=7).url) as connection:
        assert connection.execute("show max_connections").fetchone() == ("7",)
    assert "max_packet_size 100" in (broker.directory / "mosquitto.conf").read_text()


@pytest.mark.parametrize("make", [Mosquitto, Kafka, Postgres])
def test_a_port_taken_between_draw_and_bind_is_replaced(
    make: type[native.NativeServer], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    draw = native.free_port
    factory = {Mosquitto: "private_mqtt_broker", Kafka: "private_kafka_broker", Postgres: "private_postgres_server"}
    start = request.getfixturevalue(factory[make])  # type: ignore[index]
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [other.getsockname()[1]]
        monkeypatch.setattr(native, "free_port", lambda: ports.pop() if ports else draw())

        server = start()

        assert server.port != other.getsockname()[1]
        assert server.running()
