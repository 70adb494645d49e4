"""Where downloaded servers are kept: outside the tree, made once, shared by parallel runs."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from txlayer.testing.server import ServerUnavailable


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/txlayer`, or `~/.cache/txlayer`."""
    base = os.environ.get("XDG_CACHE_HOME")
    directory = (Path(base) if base and os.path.isabs(base) else Path.home() / ".cache") / "txlayer"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ServerUnavailable(
            f"cannot make the cache directory {directory} ({exc.strerror}): set XDG_CACHE_HOME to a writable one"
        ) from exc
    return directory


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Exclude other processes that obtain the same thing. The lock dies with its holder."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def obtain(
    name: str,
    make: Callable[[Path], None],
    usable: Callable[[Path], bool] = Path.is_dir,
    directory: Path | None = None,
) -> Path:
    """The directory `name` of the cache, filled by `make` if it is not there yet or not usable any more.

    `make` works in a directory beside it, which is renamed when complete: a half-made one is never seen.
    """
    target = (directory or cache_directory()) / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir() and usable(target):
        return target
    with locked(target.with_name(f"{name}.lock")):
        if target.is_dir() and usable(target):
            return target
        shutil.rmtree(target, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{name}.", suffix=".partial", dir=target.parent))
        try:
            make(partial)
            partial.chmod(0o755)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target
