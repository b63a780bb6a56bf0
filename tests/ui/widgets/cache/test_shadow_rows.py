"""The rows about shadows: what each layer's take, and how often what is chosen is at hand."""

from dataclasses import replace

import pytest

from kvchat.engine.api.ids import GroupId
from kvchat.engine.api.snapshot import LayerUsage, ShadowUsage
from kvchat.ui.widgets.cache.panel_sections import shadow_rows
from kvchat.ui.widgets.cache.row_view import row_text

pytestmark = pytest.mark.pure

SHADOW = ShadowUsage(device_bytes=3 * 2**20, seen_tokens=1240, wanted_chunks=200, fetched_chunks=30)


def layer(number: int, shadow: ShadowUsage | None) -> LayerUsage:
    return LayerUsage(
        layer=number,
        group=GroupId(0),
        kind="shadow" if shadow else "sliding",
        window=None,
        used_bytes=0,
        shared_bytes=0,
        cached_bytes=0,
        total_bytes=0,
        shadow=shadow,
    )


def lines(layers: list[LayerUsage], width: int = 44, *, expanded: bool = False) -> list[str]:
    return [row_text(row) for row in shadow_rows(layers, width, expanded=expanded)]


def test_all_layers_share_a_row_with_the_sums_of_their_bytes_and_choices() -> None:
    other = replace(SHADOW, wanted_chunks=200, fetched_chunks=70)
    assert lines([layer(0, SHADOW), layer(1, other)]) == [
        "shadows         beside blocks · chosen again",
        "L0-L1 ×2                      6.0 MiB · 75 %",
        "a step looks at                 1,240 tokens",
    ]


def test_expanded_every_layer_has_a_row() -> None:
    found = lines([layer(0, SHADOW), layer(1, None), layer(2, SHADOW)], expanded=True)
    assert found[1:3] == [
        "L0                            3.0 MiB · 85 %",
        "L2                            3.0 MiB · 85 %",
    ]
    assert lines([layer(0, SHADOW), layer(1, None), layer(2, SHADOW)])[1].startswith("L0…L2 ×2 ")


def test_where_no_shadow_is_kept_nothing_is_said() -> None:
    idle = replace(SHADOW, device_bytes=0)
    assert lines([layer(0, None), layer(1, idle)]) == []


def test_what_was_never_chosen_is_unknown() -> None:
    fresh = replace(SHADOW, wanted_chunks=0, fetched_chunks=0, seen_tokens=0)
    assert lines([layer(3, fresh)])[1].endswith("· –")


@pytest.mark.parametrize("width", [6, 20, 34, 60])
def test_no_row_is_wider_than_the_panel(width: int) -> None:
    assert all(len(line) <= width for line in lines([layer(0, SHADOW), layer(1, SHADOW)], width))
