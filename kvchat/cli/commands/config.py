"""`kvchat config`: what is set and by whom, and your own configuration file."""

import json
import os
import subprocess
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from kvchat.app.config import (
    KEYS,
    deciding_origins,
    default_settings,
    did_you_mean,
    overruling_origin,
    own_file,
    read_layers,
    read_settings,
    value_of,
)
from kvchat.app.config_edit import change_file, write_private
from kvchat.cli.output.streams import Output, Status, as_json, tell, tell_done
from kvchat.cli.parser.options import EngineOptions, Json, ListOptions, Ndjson, PlaceOptions
from kvchat.cli.parser.shell_completion import complete_setting
from kvchat.cli.parser.typer_parameters import Argument, Option, option_class
from kvchat.errors import UsageError
from kvchat.platform.parsing import OneOf, OrNone, integer, number, parse_size, positive, yes_or_no
from kvchat.text.fit_text import one_line
from kvchat.ui.terminal.editor import editor_command


@option_class
class ShowOptions(EngineOptions):
    """Any flag may be given, to see what it overrules."""

    json: Json = False
    ndjson: Ndjson = False


@option_class
class SetOptions(ListOptions):
    name: Annotated[
        str, Argument(help="As `config show` names it.", metavar="NAME", autocompletion=complete_setting)
    ]
    value: Annotated[
        str | None, Argument(help="The value; `none` lifts a limit.", metavar="VALUE", show_default=False)
    ] = None
    unset: Annotated[bool, Option("--unset", help="Take the setting out of the file.")] = False


_DEFAULT = "default"
_INDENT = 4
_MOST_COLUMN = 60
_KINDS = {integer: "integer", positive: "integer", number: "number", yes_or_no: "boolean"}
_DRAFT = "# Settings of kvchat; `kvchat config schema` lists them all.\n"


def show_config(options: ShowOptions) -> None:
    """Show all settings, and where each comes from."""
    flags = options.flags()
    layers = read_layers(flags, config_file=options.config)
    settings = read_settings(flags, config_file=options.config)
    origins = deciding_origins(layers)
    output = Output()
    values = {
        name: {"value": _plain(value_of(settings, name)), "from": origins.get(name, _DEFAULT)}
        for name in KEYS
    }
    if options.ndjson:
        for name, value in values.items():
            output.json({"name": name} | value)
        return
    if options.json:
        output.json({"settings": values, "paths": {n: str(p) for n, p in asdict(settings.paths).items()}})
        return
    rows = []
    for name in KEYS:
        written = json.dumps(_plain(value_of(settings, name)), ensure_ascii=False)
        shown = one_line(f"{name} = {'none' if written == 'null' else written}")
        rows.append((shown, f"# {one_line(origins.get(name, _DEFAULT))}"))
    output.columns(rows, indent=_INDENT, most=_MOST_COLUMN)
    status = Status(quiet=options.quiet)
    for layer in layers:
        for name in layer.values:
            if origins[name] != layer.origin:
                status.note(f"{layer.origin} sets {name} too; {origins[name]} overrides it")


def set_value(options: SetOptions) -> None:
    """Write one setting into the person's configuration file."""
    name = options.name
    if name not in KEYS:
        raise UsageError(f"there is no setting '{name}'{did_you_mean(name, KEYS)}")
    if (options.value is None) is not options.unset:
        raise UsageError(f"give a value, or --unset: kvchat config set {name} VALUE")
    file = own_file(options.config)
    value = change_file(file, name, options.value)
    overruled_by = overruling_origin(name, file, read_layers(config_file=options.config))
    written = None if value is None else tomllib.loads(f"value = {value}")["value"]
    notes = [f"{name} is no longer set in {file}" if value is None else f"{name} = {value} in {file}"]
    if overruled_by is not None:
        notes.append(f"{overruled_by} overrides it here")
    values = {"name": name, "value": written, "file": str(file), "overruled_by": overruled_by}
    tell_done(options, values, *notes)


def edit_config(options: PlaceOptions) -> None:
    """Open the person's configuration file in an editor, and say what is wrong with it afterwards."""
    file = own_file(options.config)
    if not file.exists():
        write_private(file, _DRAFT)
    editor = editor_command(os.environ)
    try:
        code = subprocess.run([*editor, str(file)], check=False).returncode
    except OSError as error:
        raise UsageError(f"cannot start the editor {editor[0]!r} ({error.strerror}); set EDITOR") from error
    if code:
        raise UsageError(f"the editor ended with {code}; {file} is as it left it")
    read_layers(config_file=file)


def show_path(options: ListOptions) -> None:
    """Print where the person's configuration file is, or would be."""
    path = str(own_file(options.config))
    tell(options, {"path": path}, path)


def show_schema(options: ListOptions) -> None:
    """Print what can be set as a JSON schema of the configuration file."""
    settings = default_settings()
    properties: dict[str, dict[str, object]] = {}
    for name, key in KEYS.items():
        described = _described(key.read) | {
            "description": f"{key.variable} in the environment; a project file may"
            + ("" if key.in_project else " not")
            + " set it."
        }
        if not name.startswith("paths."):
            described["default"] = _plain(value_of(settings, name))
        section, _, last = name.rpartition(".")
        if not section:
            properties[name] = described
            continue
        table = properties.setdefault(
            section, {"type": "object", "additionalProperties": False, "properties": {}}
        )
        inner = table["properties"]
        assert isinstance(inner, dict)
        inner[last] = described
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of kvchat",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }
    Output().line(json.dumps(schema, indent=None if as_json(options) else 2))


def _described(read: object) -> dict[str, object]:
    if isinstance(read, OrNone):
        inner = _described(read.read)
        kinds = inner.get("type", "string")
        both = kinds if isinstance(kinds, list) else [kinds]
        return inner | {"type": sorted({*map(str, both), "string"})}
    if isinstance(read, OneOf):
        return {"enum": list(read.words)}
    if read in _KINDS:
        return {"type": _KINDS[read]}
    return {"type": ["integer", "string"] if read is parse_size else "string"}


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
