"""A session leaves as one file and comes back elsewhere: what is shared, what is trusted, what is refused."""

import io
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import pytest

from kvchat.cli.main import run
from kvchat.session.bundle.container import BLOCK, END, RecordReader
from kvchat.session.bundle.reader import read_bundle
from kvchat.session.store import SessionStore
from tests.cli.command_line import Run
from tests.cli.homes import turns_of
from tests.damage import flip
from tests.fork_server import Forked, ForkServer
from tests.session.bundle.bundles import write_records, write_small

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("loading_pays")]

QUESTIONS = ("My name is Ana and I live in Oslo. " * 20, "What is a KV cache?")
LAST = "Where do I live?"
NUM_TOKENS = 12

Kvchat = Callable[..., Any]


@pytest.fixture
def kvchat(home: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Kvchat:
    """Run a command line in this process, in one of several homes, and return what it prints as JSON."""

    def call(*words: str, at: str = "here", code: int = 0) -> Any:
        monkeypatch.setenv("KVCHAT_HOME", str(home / at))
        return run.json(*words, code=code)

    return call


@pytest.fixture(scope="module")
def original(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which a session of two questions was asked, and its bundle beside it."""
    home = tmp_path_factory.mktemp("original")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVCHAT_HOME", str(home / "home"))
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
        for question in QUESTIONS:
            named = ["-s", "demo"] if question is not QUESTIONS[0] else ["--new", "demo"]
            assert run(["ask", *asked(tiny_model), "--json", *named, question]) == 0
        assert run(["export", "demo", "-o", str(home / "demo.kvchat"), "-q"]) == 0
    return home


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    """A copy of the original's bundle."""
    return Path(shutil.copy(original / "demo.kvchat", tmp_path))


def asked(model: Path) -> list[str]:
    return ["-m", str(model), "--max-tokens", str(NUM_TOKENS)]


def last_ids(home: Path) -> list[int]:
    """Return the ids of the answer that was given last."""
    ids = turns_of(home)[-1].token_ids
    assert ids is not None
    return list(ids)


def test_an_imported_session_goes_on_as_if_it_had_never_been_away_and_computes_only_what_is_new(
    original: Path, bundle: Path, tiny_model: Path, home: Path, kvchat: Kvchat
) -> None:
    """Traps 26 and 27: what counts is what is computed, not that a command said it had worked."""
    shutil.copytree(original / "home", home / "never-away")
    expected = kvchat("ask", *asked(tiny_model), "-s", "demo", LAST, at="never-away")
    (imported,) = kvchat("import", str(bundle), "-m", str(tiny_model))
    assert (imported["kv"], imported["turns"]) == ("untrusted", 4)
    found = kvchat("ask", *asked(tiny_model), "-s", "demo", LAST)
    assert found["usage"] == expected["usage"]
    assert found["usage"]["computed_tokens"] == found["usage"]["prompt_tokens"] - (imported["tokens"] - 1)
    assert found["usage"]["cached_tokens"] == imported["tokens"] - 1
    assert last_ids(home / "here") == last_ids(home / "never-away")


def test_a_cache_that_cannot_be_used_keeps_no_text_out(
    bundle: Path, tiny_model: Path, home: Path, kvchat: Kvchat
) -> None:
    blocks = home / "here" / "cache" / "blocks"
    blocks.parent.mkdir(parents=True)
    blocks.write_text("a file where the blocks should be")
    (imported,) = kvchat("import", str(bundle), "-m", str(tiny_model))
    assert (imported["kv"], imported["turns"], imported["blocks"]) == ("none", 4, 0)
    assert "cannot be used" in " ".join(imported["not_stored"])
    assert last_ids(home / "here")


def test_imported_kv_serves_no_other_session_until_it_has_been_verified(
    bundle: Path, tiny_model: Path, kvchat: Kvchat
) -> None:
    """Trap 28: the name of a block says which tokens it belongs to, and nothing of its bytes."""
    (imported,) = kvchat("import", str(bundle), "-m", str(tiny_model))
    ask = ("ask", *asked(tiny_model), "--temperature", "0")
    apart = kvchat(*ask, "--new", "apart", QUESTIONS[0])
    assert apart["usage"]["cached_tokens"] == 0
    assert kvchat("sessions", "rm", "apart")["removed"]
    sampled = kvchat("sessions", "verify", "-m", str(tiny_model), "--sample", "2", "demo")
    assert (sampled["verified"], sampled["different"], sampled["trusted"]) == (2, 0, False)
    verified = kvchat("sessions", "verify", "-m", str(tiny_model), "--all", "demo")
    assert verified["verified"] == verified["blocks"] > 2
    assert (verified["different"], verified["wrong_logits"], verified["trusted"]) == (0, 0, True)
    assert verified["logits"] == 1
    shared = kvchat(*ask, "--new", "shared", QUESTIONS[0])
    assert shared["usage"]["cached_tokens"] == shared["usage"]["prompt_tokens"] - 1
    resumed = kvchat(*ask, "-s", "demo", LAST)
    assert resumed["usage"]["cached_tokens"] == imported["tokens"] - 1
    again = kvchat("sessions", "show", "demo")
    assert (again["namespace"], again["verification"]["verdict"]) == ("", "same")


def forge(bundle: Path, at: int = 0) -> Path:
    """Change one number in a block and make all digests right again."""
    data = bundle.read_bytes()
    records = []
    with bundle.open("rb") as file:
        reader = RecordReader(file, len(data))
        while (record := reader.read()).kind != END:
            records.append(record)
        records.append(record)
    blocks = [place for place, record in enumerate(records) if record.kind == BLOCK]
    body = bytearray(records[blocks[at]].body)
    body[-4:] = b"\0\0\x80\x42"  # 64.0
    forged = [(record.kind, record.header, record.body) for record in records]
    forged[blocks[at]] = (*forged[blocks[at]][:2], bytes(body))
    return write_records(bundle.with_name("forged.kvchat"), *forged)


def test_forged_kv_is_kept_in_its_cage_found_by_verify_and_thrown_out(
    original: Path, bundle: Path, tiny_model: Path, home: Path, kvchat: Kvchat
) -> None:
    """Trap 24: right names, right digests, wrong bytes."""
    shutil.copytree(original / "home", home / "never-away")
    kvchat("import", str(forge(bundle)), "-m", str(tiny_model))
    found = kvchat("sessions", "verify", "-m", str(tiny_model), "--all", "demo", code=7)
    assert (found["different"], found["trusted"]) == (1, True)
    assert kvchat("sessions", "show", "demo")["verification"]["verdict"] == "different"
    expected = kvchat("ask", *asked(tiny_model), "-s", "demo", LAST, at="never-away")
    answer = kvchat("ask", *asked(tiny_model), "-s", "demo", LAST)
    assert answer["usage"] == expected["usage"]
    assert last_ids(home / "here") == last_ids(home / "never-away")


def test_a_forged_block_that_is_sampled_is_set_aside_and_computed_again(
    original: Path, bundle: Path, tiny_model: Path, home: Path, kvchat: Kvchat
) -> None:
    shutil.copytree(original / "home", home / "never-away")
    kvchat("import", str(forge(bundle)), "-m", str(tiny_model))
    found = kvchat("sessions", "verify", "-m", str(tiny_model), "--sample", "99", "demo", code=7)
    assert (found["different"], found["trusted"]) == (1, False)
    again = kvchat("sessions", "verify", "-m", str(tiny_model), "--sample", "99", "demo")
    assert again["different"] == 0
    for at in ("never-away", "here"):
        kvchat("ask", *asked(tiny_model), "-s", "demo", LAST, at=at)
    assert last_ids(home / "here") == last_ids(home / "never-away")


def test_other_weights_keep_the_text_name_what_differs_and_compute(
    bundle: Path, tiny_model: Path, tmp_path: Path, kvchat: Kvchat
) -> None:
    """Trap 1: one changed weight is another model."""
    other = Path(shutil.copytree(tiny_model, tmp_path / "other"))
    flip(other / "model.safetensors")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    (imported,) = kvchat("import", str(bundle), "-m", str(other))
    assert (imported["kv"], imported["blocks"]) == ("refused", 0)
    assert imported["differing"] == ["config.rms_norm_eps", "weights"]
    assert kvchat("cache")["disk_bytes"] == 0
    texts = [turn["text"] for turn in kvchat("sessions", "show", "demo")["turns"]]
    assert texts[0].strip() == QUESTIONS[0].strip()
    answer = kvchat("ask", *asked(other), "-s", "demo", LAST)
    assert answer["usage"]["cached_tokens"] == 0


def test_a_model_that_is_not_here_is_named_and_no_network_is_asked(bundle: Path, kvchat: Kvchat) -> None:
    (imported,) = kvchat("import", str(bundle))
    assert imported["kv"] == "refused"
    assert "name one with -m" in imported["differing"][0]


def test_a_bundle_tells_nothing_of_where_it_was_made(bundle: Path, tiny_model: Path) -> None:
    assert str(tiny_model.parent).encode() not in bundle.read_bytes()
    assert read_bundle(bundle).manifest.model == tiny_model.name


def test_without_kv_a_bundle_holds_the_ids_and_the_session_computes_them_itself(
    original: Path, tiny_model: Path, tmp_path: Path, home: Path, kvchat: Kvchat
) -> None:
    shutil.copytree(original / "home", home / "origin")
    target = tmp_path / "text.kvchat"
    exported = kvchat("export", "demo", "--no-kv", "-o", str(target), at="origin")
    assert (exported["blocks"], exported["turns"]) == (0, 4)
    assert target.stat().st_size < 10_000
    (imported,) = kvchat("import", str(target), "-m", str(tiny_model))
    assert imported["kv"] == "none"
    assert kvchat("sessions", "show", "demo")["namespace"] == ""


def test_removing_an_imported_session_removes_its_blocks_and_says_what_another_import_shares(
    bundle: Path, tiny_model: Path, kvchat: Kvchat
) -> None:
    first, second = (kvchat("import", str(bundle), "-m", str(tiny_model))[0] for _ in range(2))
    removed = kvchat("sessions", "rm", "-y", first["session"])
    assert (removed["freed_blocks"], removed["shared_blocks"]) == (0, first["blocks"])
    removed = kvchat("sessions", "rm", "-y", second["session"])
    assert (removed["freed_blocks"], removed["shared_blocks"]) == (first["blocks"], 0)
    assert kvchat("cache")["disk_bytes"] == 0


def test_a_damaged_block_is_found_by_verifying_the_cache(
    original: Path, tiny_model: Path, home: Path, kvchat: Kvchat
) -> None:
    shutil.copytree(original / "home", home / "here")
    whole = kvchat("cache", "verify", "-m", str(tiny_model), "--all")
    assert (whole["damaged"], whole["different"], whole["verified"]) == (0, 0, whole["blocks"])
    block = next((home / "here" / "cache" / "blocks").rglob("*.safetensors"))
    flip(block)
    found = kvchat("cache", "verify", "-m", str(tiny_model), "--sample", "1", code=7)
    assert (found["damaged"], found["different"]) == (1, 0)
    assert kvchat("cache", "verify", "-m", str(tiny_model), "--sample", "1")["damaged"] == 0


def test_a_session_shows_where_its_kv_came_from_and_what_was_found_of_it(
    bundle: Path, tiny_model: Path, kvchat: Kvchat, run: Run
) -> None:
    kvchat("import", str(bundle), "-m", str(tiny_model))
    assert "KV imported, shared with no other session; not verified: " in run.out("sessions", "show", "demo")
    for effort, words, trust in (
        (None, "; imported KV, not verified)", "unverified"),
        (["--sample", "1"], "; imported KV, 1 of ", "sampled"),
        (["--all"], "; KV verified)", "verified"),
    ):
        if effort is not None:
            kvchat("sessions", "verify", "-m", str(tiny_model), *effort, "demo")
        assert kvchat("sessions", "list")[0]["trust"] == kvchat("sessions", "show", "demo")["trust"] == trust
        assert words in run.out("sessions", "list")
    shown = run.out("sessions", "show", "demo")
    assert "all as computed here" in shown
    assert "imported" not in shown


# Limits of the disk


def test_an_import_says_what_it_could_store_and_the_rest_is_computed(
    bundle: Path, tiny_model: Path, home: Path, kvchat: Kvchat, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_bundle(bundle).num_blocks
    for variable, value, reason in (
        ("KVCHAT_KV_DISK_BYTES", "4000", "disk limit has no room"),
        ("KVCHAT_KV_DISK_DAILY_BYTES", "1000", "of today"),
    ):
        monkeypatch.setenv(variable, value)
        (found,) = kvchat("import", str(bundle), "-m", str(tiny_model), at=variable)
        assert (found["kv"], found["blocks"], found["of_blocks"], found["bytes"]) == ("none", 0, whole, 0)
        assert reason in found["not_stored"][0]
        if variable == "KVCHAT_KV_DISK_BYTES":
            assert f"more than 0 of {whole} blocks, since" in found["not_stored"][0]
        assert kvchat("cache", at=variable)["disk_bytes"] == 0
        monkeypatch.delenv(variable)
        answer = kvchat("ask", *asked(tiny_model), "-s", "demo", LAST, at=variable)
        assert answer["usage"]["cached_tokens"] == 0
    kvchat("import", str(bundle), "-m", str(tiny_model), at="all")
    sizes = [path.stat().st_size for path in (home / "all" / "cache" / "blocks").rglob("*.safetensors")]
    assert len(sizes) == whole
    monkeypatch.setenv("KVCHAT_KV_DISK_DAILY_BYTES", str(sum(sizes) - 1))
    (found,) = kvchat("import", str(bundle), "-m", str(tiny_model), at="some")
    assert (found["kv"], found["blocks"], found["of_blocks"]) == ("untrusted", whole - 1, whole)


def test_a_session_stays_as_it_was_where_what_verifying_computes_has_no_room(
    bundle: Path, tiny_model: Path, home: Path, kvchat: Kvchat, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = ("sessions", "verify", "-m", str(tiny_model), "--all", "demo")
    kvchat("import", str(bundle), "-m", str(tiny_model))
    monkeypatch.setenv("KVCHAT_KV_DISK_DAILY_BYTES", "1000")
    assert "of today" in kvchat(*verify, code=1)["message"]
    monkeypatch.delenv("KVCHAT_KV_DISK_DAILY_BYTES")
    weights = home / "here" / "cache" / "weights" / "of-some-model"
    weights.mkdir(parents=True)
    (weights / "model.safetensors").write_bytes(bytes(10**6))
    stored_bytes = kvchat("cache")["disk_bytes"]
    monkeypatch.setenv("KVCHAT_KV_DISK_BYTES", str(10**6 + stored_bytes * 3 // 2))
    assert "no room" in kvchat(*verify, code=1)["message"]
    assert kvchat("sessions", "show", "demo")["namespace"] != ""


# The real program

Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def program(fork_server: ForkServer) -> Program:
    def run_one(*words: str, at: Path) -> "subprocess.CompletedProcess[str]":
        return fork_server.run(*words, environ=os.environ | {"KVCHAT_HOME": str(at)})

    return run_one


def test_what_is_refused_ends_with_its_code_and_changes_nothing(
    bundle: Path, home: Path, program: Program
) -> None:
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 1
    damaged = bundle.with_name("damaged.kvchat")
    damaged.write_bytes(data)
    done = program("import", str(bundle), str(damaged), at=home)
    assert (done.returncode, done.stdout) == (7, "")
    assert "damaged.kvchat is refused: it is damaged" in done.stderr
    assert not list((home / "data").glob("*.db")) or program("sessions", "--json", at=home).stdout == "[]\n"
    assert not (home / "cache" / "blocks").exists()
    assert program("import", str(bundle.with_name("gone.kvchat")), at=home).returncode == 7
    assert program("export", "nobody", at=home).returncode == 5
    assert program("import", at=home).returncode == 2


@pytest.mark.parametrize("num_kills", [4, pytest.param(80, marks=pytest.mark.slow)])
def test_an_import_that_is_killed_leaves_a_whole_session_or_none(
    num_kills: int, bundle: Path, tiny_model: Path, home: Path, program: Program, fork_server: ForkServer
) -> None:
    """Trap 25: what a crash leaves is settled by the next start, and nothing is half there."""
    random = Random(7)
    for _ in range(num_kills):
        words = ("import", str(bundle), "-m", str(tiny_model), "--json")
        with fork_server.start(*words, environ=os.environ | {"KVCHAT_HOME": str(home)}) as child:
            _wait_for_blocks(child, home, random.randrange(1, 6))
            sleep(random.random() / 100)
            child.kill()
            said, _ = child.communicate()
        stored = _stored(home)
        assert all(num_turns == 4 and not damaged for num_turns, damaged in stored)
        assert not said or stored, "what was acknowledged is there"
        shutil.rmtree(home)
    assert program("import", str(bundle), "-m", str(tiny_model), at=home).returncode == 0
    assert _stored(home) == [(4, False)]


def _wait_for_blocks(child: Forked, home: Path, num_files: int) -> None:
    """Wait until an import has written some blocks, or has ended."""
    while child.poll() is None:
        if len(list((home / "cache" / "blocks").rglob("*.safetensors"))) >= num_files:
            return
        sleep(0.002)


def _stored(home: Path) -> list[tuple[int, bool]]:
    """Return, for each stored session, how many turns it has and whether one is damaged."""
    if not (home / "data" / "sessions.db").exists():
        return []
    store = SessionStore(home / "data" / "sessions.db")
    sessions = [summary.session.id for summary in store.list_sessions()]
    turns = [store.all_turns(session_id) for session_id in sessions]
    store.close()
    return [(len(some), any(turn.damaged for turn in some)) for some in turns]


def test_a_bundle_whose_fingerprint_is_not_of_its_fields_is_refused(
    tmp_path: Path, tiny_model: Path, home: Path, program: Program
) -> None:
    path = tmp_path / "small.kvchat"
    write_small(path)
    done = program("import", str(path), "-m", str(tiny_model), at=home)
    assert done.returncode == 7
    assert "not taken over the fields" in done.stderr
