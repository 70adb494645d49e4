"""The jars of a Kafka broker, resolved by Maven into the cache, and the java that runs them."""

from __future__ import annotations

import os
import pwd
import re
import shutil
from pathlib import Path

from txlayer.testing.cache import cache_directory, obtain
from txlayer.testing.process import run
from txlayer.testing.server import ServerUnavailable

POM = Path(__file__).with_name("kafka_pom.xml")
OLDEST_JAVA = 17
OTHERWISE = "or set TXLAYER_KAFKA_URL"


def kafka_version() -> str:
    found = re.search(r"<artifactId>kafka_2.13</artifactId>\s*<version>(.+?)</version>", POM.read_text())
    assert found, "the pom names the broker"
    return found[1]


def find_java() -> str:
    """`$JAVA_HOME/bin/java`, else the one on PATH; Kafka 4 needs Java 17."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    java = java or shutil.which("java")
    if java is None:
        raise ServerUnavailable(
            f"a Kafka broker needs Java {OLDEST_JAVA} or later: install openjdk-{OLDEST_JAVA}-jre-headless, {OTHERWISE}"
        )
    version = java_version(java)
    if version < OLDEST_JAVA:
        raise ServerUnavailable(f"{java} is Java {version}, a Kafka broker needs {OLDEST_JAVA} or later, {OTHERWISE}")
    return java


def java_version(java: str) -> int:
    """From the release file beside it, which saves starting a virtual machine; else by asking."""
    release = Path(java).resolve().parent.parent / "release"
    text = release.read_text() if release.is_file() else ""
    if "JAVA_VERSION=" not in text:
        text = run([java, "-version"]).output
    found = re.search(r'(?:JAVA_VERSION=|version )"(\d+)', text)
    return int(found[1]) if found else 0


def jars() -> Path:
    """A directory with all jars of the broker."""
    return obtain(f"kafka-{kafka_version()}", _resolve, usable=lambda jars: any(jars.glob("kafka_*.jar")))


def _resolve(target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ServerUnavailable(
            f"the jars of Kafka {kafka_version()} are fetched by Maven, and mvn is not on PATH: "
            f"install maven, {OTHERWISE}"
        )
    command = [maven, "-q", "-B", "-Dstyle.color=never", "-f", str(POM), "dependency:copy-dependencies"]
    command += [*_local_repository(), "-DincludeScope=runtime", f"-DoutputDirectory={target}"]
    result = run(command, cwd=target)
    if not result.succeeded:
        raise ServerUnavailable(
            f"Maven could not get the jars of Kafka {kafka_version()}; check its settings, {OTHERWISE}\n{result.tail()}"
        )


def _local_repository() -> list[str]:
    """Maven's own, unless it cannot be: java takes the home directory from the user database and not from HOME."""
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        home = ""
    return [] if os.access(home, os.W_OK) else [f"-Dmaven.repo.local={cache_directory() / 'maven'}"]
