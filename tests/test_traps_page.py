"""The page of traps names tests that exist, and every test that names a trap stands on it."""

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parent.parent
NUMBERS = re.compile(r"\btraps? ((?:\d+(?:, | and |; |\n)?)+)", re.IGNORECASE)


def named_in_tests() -> dict[str, set[int]]:
    """Return the numbers in the docstring of each test."""
    found: dict[str, set[int]] = {}
    for file in sorted((ROOT / "tests").rglob("*.py")):
        source = file.read_text()
        for node in ast.walk(ast.parse(source)) if NUMBERS.search(source) else ():
            if isinstance(node, ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                numbers = {int(n) for run in NUMBERS.findall(text) for n in re.findall(r"\d+", run)}
                if numbers:
                    found[f"{file.relative_to(ROOT)}::{node.name}"] = numbers
    return found


def named_on_the_page() -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    number = 0
    for line in (ROOT / "docs" / "traps.md").read_text().splitlines():
        if heading := re.match(r"\*\*(\d+)\.", line):
            number = int(heading[1])
        elif entry := re.match(r"- `(.+)`", line):
            found.setdefault(entry[1], set()).add(number)
    return found


def test_the_page_and_the_tests_name_each_other() -> None:
    assert named_on_the_page() == named_in_tests()
