"""Export formats of `kvchat export`, and the names of their files."""

from enum import StrEnum
from pathlib import Path


class Format(StrEnum):
    """A form in which a session leaves. Bundles and JSON hold the tree, the others one branch to read."""

    BUNDLE = "bundle"
    MARKDOWN = "md"
    JSON = "json"
    HTML = "html"

    @property
    def suffix(self) -> str:
        return ".kvchat" if self is Format.BUNDLE else f".{self.value}"

    @property
    def is_one_branch(self) -> bool:
        return self in (Format.MARKDOWN, Format.HTML)


_SUFFIXES = {format.suffix: format for format in Format} | {".markdown": Format.MARKDOWN, ".htm": Format.HTML}


def format_of(path: Path) -> Format | None:
    """Return what a file of this name holds, None where its name does not say."""
    return _SUFFIXES.get(path.suffix.lower())
