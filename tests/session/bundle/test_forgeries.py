"""Whatever stands in a record, with digests that are right: a bundle is read or refused, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvchat.errors import BundleError
from kvchat.session.bundle.reader import read_blocks, read_bundle, renamed
from kvchat.session.store import SessionStore
from kvchat.session.tree import path_token_ids
from tests.session.bundle.bundles import write_records
from tests.session.bundle.test_reader import small_records

pytestmark = [pytest.mark.pure, pytest.mark.long]

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["main", "\ud800", "../..", "\x1b[2J", "ab" * 32]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, name) inside a JSON value."""
    found: list[tuple[Any, Any]] = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        found += [(value, name), *places(inner)]
    return found


ODD: tuple[Any, ...] = (None, True, -1, 2**70, 1e300, "x", "\ud800", [], {"": 0})


@pytest.mark.parametrize("at", [0, 1, 2, 5, 6, -1])
def test_an_odd_value_in_every_place_is_read_or_refused(at: int, tmp_path: Path) -> None:
    for place in range(len(places(small_records()[at][1]))):
        for value in ODD:
            records = small_records()
            container, name = places(records[at][1])[place]
            container[name] = value
            check(write_records(tmp_path / "forged.kvchat", *records))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_anywhere_is_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    records = small_records()
    _, header, _ = records[data.draw(st.sampled_from([0, 1, 5, -1]))]
    container, name = data.draw(st.sampled_from(places(header)))
    if data.draw(st.booleans()):
        container[name] = data.draw(VALUES)
    else:
        del container[name]
    check(write_records(tmp_path / "forged.kvchat", *records), tmp_path)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_records_left_out_doubled_or_moved_are_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    records = small_records()
    order = data.draw(st.lists(st.sampled_from(range(len(records))), min_size=1, max_size=len(records) + 2))
    check(write_records(tmp_path / "forged.kvchat", *(records[at] for at in order)), tmp_path)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_other_bodies_are_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    records = small_records()
    at = data.draw(st.integers(1, len(records) - 2))
    kind, header, _ = records[at]
    records[at] = (kind, header, data.draw(st.binary(max_size=80)))
    check(write_records(tmp_path / "forged.kvchat", *records), tmp_path)


def check(path: Path, home: Path | None = None) -> None:
    """Read a forged file; what is believed of it must hold together, and go into a store (in `home`)."""
    try:
        bundle = read_bundle(path)
    except BundleError:
        return
    kv = bundle.manifest.kv
    if kv is not None:
        blocks = list(read_blocks(path, bundle))
        names = renamed(bundle.turns, kv, bundle.namespace)
        assert bundle.num_blocks == len(blocks)
        assert all(block.parent in names for block in blocks)
    if home is None:
        return
    store = SessionStore(home / "sessions.db")
    session = store.adopt(bundle.session(model="", namespace=""), bundle.branches, bundle.turns)
    for branch in store.branches(session.id):
        path_token_ids(store.turns_to(branch.leaf_id))
    assert store.find(session.id) == session
    store.close()
