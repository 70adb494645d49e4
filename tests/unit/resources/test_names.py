"""The names of prepared transactions say all that recovery needs, and only ours are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlayer.errors import ResourceError
from txlayer.messages import TxId
from txlayer.resources.postgres_names import LONGEST, Names, ReadName, read_name

TEXT = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=8)


@given(TEXT, TEXT, TEXT, TEXT, TEXT, st.integers(0, 10**9), TEXT, st.integers(1, 9))
def test_a_name_is_read_as_it_was_written(
    site: str, resource: str, log: str, coordinator: str, incarnation: str, number: int, nonce: str, of: int
) -> None:
    tx = TxId(coordinator, incarnation, number, nonce)
    names = Names(site, resource, log, lambda tx: bytes(range(16)))
    try:
        gid = names.gid(tx, of)
    except ResourceError:
        return
    assert len(gid) <= LONGEST
    assert not set(gid) & set("'\\\"%s") - set("%s")
    name = read_name(gid)
    assert name == ReadName(site, resource, tx, log, of, bytes(range(8)))
    assert name.on((b"somebody else", bytes(range(16))))
    assert not name.on((bytes(range(1, 17)),))
    assert read_name(names.marker(tx)) == ReadName(site, resource, tx)
    assert gid.startswith(f"{names.marker(tx)}:")
    assert gid.startswith(names.prefix)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "txlayer1",
        "someone:else:1:2:3:4:5",
        "txlayer1:a:b:c:d:x:e",
        "txlayer2:a:b:c:d:1:e",
        "txlayer1:a:b:c:d:1:e:l:1:x",
    ],
)
def test_names_of_others_are_not_read(text: str) -> None:
    assert read_name(text) is None
