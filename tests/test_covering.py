"""What a product of parameters is cut to by default still has every pair of values, and the rest is slow."""

import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest

from tests.covering import covering

pytestmark = [pytest.mark.pure, pytest.mark.long]

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.covering import leave_the_rest_to_slow_tests

def pytest_collection_modifyitems(items):
    leave_the_rest_to_slow_tests(items)
"""
CROSSED = """
import pytest

@pytest.mark.covering(2, each="level")
@pytest.mark.parametrize("size", [0, 1, 3, 70])
@pytest.mark.parametrize("code", ["c8", "c4", "c2"])
@pytest.mark.parametrize("level", ["old", "new", pytest.param("rare", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", ["f32", "b16", "f16"])
def test_crossed(level, dtype, code, size): ...
"""


def pairs(rows: list[tuple[int, ...]]) -> set[tuple[int, int, int, int]]:
    return {
        (one, other, row[one], row[other]) for row in rows for one, other in combinations(range(len(row)), 2)
    }


def test_every_value_occurs_and_no_row_without_need() -> None:
    rows = [*product(range(3), range(4), range(2))]
    kept = [rows[number] for number in covering(rows, 1)]
    assert len(kept) == 4
    assert [{row[column] for row in kept} for column in range(3)] == [{0, 1, 2}, {0, 1, 2, 3}, {0, 1}]


def test_every_pair_occurs_in_few_rows() -> None:
    rows = [*product(range(3), range(7), range(8))]
    kept = [rows[number] for number in covering(rows, 2)]
    assert pairs(kept) == pairs(rows)
    assert 7 * 8 <= len(kept) < len(rows) / 2


def test_each_value_of_a_parameter_has_all_pairs_by_itself() -> None:
    rows = [*product(range(2), range(3), range(4), range(5))]
    kept = [rows[number] for number in covering(rows, 2, each=[0])]
    for value in range(2):
        assert pairs([row for row in kept if row[0] == value]) == pairs([r for r in rows if r[0] == value])
    assert len(kept) < len(rows) / 2


@pytest.fixture
def crossed(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    covering\n    slow\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    path = tmp_path / "test_crossed.py"
    path.write_text(CROSSED)
    return path


def collected(*words: str) -> list[str]:
    """Return the parameters of what pytest would run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, 5), ended.stdout + ended.stderr
    return [line.partition("[")[2].rstrip("]") for line in ended.stdout.splitlines() if "::" in line]


def test_a_test_runs_by_default_with_what_covers_and_with_all_else_among_the_slow_ones(crossed: Path) -> None:
    ini = ["-c", str(crossed.with_name("pytest.ini")), f"--rootdir={crossed.parent}", str(crossed)]
    default, slow = (collected("-m", words, *ini) for words in ("not slow", "slow"))
    assert len({*default, *slow}) == len(default) + len(slow) == 3 * 3 * 3 * 4
    rows = [tuple(one.split("-")) for one in default]
    assert {row[1] for row in rows} == {"old", "new"}
    for level in ("old", "new"):
        found = [row for row in rows if row[1] == level]
        for one, other, wanted in ((0, 2, 9), (0, 3, 12), (2, 3, 12)):
            assert len({(row[one], row[other]) for row in found}) == wanted
        assert len(found) < 3 * 3 * 4 / 2
