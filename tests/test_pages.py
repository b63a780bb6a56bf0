"""README.md and docs/: links lead somewhere, examples run, and tables agree with the program."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvchat import errors
from kvchat.app.config import KEYS, settings_in

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
CONFIGURATION = ROOT / "docs" / "configuration.md"


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```|^    .*?$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: those that GitHub makes of its headings, and those it sets itself."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([^"]+)">', prose(page)))


@pytest.mark.pure
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_to_files_and_headings(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link}: there is no {target.relative_to(ROOT)}"
        assert not anchor or anchor in anchors(target), f"{link}: there is no such heading"


@pytest.mark.pure
def test_every_page_of_the_docs_is_linked_from_the_readme() -> None:
    linked = {(ROOT / link).resolve() for link in LINK.findall((ROOT / "README.md").read_text())}
    assert {*ROOT.glob("docs/*.md")} <= linked


def rows(section: str) -> dict[str, list[str]]:
    """Return the rows of the tables below a heading of the configuration page, by their first column."""
    text = CONFIGURATION.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"
    ]
    return {first.strip("`"): others for first, *others in cells}


@pytest.mark.pure
def test_the_configuration_page_has_every_setting_with_its_variable() -> None:
    listed = {
        name: row[0].strip("`") for name, row in rows("Settings").items() if "." in name or name in KEYS
    }
    assert listed.pop("keys.ID") == "KVCHAT_KEY_ID"
    assert listed == {name: key.variable for name, key in KEYS.items() if not name.startswith("keys.")}


@pytest.mark.pure
def test_the_example_of_a_configuration_file_is_accepted() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", CONFIGURATION.read_text(), re.DOTALL)
    assert settings_in(example, CONFIGURATION)["engine.disk_bytes"] == 20 * 2**30


@pytest.mark.pure
def test_the_configuration_page_has_every_exit_code_of_an_error() -> None:
    codes = {
        one.exit_code for one in vars(errors).values() if isinstance(one, type) and hasattr(one, "exit_code")
    }
    assert codes <= {int(code) for code in rows("Exit codes") if code.isdigit()}


@pytest.mark.cpu
def test_the_example_in_python_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
    environ = os.environ | {"KVCHAT_HOME": str(tmp_path)}
    command = [sys.executable, "-c", example]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environ, check=True)
    assert len(done.stdout.splitlines()) >= 2
