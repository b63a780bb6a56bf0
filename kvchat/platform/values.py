"""Data classes that are cheap to define.

The standard library compiles six methods of each class at import, which took a third of the time until a
command answered: kvchat has hundreds of such classes, and a run makes values of a few. Here comparison,
`repr` and immutability are the same functions for all, `__init__` is compiled with the first value, and
fields are described on request.
"""

import dataclasses
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from operator import attrgetter
from reprlib import recursive_repr
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, kw_only=False, eq=True):
        """Make a data class, as the standard library's decorator of this name does."""

        def make(cls):
            return _made(cls, frozen=frozen, slots=slots, kw_only=kw_only, eq=eq)

        return make if cls is None else make(cls)


_SET, _ABSENT = "_set", "_absent"
"""Names inside a compiled `__init__`: what sets a field of a frozen value; a default that is made anew."""
_DESCRIPTIONS = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
_DESCRIBING = RLock()


def _made(cls: type, *, frozen: bool, slots: bool, kw_only: bool, eq: bool) -> Any:
    own = cls.__dict__
    has_own_hash = own.get("__hash__") is not None
    cls.__doc__ = cls.__doc__ or cls.__name__  # made of the signature otherwise, which takes time
    made: Any = _slotted(cls) if slots else cls
    methods: dict[str, Any] = {"__init__": _lazy_init(made, frozen), "__repr__": _repr}
    methods["__replace__"] = _replace  # what `copy.replace` calls
    if eq:
        methods |= _lazy_comparison(made)
        if not frozen:
            methods["__hash__"] = None
    if frozen:
        methods |= {"__setattr__": _refuse_change, "__delattr__": _refuse_change}
        if slots:
            methods |= {"__getstate__": _state, "__setstate__": _restore}
    methods = {
        name: method
        for name, method in methods.items()
        if name not in own or (name == "__hash__" and not has_own_hash)
    }
    for name in _DESCRIPTIONS:
        methods[name] = _Description(name, made, cls, kw_only)
    for name, method in methods.items():
        setattr(made, name, method)
    return made


def _replace(self: Any, /, **changes: Any) -> Any:
    return dataclasses.replace(self, **changes)


def _slotted(cls: type) -> type:
    """Return the class again, with a slot for each of its fields."""
    names = [name for name, kind in cls.__annotations__.items() if not _is_of_class(kind)]
    above = {name for base in cls.__mro__[1:] for name in base.__dict__.get("__slots__", ())}
    left_out = {*names, "__dict__", "__weakref__"}
    contents = {name: value for name, value in cls.__dict__.items() if name not in left_out}
    contents["__slots__"] = tuple(name for name in names if name not in above)
    contents["__qualname__"] = cls.__qualname__
    return type(cls)(cls.__name__, cls.__bases__, contents)


def _is_of_class(kind: Any) -> bool:
    return kind is ClassVar or getattr(kind, "__origin__", None) is ClassVar


class _Description:
    """What the standard library says of a data class's fields, found out when it is first asked for.

    Args:
        name: the attribute that this stands for.
        made: the class that has it.
        plain: the class as it was written, with the defaults of its fields.
    """

    def __init__(self, name: str, made: Any, plain: Any, kw_only: bool) -> None:
        self._name = name
        self._made, self._plain = made, plain
        self._kw_only = kw_only

    def __get__(self, value: object, owner: type) -> Any:
        with _DESCRIBING:
            if self._made.__dict__[self._name] is self:
                self._describe()
        return self._made.__dict__[self._name]

    def _describe(self) -> None:
        made, plain = self._made, self._plain
        dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False, kw_only=self._kw_only)(
            plain
        )
        positional = tuple(one.name for one in fields(plain) if one.init and not one.kw_only)
        for name in _DESCRIPTIONS:
            setattr(made, name, plain.__dict__[name] if name != "__match_args__" else positional)


def _lazy_init(cls: Any, frozen: bool) -> Any:
    """Return an `__init__` that puts the compiled one in its place."""

    def __init__(self: Any, /, *values: Any, **named: Any) -> None:
        if cls.__init__ is __init__:
            cls.__init__ = _compiled_init(cls, frozen)
        cls.__init__(self, *values, **named)

    return __init__


def _compiled_init(cls: Any, frozen: bool) -> Any:
    names: dict[str, Any] = {_SET: object.__setattr__, _ABSENT: object()}
    plain: list[str] = ["self"]
    named: list[str] = []
    lines: list[str] = []
    for one in fields(cls):
        default, value = _default(one, names), one.name
        if one.init:
            (named if one.kw_only else plain).append(f"{one.name}={default}" if default else one.name)
            if default == _ABSENT:
                value = f"_new_{one.name}() if {one.name} is {_ABSENT} else {one.name}"
        elif default:
            value = f"_new_{one.name}()" if default == _ABSENT else default
        else:
            continue  # `__post_init__` sets it
        lines.append(f"{_SET}(self, {one.name!r}, {value})" if frozen else f"self.{one.name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join([*plain, "*", *named] if named else plain)
    body = "\n ".join(lines or ["pass"])
    exec(f"def __init__({parameters}):\n {body}", names)
    return names["__init__"]


def _default(one: Field[Any], names: dict[str, Any]) -> str | None:
    """Return what a field's default is called, and put what it stands for among the names."""
    if one.default_factory is not MISSING:
        names[f"_new_{one.name}"] = one.default_factory
        return _ABSENT
    if one.default is MISSING:
        return None
    names[f"_default_{one.name}"] = one.default
    return f"_default_{one.name}"


def _lazy_comparison(cls: Any) -> dict[str, Any]:
    """Return what compares and hashes values, and puts what does so by their fields in its place first."""

    def lazy(name: str) -> Any:
        def method(*values: Any) -> Any:
            if cls.__dict__[name] is method:
                setattr(cls, name, _comparing([one.name for one in fields(cls) if one.compare])[name])
            return cls.__dict__[name](*values)

        return method

    return {"__eq__": lazy("__eq__"), "__hash__": lazy("__hash__")}


def _comparing(compared: list[str]) -> dict[str, Any]:
    """Return what compares and hashes values by these fields, as tuples of them are."""
    # A getter of one name returns no tuple.
    get = attrgetter(*compared, *compared[:1]) if compared else type

    def __eq__(self: Any, other: object) -> bool:
        return get(self) == get(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(get(self))

    return {"__eq__": __eq__, "__hash__": __hash__}


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse_change(self: Any, name: str, value: object = None) -> None:
    raise FrozenInstanceError(f"cannot change field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)
