import multiprocessing
from pathlib import Path

import pytest

from txlayer.testing.cache import cache_directory, obtain
from txlayer.testing.server import ServerUnavailable


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "txlayer"


def fill(target: Path) -> None:
    with (target.parent / "made").open("a") as made:
        made.write("x")
    (target / "jar").write_text("content")


def obtain_thing(barrier: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    obtain("thing", fill)


def test_the_cache_is_where_xdg_says(cache: Path) -> None:
    assert cache_directory() == cache


def test_without_xdg_the_cache_is_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert cache_directory() == tmp_path / ".cache/txlayer"


def test_a_cache_that_cannot_be_made_says_how_to_choose_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    with pytest.raises(ServerUnavailable, match="set XDG_CACHE_HOME"):
        cache_directory()


def test_a_thing_is_made_once(cache: Path) -> None:
    assert obtain("thing", fill) == obtain("thing", fill) == cache / "thing"
    assert (cache / "made").read_text() == "x"


def test_parallel_runs_make_it_once(cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(4)
    runs = [context.Process(target=obtain_thing, args=(barrier,)) for _ in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(60)

    assert [run.exitcode for run in runs] == [0] * 4
    assert (cache / "made").read_text() == "x"


def test_what_could_not_be_made_leaves_nothing(cache: Path) -> None:
    def fail(target: Path) -> None:
        (target / "half").touch()
        raise ServerUnavailable("no network")

    with pytest.raises(ServerUnavailable):
        obtain("thing", fail)
    assert [path.name for path in cache.iterdir()] == ["thing.lock"]


def test_what_is_not_usable_any_more_is_made_again(cache: Path) -> None:
    obtain("thing", fill)

    obtain("thing", fill, usable=lambda target: len((cache / "made").read_text()) > 1)

    assert (cache / "made").read_text() == "xx"
