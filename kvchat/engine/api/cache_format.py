"""Cache formats as people write them: `int4`, `k=int8,v=int4`, `int4; layers 0-1=exact`, with an optional
view: `window:1024`.
"""

import re
from dataclasses import dataclass

from kvchat.engine.api.config import CACHE_FORMATS
from kvchat.engine.api.view import VIEWS, View, is_view, parse_view
from kvchat.errors import ConfigError

EXACT = "exact"
NAMES: dict[str, None] = dict.fromkeys(CACHE_FORMATS)
"""Of the forms that keys or values may have; `register_form` adds to them."""
_RANGE = re.compile(r"(\d{1,9})(?:\s*-\s*(\d{1,9}))?")


@dataclass(frozen=True, slots=True)
class SideFormat:
    """What becomes of keys, and of values."""

    key: str
    value: str

    @property
    def is_exact(self) -> bool:
        return self.key == self.value == EXACT

    def __str__(self) -> str:
        return self.key if self.key == self.value else f"k={self.key},v={self.value}"


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Layers [first, last] have a form of their own."""

    first: int
    last: int
    form: SideFormat

    def __str__(self) -> str:
        layers = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return f"layers {layers}={self.form}"


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """The form of each layer. Its text is read as the same format again.

    Args:
        form: of all layers but those in `ranges`.
        ranges: where a layer is in several of them, the last one counts.
        view: what queries see of blocks that are stored exact; None: all.
    """

    form: SideFormat
    ranges: tuple[LayerRange, ...] = ()
    view: View | None = None

    @property
    def is_exact(self) -> bool:
        return self.is_stored_exact and self.view is None

    @property
    def is_stored_exact(self) -> bool:
        """Whether what is stored is what was computed, however little of it is seen."""
        return self.form.is_exact and all(part.form.is_exact for part in self.ranges)

    @property
    def stored(self) -> str:
        """The format in which blocks are stored, and by which they are named."""
        return EXACT if self.view is not None else str(self)

    def form_of(self, layer: int) -> SideFormat:
        named = [part.form for part in self.ranges if part.first <= layer <= part.last]
        return named[-1] if named else self.form

    def is_named(self, layer: int) -> bool:
        """Whether the layer is in one of the ranges."""
        return any(part.first <= layer <= part.last for part in self.ranges)

    def __str__(self) -> str:
        return "; ".join(map(str, (self.form if self.view is None else self.view, *self.ranges)))


def parse_cache_format(text: str) -> CacheFormat:
    """Return the format that a text names.

    Raises:
        ConfigError: it names none; the message says how it is written.
    """
    first, *others = (part.strip() for part in text.split(";"))
    if is_view(first):
        if any(others):
            raise ConfigError(f"cache format '{text}': a view is one of all layers; write {first} alone")
        return CacheFormat(SideFormat(EXACT, EXACT), view=parse_view(first))
    ranges = tuple(part for other in others if other for part in _ranges(other))
    found = CacheFormat(_form(first), ranges)
    return CacheFormat(found.form) if found.is_exact else found


def canonical_cache_format(text: str) -> str:
    """Return the one way in which the format of a text is written; raises what `parse_cache_format` does."""
    return str(parse_cache_format(text))


def _ranges(text: str) -> list[LayerRange]:
    head, equals, form = text.partition("=")
    if not head.startswith("layers ") or not equals:
        raise ConfigError(f"'{text}' is no part of a cache format; write for instance layers 0-1=exact")
    return [_range(part.strip(), _form(form.strip())) for part in head.removeprefix("layers ").split(",")]


def _range(text: str, form: SideFormat) -> LayerRange:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"'{text[:40]}' names no layers in a cache format; write for instance layers 0-1=exact"
        )
    first = int(found[1])
    last = int(found[2] or first)
    if last < first:
        raise ConfigError(f"'{text}' names no layers in a cache format: write the smaller number first")
    return LayerRange(first, last, form)


def _form(text: str) -> SideFormat:
    if "=" not in text:
        return SideFormat(_name(text), _name(text))
    parts = dict(_side(part) for part in text.split(","))
    if len(text.split(",")) != 2 or set(parts) != {"k", "v"}:
        raise ConfigError(f"'{text}' is no cache format: keys and values apart are written k=int8,v=int4")
    form = SideFormat(parts["k"], parts["v"])
    if EXACT in (form.key, form.value) and not form.is_exact:
        raise ConfigError(
            f"'{text}' is no cache format: keys and values of a layer are quantised together, or both exact; "
            "int8 is the nearest to exact"
        )
    return form


def _side(text: str) -> tuple[str, str]:
    side, _, name = text.partition("=")
    return side.strip(), _name(name.strip())


def _name(text: str) -> str:
    if text not in NAMES:
        raise ConfigError(f"cache format '{text}' is unknown; use {', '.join((*NAMES, *VIEWS))}")
    return text
