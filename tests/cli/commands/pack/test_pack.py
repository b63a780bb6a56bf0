"""`kvchat pack`: a beginning that is computed once, and by nobody after that."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvchat.errors import PackNotFound, StorageError
from kvchat.platform.encryptor import Encryptor
from kvchat.session.encryption.side_files import forget_other
from kvchat.session.packs import Pack, PackStore, new_pack_id
from tests.cli.command_line import Run
from tests.cli.secret_home import CHEAP, Give, files_with

pytestmark = pytest.mark.usefixtures("loading_pays")
pure = pytest.mark.pure
cpu = pytest.mark.cpu

RULES = " ".join(f"{number} is a number." for number in range(20))
Ask = Callable[..., Any]
"""Asks and returns the last event."""


@pytest.fixture
def ask(default_model: None, run: Run) -> Ask:
    return run.with_words("ask", "--max-tokens", "4").json


@cpu
def test_nothing_of_a_pack_is_computed_again(
    ask: Ask, run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By other engines on the same disk; and a home that has no KV gives the same answers."""
    (tmp_path / "rules.txt").write_text(RULES)
    made = run.json("pack", "make", "rules", "-f", str(tmp_path / "rules.txt"))
    length = made["num_tokens"]
    assert made["is_computed"]
    assert length > 2 * 64
    assert length % 64, "the tail counts too"
    shutil.copytree(home, tmp_path / "cold")
    shutil.rmtree(tmp_path / "cold" / "cache")

    words = ("ask", "--max-tokens", "4", "--pack", "rules")
    answers = [run.json(*words, question) for question in ("Which is the largest?", "How many are there?")]
    for answer in answers:
        assert answer["usage"]["cached_tokens"] == length
        assert answer["loaded"]["disk"] == length
    # A session goes on with its pack by itself, and may say so again.
    again = ask("--pack", "rules", "-c", "And the next?")
    assert again["usage"]["computed_tokens"] < again["usage"]["prompt_tokens"] - length
    monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / "cold"))
    cold = run.json(*words, "Which is the largest?")
    assert cold["usage"]["cached_tokens"] == 0
    assert cold["text"] == answers[0]["text"]


@cpu
def test_a_pack_is_refused_where_it_is_of_no_use_and_nothing_is_stored(ask: Ask, run: Run) -> None:
    run.json("pack", "make", "rules", "--system", RULES)
    ask("--new", "other", "hello")
    for words, code in (
        (("--pack", "rulez", "Which?"), 5),
        (("--pack", "rules", "--system", "Be brief.", "Which?"), 2),
        (("--pack", "rules", "-s", "other", "Which?"), 2),
        (("--pack", "rules", "--cache-format", "int8", "Which?"), 7),
    ):
        refused = run("ask", *words)
        assert refused[0] == code, refused
    assert len(run.json("sessions", "list")) == 1


@cpu
def test_a_pack_stays_where_everything_else_makes_room_or_is_deleted(ask: Ask, run: Run) -> None:
    made = run.json("pack", "make", "rules", "--system", f"Rules: {RULES}")
    limit = ("--kv-disk-bytes", str(made["num_bytes"] * 5 // 2))
    for number in range(3):
        ask(*limit, f"{number} {RULES}")
    assert run.json("sessions", "rm", "--yes", *_session_ids(run))["freed_blocks"] > 0
    run.json("cache", "gc")
    (row,) = run.json("pack", "list")
    assert (row["num_bytes"], row["is_computed"]) == (made["num_bytes"], True)
    assert run.json("cache", "status")["disk_bytes"] == made["num_bytes"]
    assert ask("--pack", "rules", "Which?")["usage"]["cached_tokens"] == made["num_tokens"]

    refused = run("pack", "make", "more", "--system", RULES, "--kv-disk-bytes", str(made["num_bytes"]))
    assert refused[0] == 6, "packs may not keep most of the disk"
    assert [one["name"] for one in run.json("pack", "list")] == ["rules"]


@cpu
def test_a_pack_outlives_its_blocks_and_its_blocks_do_not_outlive_it(ask: Ask, run: Run, home: Path) -> None:
    made = run.json("pack", "make", "rules", "--system", f"Rules: {RULES}")
    shutil.rmtree(home / "cache")
    assert ask("--pack", "rules", "Which?")["usage"]["cached_tokens"] == 0
    assert ask("--pack", "rules", "Which?")["usage"]["cached_tokens"] >= made["num_tokens"]
    run("sessions", "rm", "--yes", *_session_ids(run))
    run.json("cache", "gc")
    assert run.json("cache", "status")["disk_bytes"] > 0, "it is kept again"
    assert run("pack", "rm", "rules")[0] == 0
    assert run.json("pack", "list") == []
    run.json("cache", "gc")
    assert run.json("cache", "status")["disk_bytes"] == 0


@pure
def test_packs_are_encrypted_with_the_conversations_and_opened_again_with_them(
    run: Run, home: Path, passphrase: Give
) -> None:
    _block_store(home).put(make_pack("spec", "marmalade and zeppelin"))
    before = run.json("pack", "show", "spec")
    assert before["text"] == "marmalade and zeppelin"
    passphrase("open sesame")
    assert run("encrypt", "on", *CHEAP)[0] == 0
    assert files_with(home, b"marmalade", b"zeppelin", b"spec") == []
    assert run.json("pack", "show", "spec") == before
    assert run("encrypt", "off")[0] == 0
    assert run.json("pack", "show", "spec") == before
    assert not list((home / "data" / "packs").glob("*.sealed"))


@pure
def test_files_of_packs_are_private_and_a_damaged_one_hides_no_other(tmp_path: Path) -> None:
    block_store = PackStore(tmp_path / "packs", None)
    block_store.put(make_pack("one", "first"))
    block_store.put(make_pack("two", "second"))
    block_store.put(make_pack("two", "newer"))
    assert [(pack.name, pack.text) for pack in block_store.all()] == [("one", "first"), ("two", "newer")]
    assert (tmp_path / "packs").stat().st_mode & 0o777 == 0o700
    files = list((tmp_path / "packs").iterdir())
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    next(file for file in files if "first" in file.read_text()).write_text("{")
    assert [pack.name for pack in block_store.all()] == ["two"]
    with pytest.raises(PackNotFound, match="two"):
        block_store.find("one")
    (tmp_path / "packs").chmod(0o500)
    if os.geteuid():
        with pytest.raises(StorageError):
            block_store.put(make_pack("three", "third"))
    (tmp_path / "packs").chmod(0o700)


@pure
def test_an_encrypted_pack_opens_with_its_key_and_in_its_place_alone(tmp_path: Path) -> None:
    block_store = PackStore(tmp_path / "packs", Encryptor(bytes(32)))
    block_store.put(make_pack("one", "first"))
    block_store.put(make_pack("two", "second"))
    one, two = sorted((tmp_path / "packs").iterdir())
    assert PackStore(tmp_path / "packs", Encryptor(bytes([1] * 32))).all() == ()
    one.write_bytes(two.read_bytes())
    assert len(block_store.all()) == 1
    forget_other(tmp_path / "packs", encrypted=False)
    assert not list((tmp_path / "packs").iterdir())


def make_pack(name: str, text: str) -> Pack:
    return Pack(
        id=new_pack_id(),
        name=name,
        text=text,
        sources=(),
        model="starter",
        adapter="",
        fingerprint="ab" * 32,
        cache_format="exact",
        token_ids=tuple(range(100)),
        block_size=64,
        created_at=1.0,
    )


def _block_store(home: Path) -> PackStore:
    return PackStore(home / "data" / "packs", None)


def _session_ids(run: Run) -> list[str]:
    return [row["id"] for row in run.json("sessions", "list")]
