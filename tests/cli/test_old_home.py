"""A home that kvchat 0.1.0 wrote before its modules moved: it opens, and nothing in it is computed again.

`homes/home-0.1.0.tar.xz` holds two homes. `plain`: `demo`, a conversation of two branches that is pinned;
`small`, whose KV is stored as int4; `packed`, which begins with the pack `notes`. `encrypted`: `secret`,
opened by the passphrase "garden".
The figures are those of the version that wrote them, for the same next question.
"""

import tarfile
from pathlib import Path

import pytest

from tests.cli.command_line import Run
from tests.cli.secret_home import Give

ARCHIVE = Path(__file__).parent.parent / "homes" / "home-0.1.0.tar.xz"


def unpack(name: str, into: Path) -> None:
    """Unpack one of the homes: directories and files for their owner alone, as kvchat wrote them."""
    with tarfile.open(ARCHIVE) as archive:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4
            archive.extraction_filter = staticmethod(tarfile.data_filter)
        for member in archive.getmembers():
            first, _, rest = member.name.removeprefix("./").partition("/")
            if first == name and rest:
                member.name = rest
                archive.extract(member, into)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("session", "flags", "cached", "computed", "is_exact"),
    [
        ("demo", (), 108, 11, True),
        ("small", ("--cache-format", "int4"), 112, 11, False),
        ("packed", (), 33, 11, True),
    ],
)
def test_a_conversation_of_0_1_0_goes_on_from_its_stored_blocks(
    home: Path, run: Run, session: str, flags: tuple[str, ...], cached: int, computed: int, is_exact: bool
) -> None:
    unpack("plain", home)
    done = run.json("ask", "-s", session, *flags, "What is paged attention?")
    assert (done["usage"]["cached_tokens"], done["usage"]["computed_tokens"]) == (cached, computed)
    assert done["loaded"] == {"device": 0, "host": 0, "disk": cached, "stateless": 0}
    assert done["exact"] is is_exact
    assert done["text"].startswith("Full attention lets every token look at all tokens before it.")


@pytest.mark.cpu
def test_an_encrypted_conversation_of_0_1_0_goes_on_from_its_stored_blocks(
    home: Path, run: Run, passphrase: Give
) -> None:
    unpack("encrypted", home)
    passphrase("garden")
    done = run.json("ask", "-s", "secret", "How are you?")
    assert (done["usage"]["cached_tokens"], done["usage"]["computed_tokens"]) == (44, 8)
    assert done["text"] == "I am fine, thank you. What would you like to talk about?"


@pytest.mark.pure
def test_a_home_of_0_1_0_lists_what_it_holds(home: Path, run: Run) -> None:
    unpack("plain", home)
    assert {
        (one["title"], one["num_turns"], one["num_branches"]) for one in run.json("sessions", "list")
    } == {("demo", 8, 2), ("packed", 2, 1), ("small", 6, 1)}
