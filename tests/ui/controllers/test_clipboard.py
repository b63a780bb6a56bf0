"""A text reaches the clipboard by the first tool that takes it, and it is said which one that was."""

import os
from pathlib import Path

import pytest

from kvchat.ui.controllers.clipboard import copy_by_tool, routes

pytestmark = pytest.mark.cpu

TAKES = """#!/bin/sh
cat > "$0.took"
"""
REFUSES = """#!/bin/sh
exit 1
"""


def tool(directory: Path, name: str, script: str = TAKES) -> Path:
    path = directory / name
    path.write_text(script)
    path.chmod(0o700)
    return path


def environ(directory: Path, **variables: str) -> dict[str, str]:
    return {"PATH": f"{directory}{os.pathsep}{os.defpath}", **variables}


def names(**variables: str) -> list[str]:
    return [name for name, *_ in routes(variables, platform="linux")]


def test_tools_of_the_desktop_that_is_seen_come_first_and_none_over_ssh() -> None:
    assert names() == []
    assert names(DISPLAY=":0", WAYLAND_DISPLAY="w") == ["wl-copy", "xclip", "xsel"]
    assert names(WSL_DISTRO_NAME="d") == ["clip.exe"]
    assert names(DISPLAY=":0", SSH_CONNECTION="there") == []
    assert [name for name, *_ in routes({}, platform="darwin")] == ["pbcopy"]


def test_the_whole_text_goes_to_the_tool_which_is_named(tmp_path: Path) -> None:
    xclip = tool(tmp_path, "xclip")
    assert copy_by_tool("漢字\nand more", environ(tmp_path, DISPLAY=":0")) == "xclip"
    assert Path(f"{xclip}.took").read_text() == "漢字\nand more"


def test_one_that_refuses_gives_way_to_the_next_and_none_is_said_to_have_taken_it(tmp_path: Path) -> None:
    tool(tmp_path, "xclip", REFUSES)
    assert copy_by_tool("text", environ(tmp_path, DISPLAY=":0")) is None
    xsel = tool(tmp_path, "xsel")
    assert copy_by_tool("text", environ(tmp_path, DISPLAY=":0")) == "xsel"
    assert Path(f"{xsel}.took").read_text() == "text"
