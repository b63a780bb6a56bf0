"""Every command and option that is promised is there, by the real program's own manual page."""

import re
from collections.abc import Mapping

import pytest

from tests.cli.printed import run_program

pytestmark = pytest.mark.pure

TALK = (
    "--model -m --remote --weights --device --cache-format --kv-device-bytes --kv-host-bytes --kv-disk-bytes"
    " --temp --option -o --max-tokens --temperature --seed --system --session -s --continue -c --new --pack"
    " --no-attach"
)
EVERYWHERE = "--data-dir --cache-dir --config --quiet -q --verbose -v --no-color"
ASK = "--file -f -n --strict-cache --fail-on-length --json --ndjson --no-stats"

PROMISED: Mapping[str, str] = {
    "ask": f"{TALK} {ASK}",
    "resume": TALK,
    "sessions list": "--json",
    "sessions show": "--json",
    "sessions last": "--json",
    "sessions search": "--json",
    "sessions tree": "--json",
    "sessions fork": "--json",
    "sessions rename": "--json",
    "sessions rm": "--json --yes",
    "sessions verify": "--json",
    "sessions pin": "--json",
    "sessions unpin": "--json",
    "sessions convert": "--json",
    "export": "--output -o --format --no-kv",
    "import": "--json",
    "pack make": "--file -f --system",
    "pack list": "--json",
    "pack rm": "--json",
    "cache status": "--json",
    "cache ls": "--json",
    "cache why": "--json",
    "cache gauge": "--json",
    "cache evict": "--json",
    "cache gc": "--json",
    "cache verify": "--json",
    "cache path": "--json",
    "models list": "--json",
    "models show": "--json",
    "plan": "--context --format --json",
    "serve": "--socket-only --port",
    "bench": "--json --svg --quick",
    "config path": "--json",
    "config show": "--json",
    "config edit": "",
    "config schema": "--json",
    "doctor": "--json",
}


@pytest.fixture(scope="module")
def manual() -> Mapping[str, set[str]]:
    """Return the options of each command, as the manual page has them."""
    page = run_program("man").stdout.replace("\\-", "-")
    _, *parts = page.partition(".SH ENVIRONMENT")[0].split("\n.SS kvchat ")
    tags = re.compile(r"^\.TP\n\\fB(.*?)\\fR", re.MULTILINE)
    return {part.partition("\n")[0]: {*", ".join(tags.findall(part)).split(", ")} for part in parts}


@pytest.mark.parametrize("words", PROMISED)
def test_a_promised_command_is_there_with_its_options(words: str, manual: Mapping[str, set[str]]) -> None:
    assert {*PROMISED[words].split(), *EVERYWHERE.split()} <= manual[words]
