"""One damaged byte anywhere in a small home changes no word in silence, and the sessions go on."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest

from kvchat.errors import KvchatError
from kvchat.session.database.backups import backup_paths
from kvchat.session.salvage import salvage
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.tree import Finish, MessagePart, Turn
from tests.damage import after_trouble, flipped
from tests.session.small_home import (
    DATABASE,
    LOG,
    Seen,
    go_on,
    look,
    put_home,
    read_home,
    write_home,
    write_home_with_free_pages,
)

pytestmark = [pytest.mark.pure, pytest.mark.long]

GOES_ON = 7
"""Where every byte is damaged: behind so many of them each the sessions are used again too."""
MASKS = (0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF, 0x21)
NUM_PARTS = 8
FORMAT = (18, 19)
"""Where a database's head says which version may write and read it."""
Files = Mapping[Path, bytes]


@pytest.fixture(scope="module")
def files(template: ChatTemplate, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A home with the copy of the day, its newest answer in the write-ahead log alone."""
    place = tmp_path_factory.mktemp("home")
    write_home(place, template)
    return read_home(place)


@pytest.fixture(scope="module")
def files_of_a_short_log(template: ChatTemplate, tmp_path_factory: pytest.TempPathFactory) -> Files:
    place = tmp_path_factory.mktemp("home")
    write_home(place, template, has_short_log=True)
    return read_home(place)


def without_copies(files: Files) -> Files:
    copies = {path.name for path in backup_paths(DATABASE)}
    return {path: data for path, data in files.items() if path.name not in copies}


class Home:
    """A home that is put back, damaged and looked at, again and again."""

    def __init__(self, place: Path, template: ChatTemplate, files: Files, *, has_copy: bool = False) -> None:
        self._place = place
        self._template = template
        self.files = files if has_copy else without_copies(files)
        self.wanted = self.seen()

    def seen(self, name: Path = DATABASE, data: bytes | None = None) -> Seen:
        """Return what is seen where one file holds other bytes."""
        put_home(self._place, self.files if data is None else {**self.files, name: data})
        return after_trouble(lambda: look(self._place, self._template))

    def check(self, name: Path, data: bytes, at: object, *, may_lose_both: bool = False) -> Seen:
        """Hold what is seen then to what was there before."""
        found = self.seen(name, data)
        assert complaints(found, self.wanted, may_lose_both=may_lose_both) == [], at
        return found

    def go_on(self) -> None:
        after_trouble(lambda: go_on(self._place))


@pytest.fixture
def home(template: ChatTemplate, files: Files, quick_path: Path) -> Home:
    return Home(quick_path / "home", template, files)


@pytest.fixture
def home_of_a_short_log(template: ChatTemplate, files_of_a_short_log: Files, quick_path: Path) -> Home:
    return Home(quick_path / "home", template, files_of_a_short_log)


@pytest.fixture
def home_as_it_is(template: ChatTemplate, files: Files, quick_path: Path, has_copy: bool) -> Home:
    """With a copy or without one, as the test says."""
    return Home(quick_path / "home", template, files, has_copy=has_copy)


OR_ALL = pytest.mark.parametrize("is_all", [False, pytest.param(True, marks=pytest.mark.slow)])
COPY_OR_NONE = pytest.mark.parametrize("has_copy", [True, False], ids=["with a copy", "without a copy"])


def flips(data: bytes, step: int) -> Iterator[tuple[int, bytes]]:
    """Yield a place in every stretch of `step` bytes, and the bytes with that one changed."""
    random = Random(step)
    for start in range(0, len(data), step):
        at = min(start + random.randrange(step), len(data) - 1)
        yield at, flipped(data, at, MASKS[(at + random.randrange(step)) % len(MASKS)])


def flips_of_part(data: bytes, part: int) -> Iterator[tuple[int, bytes]]:
    """Yield every place of one of the parts, which may run side by side and leave no byte out."""
    for at in range(part, len(data), NUM_PARTS):
        yield at, flipped(data, at, MASKS[at % len(MASKS)])


@pytest.mark.parametrize(
    "part", [None, *(pytest.param(part, marks=pytest.mark.slow) for part in range(NUM_PARTS))]
)
@COPY_OR_NONE
def test_a_byte_flipped_anywhere_in_the_database_is_repaired_or_told(
    home_as_it_is: Home, has_copy: bool, part: int | None
) -> None:
    """By default a byte of every stretch, and among the slow tests every one."""
    data = home_as_it_is.files[DATABASE]
    for at, damaged in flips(data, 1021) if part is None else flips_of_part(data, part):
        home_as_it_is.check(DATABASE, damaged, at, may_lose_both=not has_copy)
        if part is None or at % GOES_ON == 0:
            home_as_it_is.go_on()


@COPY_OR_NONE
@OR_ALL
def test_every_byte_of_the_databases_head_may_be_damaged(
    home_as_it_is: Home, has_copy: bool, is_all: bool
) -> None:
    """A format that is still to come would be read and never written. By default each byte is damaged once,
    with a copy or without, those of the format in both ways.
    """
    for at in range(100):
        once = (0x10, 0x80) if at % 2 == has_copy else ()
        for mask in (0x10, 0x80) if is_all or at in FORMAT else once[at % 4 // 2 :][:1]:
            data = flipped(home_as_it_is.files[DATABASE], at, mask)
            home_as_it_is.check(DATABASE, data, at, may_lose_both=not has_copy)
            if mask == 0x80:
                home_as_it_is.go_on()


@COPY_OR_NONE
def test_a_damaged_name_of_a_column_takes_no_value_from_its_rows(home_as_it_is: Home) -> None:
    """Rows read under another name lack the column; read under the names of a new file, they have it."""
    data = home_as_it_is.files[DATABASE]
    columns = {
        "turns": ("num", "token_ids"),
        "pieces": ("num", "turn_num", "place"),
        "branches": ("leaf_id",),
    }
    for table, names in columns.items():
        start = data.index(f"CREATE TABLE {table} (".encode())
        for name in names:
            at = data.index(f" {name} ".encode(), start) + 1
            home_as_it_is.check(DATABASE, flipped(data, at, 0x04), (table, name))


@COPY_OR_NONE
def test_an_index_that_lost_a_branch_hides_it_from_nobody(home_as_it_is: Home) -> None:
    """Of three entries of the index: each one's first letter, and where its page says that it begins."""
    data = home_as_it_is.files[DATABASE]
    # Names of sessions and branches stand behind each other in the rows too, and those in a page of rows.
    keys = [(session + name).encode() for session, name in home_as_it_is.wanted.paths]
    starts = range(0, len(data), 4096)
    page = next(at for at in starts if data[at] == 10 and all(key in data[at : at + 4096] for key in keys))
    entries = [data.index(key, page) for key in keys]
    for at in (*entries, *range(page + 8, page + 8 + 2 * len(entries))):
        home_as_it_is.check(DATABASE, flipped(data, at, 0x40), at)
        home_as_it_is.go_on()


def test_a_damaged_name_of_the_index_of_words_is_no_missing_feature(home: Home) -> None:
    data = home.files[DATABASE]
    start = data.index(b"USING fts5") + len(b"USING ")
    for at in range(start, start + len(b"fts5")):
        home.check(DATABASE, flipped(data, at, 0x21), at)
        home.go_on()


@pytest.mark.parametrize("step", [4099, pytest.param(31, marks=pytest.mark.slow)])
def test_a_byte_flipped_anywhere_in_the_log_takes_nothing_back(home: Home, step: int) -> None:
    """SQLite would take the log to end there, and forget every acknowledged word behind it in silence."""
    assert len(home.files[LOG]) > 10 * 4096
    for number, (at, data) in enumerate(flips(home.files[LOG], step)):
        home.check(LOG, data, at)
        if number % GOES_ON == 0:
            home.go_on()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_single_byte_of_the_log_may_be_flipped(home_of_a_short_log: Home, part: int) -> None:
    for at, data in flips_of_part(home_of_a_short_log.files[LOG], part):
        home_of_a_short_log.check(LOG, data, at)
        if at % GOES_ON == 0:
            home_of_a_short_log.go_on()


@pytest.mark.parametrize("has_time", [True, False], ids=["", "no time to try"])
@OR_ALL
def test_a_branch_whose_newest_row_is_not_known_for_sure_still_leads_where_it_led(
    home: Home, monkeypatch: pytest.MonkeyPatch, has_time: bool, is_all: bool
) -> None:
    """A flip of a word's highest bit is explained by many places of a page. Where the right one is not found
    in time, the file below the log holds the branch as it was one message earlier, and whole. By default each
    word is damaged once, with time or without.
    """
    if not has_time:
        monkeypatch.setattr(salvage, "_LOGS_S", 0.0)
    log = home.files[LOG]
    row = log.rindex(b"by boat")
    for at in range(row | 3, row + 60, 4) if is_all else range((row | 3) + 4 * has_time, row + 60, 8):
        home.check(LOG, flipped(log, at, 0x80), at)


@pytest.mark.parametrize("mask", MASKS)
def test_of_several_bytes_that_explain_a_frame_the_one_is_found_with_which_nothing_is_damaged(
    home: Home, home_of_a_short_log: Home, mask: int
) -> None:
    """The number of a page, which would be written elsewhere, and a place among a page's rows."""
    for some, at in ((home_of_a_short_log, 32 + 2 * 4120 + 3), (home, 32 + 4120 + 535)):
        found = some.check(LOG, flipped(some.files[LOG], at, mask), at)
        assert not any(turn.damaged for turn in found.turns.values())


@pytest.mark.covering(1)
@pytest.mark.parametrize("most_bytes", [0, 2**28], ids=["too large to try", ""])
@pytest.mark.parametrize("has_scar", [False, True], ids=["", "with a scar"])
@OR_ALL
def test_a_page_whose_number_is_damaged_is_put_where_it_was(
    template: ChatTemplate,
    quick_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    most_bytes: int,
    has_scar: bool,
    is_all: bool,
) -> None:
    """Whether it can be tried with which number nothing is damaged, or not; something may have been. By
    default each number is damaged in some ways, others than those beside it.
    """
    monkeypatch.setattr(salvage, "_MOST_TRIED_BYTES", most_bytes)
    write_home(quick_path / "written", template, has_short_log=True, has_scar=has_scar)
    home = Home(quick_path / "home", template, read_home(quick_path / "written"))
    wanted, log = home.wanted, home.files[LOG]
    before = complaints(wanted, wanted, may_lose_both=False)
    for number, at in enumerate(range(32 + 3, len(log), 4120)):
        for mask in MASKS if is_all else MASKS[number % 4 :: 4]:
            found = home.seen(LOG, flipped(log, at, mask))
            assert complaints(found, wanted, may_lose_both=False) == before, (at, mask)


def test_a_transaction_whose_end_is_damaged_has_one(home_of_a_short_log: Home) -> None:
    """Without the number of pages behind it, SQLite would take it for one that was cut off."""
    log = home_of_a_short_log.files[LOG]
    for at in range(len(log) - 4120 + 7, 32, -2 * 4120):
        damaged = log[:at] + bytes(1) + log[at + 1 :]
        assert damaged != log
        home_of_a_short_log.check(LOG, damaged, at)


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_page_is_not_written_to_a_free_one(template: ChatTemplate, quick_path: Path, step: int) -> None:
    """Nothing would be damaged there, and what it says be gone."""
    write_home_with_free_pages(quick_path / "written", template)
    home = Home(quick_path / "home", template, read_home(quick_path / "written"))
    log = home.files[LOG]
    (session,) = home.wanted.sessions.values()
    assert session.pinned
    at = len(log) - 4120 + 3
    for mask in range(1, 64, step):
        assert home.seen(LOG, flipped(log, at, mask)).sessions == home.wanted.sessions, mask


@OR_ALL
def test_the_highest_bit_of_a_pages_head_may_be_damaged(home: Home, is_all: bool) -> None:
    """Many places explain such a flip too, and a page without its head has no rows. By default each place is
    damaged in pages of its own.
    """
    log = home.files[LOG]
    places = (0, 3, 5, 8, 11)
    starts = range(32, len(log), 4120 * 3)
    assert len(starts) >= len(places)
    for number, start in enumerate(starts):
        for place in places if is_all else (places[number % len(places)],):
            at = start + 24 + place
            home.check(LOG, flipped(log, at, 0x80), at)


@OR_ALL
def test_every_number_in_the_heads_of_the_log_may_be_damaged(home: Home, is_all: bool) -> None:
    """In the head of the log, and in those of its first, a middle, and its last frame; by default in one of
    these three.
    """
    log = home.files[LOG]
    frames = len(log) // 4120
    heads = [32 + 4120 * frame for frame in (0, frames // 2, frames - 1)]
    some = (heads[at // 4 % 3] + at for at in range(1, 24, 4))
    for at in (*range(1, 32, 4), *([head + at for head in heads for at in range(24)] if is_all else some)):
        home.check(LOG, flipped(log, at, MASKS[at % len(MASKS)]), at)


def complaints(found: Seen, wanted: Seen, *, may_lose_both: bool) -> list[str]:
    """Return what is wrong without being told, and what is lost although a copy of it was there."""
    wrong = []
    for turn_id, turn in wanted.turns.items():
        if turn_id not in found.turns:
            wrong.append(f"{turn.text!r} is gone, and nothing says so")
        else:
            wrong += _complaints_of_turn(found.turns[turn_id], turn, may_lose_both=may_lose_both)
    for turn_id in found.turns.keys() - wanted.turns.keys():
        if not found.turns[turn_id].damaged:
            wrong.append(f"{found.turns[turn_id].text!r} was never said")
    for session_id, session in wanted.sessions.items():
        other = found.sessions.get(session_id)
        for name in ("title", "system", "model", "namespace"):
            if other is None or (getattr(other, name) != getattr(session, name) and name not in other.lost):
                wrong.append(f"the {name} of {session.title!r} is another")
    for (session_id, name), path in wanted.paths.items():
        here = found.paths.get((session_id, name))
        if not may_lose_both and (here is None or [turn.id for turn in here] != [turn.id for turn in path]):
            wrong.append(f"the branch {name} leads elsewhere")
    return wrong


def _complaints_of_turn(found: Turn, wanted: Turn, *, may_lose_both: bool) -> Iterator[str]:
    if found.text != wanted.text and MessagePart.TEXT not in found.broken:
        yield f"{wanted.text!r} became {found.text!r}"
    if found.token_ids != wanted.token_ids and MessagePart.IDS not in found.broken:
        yield f"the ids of {wanted.text!r} are others"
    facts = ("role", "parent_id", "session_id", "finish", "tokenizer", "starts_over", "exact", "model")
    for name in (*facts, "fingerprint"):
        if getattr(found, name) != getattr(wanted, name) and MessagePart.FACTS not in found.broken:
            yield f"{name} of {wanted.text!r} is {getattr(found, name)!r}"
    if not may_lose_both and found.broken >= {MessagePart.TEXT, MessagePart.IDS}:
        yield f"{wanted.text!r} is lost"


@pytest.mark.parametrize("name", [DATABASE, LOG], ids=["database", "log"])
@pytest.mark.parametrize("step", [20_011, pytest.param(97, marks=pytest.mark.slow)])
def test_a_file_that_ends_early_costs_nothing_with_a_copy_and_makes_up_nothing_without(
    template: ChatTemplate, files: Files, quick_path: Path, name: Path, step: int
) -> None:
    """A log that ends early is one that was cut off: what it does not hold is not known to be missing."""
    whole = Home(quick_path / "home", template, files, has_copy=True)
    home, wanted = Home(quick_path / "home", template, files), whole.wanted
    for length in (*range(3), *range(17, len(files[name]), step)):
        data = files[name][:length]
        if name == DATABASE:
            whole.check(name, data, length)
        try:
            found = home.seen(name, data)
        except KvchatError as error:
            advice = str(error)
            assert "move it away" in advice, length
            continue
        for turn_id, turn in found.turns.items():
            said = wanted.turns[turn_id].text if turn_id in wanted.turns else ""
            is_cut_off = turn.finish is Finish.INTERRUPTED and said.startswith(turn.text)
            assert turn.damaged or turn.text == said or is_cut_off, length
        home.go_on()
