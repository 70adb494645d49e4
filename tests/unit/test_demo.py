"""The demo tells what happened, not what it hopes."""

from __future__ import annotations

from rich.console import Console

from txlayer import demo


def test_demo_shows_events_with_their_metadata_and_who_is_there() -> None:
    console = Console(record=True, width=100)
    assert demo.run(console) == 0
    text = console.export_text()
    assert text.count("Time(time='15:00')") == 2  # the calendar, and later the archive
    assert "meeting.time #2" in text
    assert "board (alive), calendar (alive), office (alive)" in text
