"""Formats that look at long contexts through a shadow: what a step sees, where one begins, and names."""

from functools import partial

import pytest

from kvchat.engine.api.ids import BlockKey, root_key
from kvchat.engine.api.namespace import Namespace
from kvchat.engine.api.view import View, parse_view
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.groups_in_format import stored_groups
from kvchat.engine.formats.shadow.settings import GAIN_FACTOR, least_prompt, settings_for
from kvchat.engine.formats.shadow.spec import ShadowSpec
from kvchat.engine.formats.spec import Group, group_layers
from kvchat.engine.formats.view_schedule import ViewSchedule, ViewSchedules, schedule_over, shadow_points
from kvchat.errors import ConfigError
from tests.engine.formats.test_groups_in_format import SLIDING, group_of

pytestmark = pytest.mark.pure

P = 64
WIDE = FullSpec(num_kv_heads=8, head_dim_k=64, head_dim_v=64, dtype="BF16")
NARROW = FullSpec(num_kv_heads=2, head_dim_k=128, head_dim_v=128, dtype="BF16")


def shadowed(text: str) -> Group:
    (group,) = stored_groups([group_of(WIDE)], text, P)
    return group


# What a step looks at


@pytest.mark.parametrize("budget", [1, 64, 1000, 1024, 2048])
def test_a_number_of_tokens_is_chosen_beside_outliers_in_the_published_ratio(budget: int) -> None:
    settings = settings_for(View(rule="shadow", budget=budget), 100_000)
    assert budget <= settings.budget < budget + 8
    assert settings.num_outliers == settings.budget * 24 // 1024


@pytest.mark.parametrize("num_tokens", [2048, 2000, 4096, 61_440])
@pytest.mark.parametrize("share", [10, 25])
def test_a_share_is_all_that_a_step_looks_at(share: int, num_tokens: int) -> None:
    """Outliers, the first chunk and the tail with its part of a chunk included."""
    settings = settings_for(parse_view(f"shadow:{share}%"), num_tokens)
    tail_len = 4 * 8 + num_tokens % 8
    seen = settings.budget + settings.num_always * 8 + tail_len
    assert seen <= share * num_tokens / 100 < seen + 4 * 8


@pytest.mark.parametrize("text", ["shadow:64", "shadow:1024", "shadow:25%", "shadow:10%"])
def test_prompts_get_a_shadow_from_where_it_gains_something(text: str) -> None:
    view = parse_view(text)
    least = least_prompt(view)
    assert least >= GAIN_FACTOR * settings_for(view, least).step_len
    forced = parse_view(f"{text}:forced")
    assert least_prompt(forced) < least
    assert least_prompt(forced) >= settings_for(forced, least_prompt(forced)).least_len


# Which layers


def test_full_layers_alone_are_looked_at_through_a_shadow() -> None:
    """Trap 20: layers with a window of their own keep it; blocks are those of the exact format."""
    groups = group_layers({0: SLIDING, 1: WIDE})
    found = stored_groups(groups, "shadow:64", P)
    assert [group.spec.kind for group in found] == ["sliding", "shadow"]
    assert found[0] == groups[0]
    assert isinstance(found[1].spec, ShadowSpec)
    assert found[1].spec.shapes(P) == WIDE.shapes(P)
    assert (found[1].layers, found[1].spec.dtype) == ((1,), "BF16")


def test_layers_that_borrow_keys_can_have_no_shadow() -> None:
    with pytest.raises(ConfigError, match="layer 2 of this model, which reads the keys of layer 1"):
        stored_groups(group_layers({0: SLIDING, 1: WIDE}, {2: 1}), "shadow", P)


def test_keys_that_are_hardly_larger_than_their_shadow_are_refused_unless_it_is_forced() -> None:
    with pytest.raises(ConfigError, match=r"keys of 2 x 128 = 256 numbers in layer 0 .* more than 256"):
        stored_groups([group_of(NARROW)], "shadow:64", P)
    (group,) = stored_groups([group_of(NARROW)], "shadow:64:forced", P)
    assert isinstance(group.spec, ShadowSpec)


def test_no_shadow_takes_anything_of_a_prompt_that_gets_none() -> None:
    spec = shadowed("shadow:64").spec
    least = least_prompt(parse_view("shadow:64"))
    beside = partial(spec.beside_bytes, in_host_memory=False)
    assert beside(least - 1) == WIDE.beside_bytes(10**6, in_host_memory=False) == 0
    assert beside(least) > 0
    assert beside(61_440) < 1.2 * 61_440 * WIDE.token_bytes


# Where it begins, and names


def test_a_shadow_begins_behind_the_first_long_prompt_and_anew_when_the_text_has_doubled() -> None:
    view = parse_view("shadow:64")
    least = least_prompt(view)
    ends = (least - 1, least, 2 * least - 1, 2 * least, 3 * least, 5 * least)
    assert [prune_point.at for prune_point in shadow_points(ends, view)] == [least, 2 * least, 5 * least]
    assert shadow_points((least - 1,), view) == ()


def course(*starts: int, owner: str = "a", text: str = "shadow:64:forced") -> ViewSchedule:
    namespace = str(Namespace(owner=owner, answer_starts=starts))
    return ViewSchedules([shadowed(text)], P).of("", namespace)


def test_what_is_computed_behind_its_beginning_is_of_that_session_alone() -> None:
    """The block of the prompt's end is not exact any more: the answer begins within it."""
    key = root_key(b"\x01" * 32)

    def parent(of: ViewSchedule, number: int) -> BlockKey:
        return of.parent(number, key, 10_000)

    own = course(300)
    assert all(parent(own, number) == key for number in (0, 3, 5))
    assert parent(own, 4) != key
    assert parent(own, 4) == parent(course(300), 4)
    others = (course(300, owner="b"), course(301), course(300, text="shadow:72:forced"))
    assert parent(own, 4) not in [parent(other, 4) for other in others]
    assert own.parent(4, key, 299) == key
    assert (
        schedule_over(parse_view("shadow:64:forced"), P, str(Namespace(owner="a", answer_starts=(300,))))
        == own
    )


def test_steps_end_where_a_shadow_begins_and_where_queries_choose_anew() -> None:
    own = course(300, 700)
    assert own.step_len(0, 200) == 200
    assert own.step_len(200, 500) == 100
    assert own.step_len(300, 1) == 1
    assert own.step_len(300, 100) == 384 - 300
    assert own.step_len(384, 100) == 64
    assert own.step_len(384, 30) == 30
    assert own.step_len(640, 100) == 60
    assert [own.shadow_start(length) for length in (0, 299, 300, 699, 700, 900)] == [
        None,
        None,
        300,
        300,
        700,
        700,
    ]


def test_all_blocks_stay_in_sight() -> None:
    own = course(300)
    group = shadowed("shadow:64:forced")
    assert own.numbers(group, 1000, P) == list(range(16))
    assert own.kept_names(own.prune_points[0], (), ()) == {}


@pytest.mark.parametrize("number", [4, 5])
def test_exact_sequences_of_the_same_session_are_named_apart(number: int) -> None:
    exact = ViewSchedules([group_of(WIDE)], P).of("", str(Namespace(owner="a", answer_starts=(300,))))
    key = root_key(b"\x01" * 32)
    assert exact.parent(number, key, 1000) == key
