"""A private Apache Kafka broker in KRaft mode: broker and controller in one java process."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from txlayer.testing import certificates, kafka_jars, kafka_ready
from txlayer.testing.native import NativeServer
from txlayer.testing.process import ServerProcess, run
from txlayer.testing.server import ServerFailed

LOGGING = Path(__file__).with_name("kafka_log4j2.xml")
# Modest in memory, and quick to start rather than quick for hours.
JAVA_OPTIONS = ["-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]
DEFAULT_PROPERTIES: Mapping[str, object] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "INTERNAL",
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": False,
    # A broker that was killed is let back in only when its old session has ended: 9 s by default.
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 250,
    "num.network.threads": 2,
    "num.io.threads": 4,
    "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
    "log.cleaner.backoff.ms": 1_000,
}


class Kafka(NativeServer):
    """A broker with settings of its own.

    `properties` are broker properties with `_` for the dots (`message_max_bytes=1000`). With `sasl={"user":
    "password"}` clients must log in by SASL/PLAIN, with `tls=True` they talk TLS and `ca_file` is the certificate to
    trust; the URL names that listener.
    """

    kind = "kafka"
    ready_seconds = 120.0
    port_names = ("client", "internal", "controller")

    def __init__(self, *, sasl: Mapping[str, str] | None = None, tls: bool = False, **properties: object) -> None:
        self._java = kafka_jars.find_java()
        self._jars = kafka_jars.jars()
        self._sasl = sasl
        self._tls = tls
        self._properties = {name.replace("_", "."): value for name, value in properties.items()}
        self._formatted = False
        super().__init__()

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self.port}" + ("?tls=1" if self._tls else "")

    @property
    def ca_file(self) -> Path:
        return self.directory / "certificate.pem"

    def _prepare(self) -> None:
        if self._tls:
            key = self.directory / "key.pem"
            certificates.make(self.ca_file, key)
            self._key_store.write_bytes(key.read_bytes() + self.ca_file.read_bytes())
            self._key_store.chmod(0o600)

    def _configure(self, ports: Mapping[str, int]) -> None:
        access = {**self._login(), **self._keys()}
        properties = {**DEFAULT_PROPERTIES, **self._listeners(ports), **access, **self._properties}
        lines = [f"{name}={_value(value)}" for name, value in properties.items()]
        self._config.write_text("\n".join(lines) + "\n")
        self._config.chmod(0o600)
        if not self._formatted:
            self._format()

    def _listeners(self, ports: Mapping[str, int]) -> dict[str, object]:
        addresses = {name.upper(): f"{name.upper()}://127.0.0.1:{port}" for name, port in ports.items()}
        client = f"{'SASL_' if self._sasl else ''}{'SSL' if self._tls else 'PLAINTEXT'}"
        return {
            "listeners": ",".join(addresses.values()),
            "advertised.listeners": ",".join([addresses["CLIENT"], addresses["INTERNAL"]]),
            "listener.security.protocol.map": f"CLIENT:{client},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"1@127.0.0.1:{ports['controller']}",
            "log.dirs": self.directory / "data",
        }

    def _login(self) -> dict[str, object]:
        if not self._sasl:
            return {}
        users = " ".join(f'user_{user}="{password}"' for user, password in self._sasl.items())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.client.plain.sasl.jaas.config": f"{module} required {users};",
        }

    def _keys(self) -> dict[str, object]:
        if not self._tls:
            return {}
        prefix = "listener.name.client.ssl.keystore"
        return {f"{prefix}.type": "PEM", f"{prefix}.location": self._key_store}

    def _format(self) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        command = [*self._java_command(), "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}"]
        result = run([*command, "--config", str(self._config)], cwd=self.directory)
        if not result.succeeded:
            raise ServerFailed(f"Kafka could not format its data directory:\n{result.tail()}")
        self._formatted = True

    @property
    def _key_store(self) -> Path:
        return self.directory / "keys.pem"

    @property
    def _config(self) -> Path:
        return self.directory / "server.properties"

    def _java_command(self) -> list[str]:
        return [self._java, *JAVA_OPTIONS, f"-Dlog4j2.configurationFile={LOGGING}", "-cp", f"{self._jars}/*"]

    def _command(self) -> Sequence[str]:
        return [*self._java_command(), "kafka.Kafka", str(self._config)]

    def _ready(self, process: ServerProcess) -> bool:
        return "Kafka Server started" in process.output() and kafka_ready.ready(self.ports["internal"])


def _value(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value
