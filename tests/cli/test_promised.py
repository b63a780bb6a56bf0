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

PRINTING = (
    "sessions list, sessions show, sessions last, sessions search, sessions tree, sessions fork, sessions "
    "rename, sessions verify, sessions pin, sessions unpin, sessions convert, import, pack list, pack rm, "
    "cache status, cache ls, cache why, cache gauge, cache evict, cache gc, cache verify, cache path, "
    "models list, models show, config path, config show, config schema, doctor"
)

PROMISED: Mapping[str, str] = dict.fromkeys(PRINTING.split(", "), "--json") | {
    "ask": f"{TALK} {ASK}",
    "resume": TALK,
    "sessions rm": "--json --yes",
    "export": "--output -o --format --no-kv",
    "pack make": "--file -f --system",
    "plan": "--context --format --json",
    "serve": "--socket-only --port",
    "bench": "--json --svg --quick",
    "config edit": "",
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
