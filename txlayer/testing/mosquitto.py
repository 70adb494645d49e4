"""A private Mosquitto: the program from the system or from Debian's packages, a configuration of our own."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from txlayer.testing import certificates, debian
from txlayer.testing.cache import obtain
from txlayer.testing.native import NativeServer
from txlayer.testing.process import ServerProcess, run
from txlayer.testing.server import ServerUnavailable

# Past its queue limit Mosquitto drops messages without a word, and Nagle's algorithm costs 44 ms a round trip: tests
# that are not about this should not meet it.
DEFAULT_SETTINGS: Mapping[str, object] = {
    "allow_anonymous": True,
    "set_tcp_nodelay": True,
    "max_queued_messages": 0,
    "max_inflight_messages": 0,
    "sys_interval": 0,
    "persistence": False,
}
HASH_ROUNDS = 101


@dataclass(frozen=True)
class Program:
    path: Path
    environment: Mapping[str, str]

    def works(self) -> bool:
        """It starts, with all its libraries; `-h` prints the version and ends with 3."""
        try:
            return "mosquitto version" in run([self.path, "-h"], environment=self.environment).output
        except OSError:
            return False


def find_program() -> Program:
    """Mosquitto of the system, else from the cache, filled from Debian's packages if need be."""
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which("mosquitto", path=search)
    if found:
        return Program(Path(found), {})
    if not debian.available():
        raise ServerUnavailable(
            "mosquitto is not on PATH: install it (Debian and Ubuntu: the package mosquitto; macOS: brew install "
            "mosquitto), or set TXLAYER_MQTT_URL"
        )
    try:
        root = obtain("mosquitto", _unpack, usable=lambda root: _unpacked(root).works())
    except ServerUnavailable as exc:
        raise ServerUnavailable(
            f"mosquitto is not installed and could not be downloaded: apt-get install mosquitto, or set "
            f"TXLAYER_MQTT_URL. {exc}"
        ) from exc
    return _unpacked(root)


def _unpack(directory: Path) -> None:
    debian.unpack_packages(["mosquitto"], directory)
    if not _unpacked(directory).works():
        raise ServerUnavailable("the unpacked mosquitto does not run here")


def _unpacked(root: Path) -> Program:
    return Program(root / "usr/sbin/mosquitto", {"LD_LIBRARY_PATH": debian.library_path(root)})


class Mosquitto(NativeServer):
    """A Mosquitto with settings of its own.

    `settings` are lines of mosquitto.conf (`max_packet_size=1000`, `max_queued_messages=10`); with `persistence=True`
    the data are in `directory`. With `user` and `password` nobody else is let in. With `tls=True` the URL is mqtts and
    `ca_file` the certificate to trust.
    """

    kind = "mosquitto"

    def __init__(
        self, *, user: str | None = None, password: str | None = None, tls: bool = False, **settings: object
    ) -> None:
        self._program = find_program()
        self._credentials = (user, password or "") if user is not None else None
        self._tls = tls
        self._settings = settings
        super().__init__()

    @property
    def url(self) -> str:
        return f"{'mqtts' if self._tls else 'mqtt'}://127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> Path:
        return self.directory / "certificate.pem"

    def _prepare(self) -> None:
        if self._credentials:
            (self.directory / "passwords").write_text(password_line(*self._credentials))
            (self.directory / "passwords").chmod(0o600)
        if self._tls:
            certificates.make(self.ca_file, self.directory / "key.pem")

    def _configure(self, ports: Mapping[str, int]) -> None:
        listener = {"listener": f"{ports['client']} 127.0.0.1"}
        text = configuration({**listener, **self._special_settings(), **self._settings})
        (self.directory / "mosquitto.conf").write_text(text)

    def _special_settings(self) -> dict[str, object]:
        special: dict[str, object] = {"log_dest": "stderr", "persistence_location": f"{self.directory}/"}
        if os.geteuid() == 0:
            special["user"] = "root"  # it would become the user mosquitto, who may not exist
        if self._credentials:
            special |= {"allow_anonymous": False, "password_file": self.directory / "passwords"}
        if self._tls:
            special |= {"certfile": self.ca_file, "keyfile": self.directory / "key.pem"}
        return special

    def _command(self) -> Sequence[str]:
        return [str(self._program.path), "-c", str(self.directory / "mosquitto.conf")]

    def _environment(self) -> Mapping[str, str]:
        return self._program.environment

    def _ready(self, process: ServerProcess) -> bool:
        return re.search(r"mosquitto version \S+ running", process.output()) is not None


def configuration(settings: Mapping[str, object]) -> str:
    """The text of mosquitto.conf: these settings over our defaults."""
    # The listener comes first: what follows belongs to it.
    settings = {"listener": settings["listener"], **DEFAULT_SETTINGS, **settings}
    return "".join(f"{name} {_value(value)}\n" for name, value in settings.items())


def password_line(user: str, password: str) -> str:
    """A line of Mosquitto 2's password file, as mosquitto_passwd writes it."""
    salt = os.urandom(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, HASH_ROUNDS)
    return f"{user}:$7${HASH_ROUNDS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}\n"


def _value(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value
