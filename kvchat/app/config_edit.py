"""One setting put into a configuration file, or taken out; comments and order stay as a person wrote them."""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from kvchat.app.config import KEYS, file_text, read_layers, settings_in
from kvchat.errors import ConfigError, StorageError, UsageError
from kvchat.platform import parsing, private_files


def change_file(file: Path, name: str, written: str | None) -> str | None:
    """Write a setting into a file, None takes it out, and return its value as TOML.

    Raises:
        UsageError: the setting does not take the value.
        ConfigError: something in the file is wrong already, or cannot be changed safely, or would contradict
            what is set elsewhere; it stays as it is.
        StorageError: the file cannot be written.
    """
    before = file_text(file)
    settings_in(before, file)
    try:
        value = None if written is None else literal(name, written)
    except ValueError as error:
        raise UsageError(f"{name} {error}") from error
    after = with_setting(before, name, value)
    read_layers(config_file=file, document=after)
    write_private(file, after)
    return value


def literal(name: str, written: str) -> str:
    """Return a value as TOML: a number or a truth value as itself, everything else as text.

    Raises:
        ValueError: the setting does not take it; the message says what it takes.
    """
    value = KEYS[name].read(parsing.text(written))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?", written):
        return written
    text = json.dumps(str(value) if isinstance(value, Path) else written, ensure_ascii=False)
    return text.replace("\x7f", r"\u007f")  # which JSON lets stand and TOML does not


def with_setting(text: str, name: str, value: str | None) -> str:
    """Return a file's text with another value of a setting; None takes the setting out.

    Args:
        name: dotted, as in `KEYS`.
        value: as TOML.

    Raises:
        ConfigError: the file is written in a way that this cannot change safely.
    """
    section, _, key = name.rpartition(".")
    lines = text.splitlines()
    start, end = _section(lines, section)
    at = next((number for number in range(start, end) if _key_of(lines[number]) == key), None)
    new = [] if value is None else [f"{key} = {value}"]
    if at is not None:
        lines[at : at + 1] = new
    elif value is not None:
        if section and start == end == len(lines) and f"[{section}]" not in map(str.strip, lines):
            lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
            start = end = len(lines)
        place = max((number + 1 for number in range(start, end) if lines[number].strip()), default=start)
        lines[place:place] = new
    changed = "\n".join(lines) + "\n" if lines else ""
    _check(text, changed, name, value)
    return changed


def write_private(file: Path, text: str) -> None:
    """Replace a file at once, for its owner alone; where a link leads to it, the link stays."""
    file = Path(os.path.realpath(file))
    if file.exists() and not file.is_file():
        raise StorageError(f"{file} is not a regular file, and would be replaced by one; name another")
    with private_files.system_errors_as(StorageError, f"cannot write {file}"):
        private_files.write_private(file, text.encode())


def _section(lines: list[str], section: str) -> tuple[int, int]:
    """Return the half-open range of a section's lines; an empty one at the end where it is not there."""
    headers = [number for number, line in enumerate(lines) if line.lstrip().startswith("[")]
    if not section:
        return 0, headers[0] if headers else len(lines)
    for place, number in enumerate(headers):
        if lines[number].partition("#")[0].strip() == f"[{section}]":
            return number + 1, headers[place + 1] if place + 1 < len(headers) else len(lines)
    return len(lines), len(lines)


def _key_of(line: str) -> str:
    return line.partition("=")[0].strip().strip("\"'") if "=" in line else ""


def _check(before: str, after: str, name: str, value: str | None) -> None:
    """Refuse a change that is not what was asked for, as where a value goes over several lines."""
    section, _, key = name.rpartition(".")
    wanted = tomllib.loads(before)
    place = wanted.setdefault(section, {}) if section else wanted
    if value is None:
        place.pop(key, None)
    else:
        place[key] = tomllib.loads(f"value = {value}")["value"]
    try:
        found: Mapping[str, object] | None = tomllib.loads(after)
    except tomllib.TOMLDecodeError:
        found = None
    if found is None or _without_empty(found) != _without_empty(wanted):
        raise ConfigError(f"'{name}' cannot be changed safely here; change it with `kvchat config edit`")


def _without_empty(document: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in document.items() if value != {}}
