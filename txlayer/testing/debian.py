"""Programs from Debian packages, without installing them.

apt resolves and downloads into directories of ours, and the packages are unpacked by dpkg-deb. That needs no root and
changes nothing on the system. Packages that are installed already, such as the C library, are not downloaded again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from txlayer.testing.process import Finished, run
from txlayer.testing.server import ServerUnavailable

# The hooks are cleared because they act on the system's own cache. The sandbox user could not enter our directories.
APT_CONFIGURATION = """\
Dir::State::lists "{directory}/lists";
Dir::Cache "{directory}";
Dir::Cache::archives "{directory}/archives";
Dir::Log "{directory}";
Debug::NoLocking "true";
APT::Sandbox::User "";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""


def available() -> bool:
    return all(shutil.which(tool) for tool in ("apt-get", "dpkg-deb"))


def unpack_packages(names: Sequence[str], target: Path) -> None:
    """Download the packages and what they need beyond the installed ones, and unpack all into `target`."""
    work = target / "apt"
    for directory in ("lists/partial", "archives/partial"):
        (work / directory).mkdir(parents=True)
    configuration = work / "apt.conf"
    configuration.write_text(APT_CONFIGURATION.format(directory=work))
    apt = ["apt-get", "-c", str(configuration), "-qq"]
    # An update fails if any source of the system does, even one that is not needed here: the download decides.
    updated = _run([*apt, "update"])
    downloaded = _run([*apt, "-y", "--no-install-recommends", "--download-only", "install", *names])
    if not downloaded.succeeded:
        raise ServerUnavailable(f"apt-get failed:\n{updated.tail(1_000)}\n{downloaded.tail(1_000)}")
    for package in sorted((work / "archives").glob("*.deb")):
        unpacked = _run(["dpkg-deb", "-x", str(package), str(target)])
        if not unpacked.succeeded:
            raise ServerUnavailable(f"dpkg-deb failed:\n{unpacked.tail()}")
    shutil.rmtree(work)


def library_path(root: Path) -> str:
    """LD_LIBRARY_PATH for a program unpacked into `root`."""
    places = [*root.glob("usr/lib/*-linux-*"), *root.glob("lib/*-linux-*"), root / "usr/lib"]
    inherited = os.environ.get("LD_LIBRARY_PATH", "")
    return ":".join([*map(str, places), *filter(None, [inherited])])


def _run(command: Sequence[str]) -> Finished:
    return run(command, environment={"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"})
