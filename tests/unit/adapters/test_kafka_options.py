"""What opens a Kafka bus, without a broker."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from txlayer.adapters.kafka_options import KafkaOptions, KafkaSettings, read_target
from txlayer.connect import parse
from txlayer.errors import UsageError


def read(url: str, **options: Any) -> tuple[KafkaSettings, KafkaOptions]:
    parsed = parse(url)
    return read_target(parsed, {**parsed.query, **options})


def test_servers_come_from_the_url() -> None:
    assert read("kafka://broker")[0].servers == "broker:9092"
    assert read("kafka://broker:1234")[0].servers == "broker:1234"
    assert read("kafka://[::1]:1234")[0].servers == "[::1]:1234"
    assert read("kafka://user:pw@one:1,two:2?partitions=3")[0].servers == "one:1,two:2"


def test_user_and_password_become_sasl_settings() -> None:
    settings = read("kafka://me:p%40ss@broker")[0].producer(1024, 1000)
    assert settings["security.protocol"] == "SASL_PLAINTEXT"
    assert settings["sasl.mechanism"] == "PLAIN"
    assert (settings["sasl.username"], settings["sasl.password"]) == ("me", "p@ss")


def test_tls_and_sasl_reach_every_client() -> None:
    settings, _ = read("kafka://me:pw@b?tls=true&sasl=SCRAM-SHA-512&ca=/ca.pem&cert=/c.pem&key=/k.pem")
    for client in (settings.admin(), settings.producer(1024, 1000), settings.consumer("g")):
        assert client["security.protocol"] == "SASL_SSL"
        assert client["sasl.mechanism"] == "SCRAM-SHA-512"
        assert client["ssl.ca.location"] == "/ca.pem"
        assert (client["ssl.certificate.location"], client["ssl.key.location"]) == ("/c.pem", "/k.pem")


@pytest.mark.parametrize("option", ["ca=/ca.pem", "cert=/c.pem", "key=/k.pem", "ssl.ca.location=/ca.pem"])
def test_options_of_tls_without_tls_are_refused_before_credentials_go_in_clear(option: str) -> None:
    with pytest.raises(UsageError, match=r"would not be encrypted; add tls=1"):
        read(f"kafka://me:pw@b?{option}")
    with pytest.raises(UsageError, match=r"tls.* would not be encrypted; security\.protocol is plaintext"):
        read(f"kafka://b?tls=1&{option}&security.protocol=plaintext")
    settings, _ = read(f"kafka://b?{option}&security.protocol=sasl_ssl")
    assert settings.admin()["security.protocol"] == "sasl_ssl"


def test_a_login_added_to_encrypted_settings_leaves_them_encrypted() -> None:
    own = {"bootstrap.servers": "b", "security.protocol": "ssl", "ssl.ca.location": "/ca.pem"}
    settings, _ = read_target(own, {"sasl": "PLAIN"})
    assert settings.admin()["security.protocol"] == "SASL_SSL"


def test_any_setting_of_the_client_can_be_given_by_url_or_config() -> None:
    settings, _ = read("kafka://b?linger.ms=7", config={"fetch.wait.max.ms": 3})
    assert settings.producer(1024, 1000)["linger.ms"] == "7"
    assert "fetch.wait.max.ms" not in settings.producer(1024, 1000)
    assert settings.consumer("g")["fetch.wait.max.ms"] == 3
    assert "linger.ms" not in settings.consumer("g")


def test_a_patient_consumer_asks_less_often_and_gets_events_as_soon() -> None:
    settings, _ = read("kafka://b")
    swift, patient = settings.consumer("g"), settings.consumer("g", patient=True)
    assert {name for name in swift if swift[name] != patient[name]} == {"fetch.wait.max.ms", "logger"}
    assert swift.keys() == patient.keys()
    assert swift["fetch.wait.max.ms"] < patient["fetch.wait.max.ms"]


def test_the_buffer_bounds_events_too_because_the_client_counts_payloads_only() -> None:
    settings, options = read("kafka://b")
    assert settings.producer(options.buffer_bytes, 1000)["queue.buffering.max.messages"] == 262_144
    assert settings.producer(1024, 1000)["queue.buffering.max.messages"] == 1_000
    with pytest.raises(UsageError, match=r"queue\.buffering\.max\.messages"):
        read("kafka://b", config={"queue.buffering.max.messages": 0})


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_timeout_is_a_time(seconds: float) -> None:
    with pytest.raises(UsageError, match="connect_timeout"):
        read("kafka://b", connect_timeout=seconds)


def test_the_users_own_dict_is_taken() -> None:
    settings, options = read_target({"bootstrap.servers": "b:1", "linger.ms": 9}, {"partitions": 4})
    assert (settings.servers, options.partitions) == ("b:1", 4)
    assert settings.producer(1024, 1000)["linger.ms"] == 9


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ({"linger.ms": 1}, {}, "bootstrap.servers"),
        ({"bootstrap.servers": "b", "acks": "1"}, {}, "acks"),
        ({"bootstrap.servers": "b", "group.id": "mine"}, {}, "group.id"),
        ({"bootstrap.servers": "b", "error_cb": print}, {}, "callbacks"),
        ({"bootstrap.servers": "b"}, {"partitons": 2}, "partitons"),
        ({"bootstrap.servers": "b"}, {"partitions": 0}, "partitions"),
    ],
)
def test_what_cannot_work_is_refused(target: dict[str, Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_target(target, options)


def test_settings_that_say_what_is_the_case_anyway_are_no_error() -> None:
    read_target({"bootstrap.servers": "b", "acks": "all", "enable.auto.commit": False}, {})


def test_credentials_are_in_no_repr_and_no_message() -> None:
    url = parse("kafka://me:hunter2@broker?tls=true")
    settings, options = read_target(url, {**url.query, "config": {"ssl.key.password": "hunter2"}})
    shown = f"{url!r} {url} {settings!r} {options!r} {settings.redact('bad value hunter2')}"
    assert "hunter2" not in shown


def test_a_batch_is_never_larger_than_the_broker_takes() -> None:
    settings = read("kafka://b")[0].producer(64 * 1024, 10_000)
    assert settings["message.max.bytes"] == settings["batch.size"] == 10_000
    assert settings["queue.buffering.max.kbytes"] == 64


def test_a_missing_driver_names_the_pip_command() -> None:
    script = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "import txlayer\n"
        "try: txlayer.connect('kafka://broker')\n"
        "except txlayer.errors.MissingExtra as exc: print(exc)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert 'pip install "txlayer[kafka]"' in result.stdout
