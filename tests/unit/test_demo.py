"""The demo tells what happened, not what it hopes."""

from __future__ import annotations

from rich.console import Console

from tests.conftest import eventually
from txlayer import demo
from txlayer.demo_timeline import Timeline


def test_what_is_said_is_shown_while_the_story_goes_on() -> None:
    console = Console(record=True, width=120)
    timeline = Timeline(console, ("office", "anna"))
    timeline.say("anna", "joins")
    eventually(lambda: "joins" in console.export_text(clear=False))
    timeline.close()


def test_the_demo_ends_in_agreement_after_a_refusal_an_undo_and_a_crash() -> None:
    console = Console(record=True, width=120)
    assert demo.run(console) == 0
    text = console.export_text()
    story = ["=> committed with 3 members", "=> committed with 2 members", "cancels it", "=> aborted by carl"]
    story += ["IS KILLED", "is started again", "Everyone agrees", "no lunch"]
    places = [text.find(part) for part in story]
    assert -1 not in places, text
    assert "writes B2, #2 of office" in text, "metadata beside the payload"
    assert places.index(max(places)) == len(places) - 1
    assert text.index("IS KILLED") < text.index("is started again") < text.rindex("commits")
