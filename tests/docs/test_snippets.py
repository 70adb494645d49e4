"""The Python snippets in README and docs run, page by page, on real brokers where they name one."""

from __future__ import annotations

import re
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

import pytest

from tests.sites.conftest import PATIENT
from txlayer import filters
from txlayer.site import Site
from txlayer.site_base import SiteBase

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_BROKERS = {
    "mqtt://localhost:1883": "mqtt_broker",
    "kafka://localhost:9092": "kafka_broker",
    "postgresql://localhost/ledger": "postgres_server",
}


def snippets(page: Path) -> str:
    """All Python of a page as one program, with its line numbers kept."""
    text = page.read_text()
    kept = [""] * text.count("\n")
    for block in _BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        lines = block[1].splitlines()
        kept[first : first + len(lines)] = lines
    return "\n".join(kept)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page leaves out who answers late; on a machine that stands still that would be anyone."""
    plan = SiteBase._plan

    def patiently(self: SiteBase, *args: Any, **terms: Any) -> Any:
        return plan(self, *args, **{**PATIENT, **terms})

    monkeypatch.setattr(SiteBase, "_plan", patiently)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page).strip()], ids=lambda page: page.stem)
def test_snippets_run(
    page: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block marked `py` instead of `python` is a fragment and is not run."""
    monkeypatch.chdir(tmp_path)
    program = snippets(page)
    for url, fixture in _BROKERS.items():
        if url in program:
            program = program.replace(url, request.getfixturevalue(fixture).url)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # now: the servers above outlive this test
    exec(compile(program, str(page), "exec"), {"__name__": "__main__"})


def test_the_reference_has_every_call_and_option_of_a_site_and_every_filter() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", reference))))
    calls = {name for cls in (Site, SiteBase) for name in vars(cls) if not name.startswith("_")}
    options = {*signature(SiteBase.__init__).parameters, *signature(SiteBase._plan).parameters}
    tests = {name for name, made in vars(filters).items() if signature_returns(made) == "Test"}
    internal = {"self", "type", "one_shot"}
    assert sorted((calls | options | tests) - words - internal) == []


def signature_returns(made: object) -> object:
    return signature(made).return_annotation if isfunction(made) else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []
