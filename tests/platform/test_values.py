"""Data classes that cost little to define: they do what the standard library's do."""

import copy
import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any, ClassVar

import pytest

from kvchat.platform import values

pytestmark = pytest.mark.pure

Decorator = Callable[..., Any]


@pytest.fixture(params=[values.dataclass, dataclasses.dataclass], ids=["ours", "the library's"])
def dataclass(request: pytest.FixtureRequest) -> Decorator:
    """Either decorator: every promise is the standard library's first."""
    made: Decorator = request.param
    return made


@values.dataclass(frozen=True, slots=True)
class Stored:
    """Something that is kept."""

    name: str
    parts: tuple[int, ...] = ()


def test_values_are_made_by_name_or_place_with_defaults_of_their_own(dataclass: Decorator) -> None:
    @dataclass(slots=True)
    class Value:
        one: int
        two: str = "b"
        many: list[int] = field(default_factory=list)
        by_name: int = field(default=4, kw_only=True)

    value, other = Value(1), Value(1, "c", by_name=5)
    value.many.append(3)
    assert (value.one, value.two, value.many, value.by_name) == (1, "b", [3], 4)
    assert (other.two, other.many, other.by_name) == ("c", [], 5)
    assert Value.__match_args__ == ("one", "two", "many")
    assert not hasattr(value, "__dict__")
    for wrong in ({}, {"one": 1, "three": 3}):
        with pytest.raises(TypeError, match="argument"):
            Value(**wrong)


def test_a_frozen_value_refuses_changes_and_is_a_key(dataclass: Decorator) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Value:
        one: int
        two: str = "b"
        aside: list[int] = field(default_factory=list, compare=False, repr=False)

    value = Value(one=1)
    assert value == Value(one=1, aside=[2]) != Value(one=2)
    assert {value: "found"}[Value(one=1, aside=[2])] == "found"
    assert repr(value).endswith("Value(one=1, two='b')")
    assert replace(value, two="c") == Value(one=1, two="c")
    assert asdict(value) == {"one": 1, "two": "b", "aside": []}
    for change in (lambda: setattr(value, "one", 2), lambda: delattr(value, "one")):
        with pytest.raises(FrozenInstanceError):
            change()
    with pytest.raises(TypeError):
        Value(1)
    assert value != dataclass(frozen=True)(type("Value", (), {"__annotations__": {"one": int}}))(1)


def test_what_a_class_defines_itself_stays(dataclass: Decorator) -> None:
    @dataclass(frozen=True, slots=True)
    class Value:
        kind: ClassVar[str] = "k"
        one: int
        seen: list[int] = field(default_factory=list, compare=False)

        def __post_init__(self) -> None:
            self.seen.append(self.one)

        def __repr__(self) -> str:
            return f"<{self.one}>"

    @dataclass(frozen=True, slots=True)
    class Loose:
        one: float

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Loose) and abs(self.one - other.one) < 1

        def __hash__(self) -> int:
            return 7

    assert Value(3).seen == [3]
    assert repr(Value(3)) == "<3>"
    assert [one.name for one in fields(Value)] == ["one", "seen"]
    assert Loose(1.0) == Loose(1.5)
    assert hash(Loose(1.0)) == 7


def test_one_that_changes_is_no_key_and_one_without_equality_is_itself(dataclass: Decorator) -> None:
    @dataclass(slots=True)
    class Changing:
        one: int

    @dataclass(slots=True, eq=False)
    class Itself:
        one: int
        late: int = field(init=False)

        def __post_init__(self) -> None:
            self.late = self.one + 1

    assert Changing(1) == Changing(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Changing(1))
    value = Itself(1)
    assert value == value != Itself(1)
    assert value.late == 2
    assert hash(value)


def test_a_class_below_has_the_fields_of_both(dataclass: Decorator) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Above:
        one: int
        two: int = 2

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Below(Above):
        three: int

    class Plain(Below):
        def total(self) -> int:
            return self.one + self.two + self.three

    assert Plain(one=1, three=3).total() == 6
    assert repr(Below(one=1, three=3)).endswith("Below(one=1, two=2, three=3)")
    assert Above(one=1) != Below(one=1, three=3)
    assert Above(one=1) == Above(one=1)


def test_a_value_is_copied() -> None:
    value = Stored("a", (1, 2))
    assert copy.deepcopy(value) == copy.copy(value) == value


def test_nothing_is_compiled_before_the_first_value() -> None:
    @values.dataclass(frozen=True, slots=True)
    class Value:
        one: int

    late = Value.__init__
    assert late.__code__.co_filename == values.__file__
    assert Value(1) == Value(1)
    assert Value.__init__ is not late
    assert Value.__init__.__code__.co_filename == "<string>"


@pytest.mark.parametrize("slots", [True, False])
def test_fields_are_described_once_when_somebody_asks_for_them(slots: bool) -> None:
    @values.dataclass(frozen=True, slots=slots)
    class Value:
        one: int
        many: list[int] = field(default_factory=list)

    assert not isinstance(vars(Value)["__dataclass_fields__"], dict)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: Value(1), range(8)))
    assert [one.name for one in fields(Value)] == ["one", "many"]
    assert found == [Value(1, [])] * 8
    assert len({id(value.many) for value in found}) == 8


@pytest.mark.parametrize("slots", [True, False])
def test_a_wrong_definition_says_what_is_wrong_each_time(slots: bool) -> None:
    @values.dataclass(slots=slots)
    class Value:
        many: list[int] = []

    for _ in range(2):
        with pytest.raises(ValueError, match="mutable default"):
            fields(Value)


@pytest.mark.parametrize("slots", [True, False])
def test_patterns_and_changed_copies_go_by_the_fields(slots: bool) -> None:
    @values.dataclass(frozen=True, slots=slots)
    class Value:
        one: int
        two: int = field(default=2, kw_only=True)

    match Value(1):
        case Value(one):
            assert one == 1
    assert Value.__match_args__ == ("one",)
    assert Value(1).__replace__(two=3) == Value(1, two=3)
