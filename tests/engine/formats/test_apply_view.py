"""What layers keep over a view, and what cannot be seen in part."""

import pytest

from kvchat.engine.api.cache_format import canonical_cache_format, parse_cache_format
from kvchat.engine.api.ids import GroupId, root_key
from kvchat.engine.api.namespace import Namespace, parse_namespace
from kvchat.engine.formats.groups_in_format import stored_groups
from kvchat.engine.formats.spec import Group, group_layers
from kvchat.engine.formats.view_schedule import EXACT, ViewSchedules, in_sight
from kvchat.engine.formats.window.spec import WindowSpec
from kvchat.errors import ConfigError, InvalidRequest
from tests.engine.formats.test_groups_in_format import FULL, LATENT, SLIDING, group_of

pytestmark = pytest.mark.pure

P = 64


def window(budget: int = 1024) -> Group:
    (group,) = stored_groups([group_of(FULL)], f"window:{budget}", P)
    return group


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("window", "window:1024"),
        (" window : 2000 ", "window:2000"),
        ("knorm", "knorm:1024"),
        ("keydiff:64", "keydiff:64"),
        ("snapkv", "snapkv:1024"),
        ("snapkv:pyramid", "snapkv:1024:pyramid"),
        ("snapkv:2048:pyramid", "snapkv:2048:pyramid"),
        ("shadow", "shadow:1024"),
        (" shadow : 2000 ", "shadow:2000"),
        ("shadow:25%", "shadow:25%"),
        ("shadow:forced", "shadow:1024:forced"),
        ("shadow:100%:forced", "shadow:100%:forced"),
    ],
)
def test_a_view_is_written_in_one_way(text: str, written: str) -> None:
    assert canonical_cache_format(text) == written
    found = parse_cache_format(written)
    assert found == parse_cache_format(text)
    assert (found.is_exact, found.is_stored_exact, found.stored) == (False, True, "exact")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("window:0", "a whole number above 0"),
        ("window:-5", "a whole number above 0"),
        ("window:many", "a whole number above 0"),
        ("window:1e3", "a whole number above 0"),
        ("window:", "a whole number above 0"),
        ("window:" + "9" * 5000, "of at most 9 digits"),
        ("window:5:6", "write for instance window:1024"),
        ("window:pyramid", "only snapkv keeps a pyramid"),
        ("knorm:100:pyramid", "only snapkv keeps a pyramid"),
        ("snapkv:32", "would keep 32 tokens, and the last 32 of a prompt stay in any case"),
        ("keydiff:1", "would keep 1 tokens"),
        ("window:64:forced", "only a shadow is forced"),
        ("window:25%", "a whole number above 0"),
        ("shadow:0", "a whole number above 0"),
        ("shadow:%", "a whole number above 0"),
        ("shadow:2.5%", "a whole number above 0"),
        ("shadow:1024:pyramid", "only snapkv keeps a pyramid"),
        ("shadow:26%", "looks at 26 % of a context gains nothing"),
        ("shadow:101%:forced", "looks at 101 % of a context gains nothing"),
        ("window; layers 0=exact", "one of all layers"),
        ("shadow; layers 0=exact", "one of all layers"),
        ("int4; layers 0=window", "'window' is unknown"),
        ("k=window,v=int8", "'window' is unknown"),
    ],
)
def test_what_is_no_view_is_refused_with_what_to_write(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_cache_format(text)


def test_a_window_stores_blocks_as_the_exact_format_does() -> None:
    group = window()
    assert isinstance(group.spec, WindowSpec)
    assert group.spec.shapes(P) == FULL.shapes(P)
    assert (group.id, group.layers, group.spec.dtype) == (0, (0, 1), FULL.dtype)
    assert (group.spec.num_recent, group.spec.max_visible) == (16, 18 * P)


@pytest.mark.parametrize(("budget", "num_recent"), [(1, 1), (64, 1), (65, 2), (1000, 16)])
def test_a_query_sees_at_least_so_many_tokens(budget: int, num_recent: int) -> None:
    spec = window(budget).spec
    assert isinstance(spec, WindowSpec)
    assert spec.num_recent == num_recent
    assert all(position - spec.first_visible(position) >= min(position, budget) for position in range(2000))


def test_the_first_block_never_leaves_sight() -> None:
    group = window(128)
    view_schedule = ViewSchedules([group], P).of("a", "", 9)
    assert view_schedule.numbers(group, 10 * P, P) == [0, 8, 9]
    assert view_schedule.numbers(group, 10 * P + 1, P) == [0, 8, 9, 10]
    assert view_schedule.hidden_ranges(group, 3 * P + 63, P) == ()
    assert view_schedule.hidden_ranges(group, 4 * P, P) == ((1, 2),)
    assert view_schedule.first_tainted == 4


def test_sight_is_what_no_hole_covers() -> None:
    assert in_sight((), 3) == [0, 1, 2]
    assert in_sight(((1, 3), (5, 6)), 8) == [0, 3, 4, 6, 7]
    assert in_sight(((1, 30),), 8) == [0]


def test_layers_with_a_window_of_their_own_stay_as_they_are() -> None:
    """Trap 20."""
    groups = group_layers({0: SLIDING, 1: FULL}, {2: 1})
    found = stored_groups(groups, "window:128", P)
    assert [group.spec.kind for group in found] == ["sliding", "sinks and window"]
    assert found[0] == groups[0]
    assert found[1].borrowers == ((2, 1),)


@pytest.mark.parametrize("text", ["window", "knorm", "keydiff", "snapkv", "snapkv:pyramid", "shadow"])
def test_models_that_cannot_be_seen_in_part_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="one record for all its heads"):
        stored_groups([group_of(LATENT)], text, P)
    with pytest.raises(ConfigError, match="all of its layers have a window"):
        stored_groups([group_of(SLIDING)], text, P)


# Names


def test_names_descend_from_the_owner_where_something_is_out_of_sight() -> None:
    view_schedules = ViewSchedules([window(128)], P)
    key = root_key(b"\x01" * 32)
    own, again, other = (
        view_schedules.of("a", "", 9),
        view_schedules.of("a", "", 8),
        view_schedules.of("b", "", 9),
    )
    assert all(own.parent(number, key, 10_000) == key for number in (0, 3, 5))
    tainted = own.parent(4, key, 10_000)
    assert tainted not in (key, other.parent(4, key, 10_000))
    assert tainted == again.parent(4, key, 10_000)
    assert view_schedules.of("", str(Namespace(owner="a")), 9).parent(4, key, 10_000) == tainted
    assert view_schedules.of("", "", 9).parent(4, key, 10_000) != view_schedules.of("", "", 9).parent(
        4, key, 10_000
    )
    assert ViewSchedules([window(256)], P).of("a", "", 9).parent(5, key, 10_000) != tainted


def test_an_exact_sequence_has_the_exact_course_whoever_owns_it() -> None:
    view_schedules = ViewSchedules([group_of(FULL)], P)
    assert view_schedules.of("a", str(Namespace(owner="b", answer_starts=(3,))), 9) is EXACT
    assert EXACT.numbers(group_of(FULL), 130, P) == [0, 1, 2]
    assert EXACT.hidden_ranges(Group(id=GroupId(0), spec=SLIDING, layers=(0,)), 130, P) == ((0, 1),)


@pytest.mark.parametrize(
    "name",
    [
        Namespace(),
        Namespace(shared="bundle:00"),
        Namespace(shared="", owner="s1", answer_starts=(5,)),
        Namespace(shared="b", owner="s1", answer_starts=(1, 50, 700)),
    ],
)
def test_a_namespace_is_read_as_it_was_written(name: Namespace) -> None:
    assert parse_namespace(str(name)) == name
    assert parse_namespace(name.shared) == Namespace(shared=name.shared)


@pytest.mark.parametrize("text", ["\x1f", "\x1f\x1fx", "\x1f\x1f5,3", "\x1fa\x1f1,,2", "a\x1fb\x1f1\x1f2"])
def test_a_namespace_with_other_numbers_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="does not say where answers start"):
        parse_namespace(text)


@pytest.mark.parametrize("text", ["snapkv:128", "snapkv:128:pyramid"])
def test_what_goes_with_a_kept_token_counts_in_the_names_of_what_is_computed_then(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier rule has left of a prompt is not what this one would, so its blocks are not met."""
    groups = stored_groups([group_of(FULL)], text, P)
    salt = ViewSchedules(groups, P).of("a", "", 900).salt
    with monkeypatch.context() as changed:
        changed.setattr("kvchat.engine.formats.view_schedule.REACH", 2)
        assert ViewSchedules(groups, P).of("a", "", 900).salt != salt
        keydiff = stored_groups([group_of(FULL)], "keydiff:128", P)
        other = ViewSchedules(keydiff, P).of("a", "", 900).salt
    assert ViewSchedules(keydiff, P).of("a", "", 900).salt == other
    assert ViewSchedules(groups, P).of("a", "", 900).salt == salt
