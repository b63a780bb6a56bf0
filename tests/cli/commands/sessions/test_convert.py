"""`kvchat sessions convert`: stored KV in fewer bits, in place, and exactly again."""

import os
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.app.config import read_settings
from kvchat.app.open_store import open_store
from kvchat.cli.commands.sessions import convert
from kvchat.cli.output.streams import Status
from kvchat.engine.api.ids import block_key, root_key
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.quality.convert import Converter, load_exact
from kvchat.errors import SessionNotFound
from kvchat.session.kv.provenance import Origin, origin_of
from kvchat.session.store import SessionStore
from kvchat.session.tree import path_token_ids
from tests.cli.command_line import Run
from tests.cli.homes import block_bytes, session_of

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("loading_pays")]

WORDS = "remember the sea " * 40


@pytest.fixture
def ask(run: Run, tiny_model: Path) -> Run:
    ask = run.with_words("ask", "-m", str(tiny_model), "--max-tokens", "12")
    ask.json("--new", "demo", WORDS)
    return ask


def test_a_converted_session_goes_on_in_its_format_from_its_converted_blocks(
    ask: Run, run: Run, home: Path
) -> None:
    (before,) = block_bytes(home).values()
    told = run.err("sessions", "convert", "demo", "int4", "--yes")
    assert "% same, divergence" in told or "No saving yet" in told
    assert "saved" in told
    assert sum(usage for usage in block_bytes(home).values()) < before
    answer = ask.json("-s", "demo", "and?")
    assert answer["exact"] is False
    usage = answer["usage"]
    assert usage["prompt_tokens"] - usage["cached_tokens"] < 16
    assert "converted from exact to int4: approximate" in run.out("sessions", "show", "demo")


def test_what_is_lost_and_saved_is_told_first_and_nothing_happens_in_a_dry_run(
    ask: Run, run: Run, home: Path
) -> None:
    before = block_bytes(home)
    found = run.json("sessions", "convert", "demo", "int2", "--dry-run")
    assert (found["done"], found["converted"]) == (False, None)
    assert found["loss"]["is_converted"]
    assert found["loss"]["loss"]["divergence"] > 0
    assert block_bytes(home) == before
    assert session_of(home).namespace == ""


def test_converted_blocks_never_have_the_names_of_computed_ones(ask: Run, run: Run, home: Path) -> None:
    run("sessions", "convert", "demo", "int8", "--yes")
    session = session_of(home)
    origin = origin_of(session.namespace)
    assert origin is not None
    assert (origin.cache_format, origin.source) == ("int8", "exact")
    with closing(SessionStore(home / "data" / "sessions.db")) as store:
        ids = path_token_ids(store.turns_to(store.branch(session.id, session.active_branch).leaf_id))
    assert ids is not None
    fingerprint = bytes.fromhex(origin.fingerprint)
    native = block_key(root_key(fingerprint), ids[:64])
    own = block_key(root_key(fingerprint, session.namespace), ids[:64])
    names = {path.name.split(".")[0] for path in (home / "cache").rglob("*.safetensors")}
    assert own.hex() in names
    assert native.hex() not in names
    # Somebody else who computes in that format finds nothing of it.
    other = ask.json("--new", "other", "--cache-format", "int8", WORDS)
    assert other["usage"]["cached_tokens"] == 0


def test_going_back_computes_exactly_again_and_removes_what_was_converted(
    ask: Run, run: Run, home: Path
) -> None:
    exact = set(block_bytes(home))
    run("sessions", "convert", "demo", "int4", "--yes")
    (converted,) = set(block_bytes(home)) - exact
    assert "computed exactly again" in run.err("sessions", "convert", "demo", "exact")
    assert block_bytes(home).get(converted, 0) == 0
    answer = ask.json("-s", "demo", "and?")
    assert (answer["exact"], answer["usage"]["cached_tokens"]) == (True, 0)
    assert "already" in run("sessions", "convert", "demo", "exact")[2]


def test_garbage_collection_keeps_what_was_converted(ask: Run, run: Run, home: Path) -> None:
    run("sessions", "convert", "demo", "int8", "--yes")
    before = block_bytes(home)
    assert run("cache", "gc")[0] == 0
    assert block_bytes(home) == before


def test_blocks_that_another_session_shares_stay_exact_for_it(ask: Run, run: Run) -> None:
    assert ask("--new", "other", WORDS)[0] == 0
    run("sessions", "convert", "demo", "int4", "--yes")
    answer = ask.json("-s", "other", "and?")
    assert answer["exact"] is True
    assert answer["usage"]["cached_tokens"] > 100


def test_what_cannot_be_converted_is_refused_with_the_reason(ask: Run, run: Run) -> None:
    assert run("sessions", "convert", "demo", "int7")[0] == 3
    assert run("sessions", "convert", "nobody", "int4")[0] == 5
    assert run("sessions", "convert", "demo", "int4", "--yes")[0] == 0
    assert "go back first" in run.err("sessions", "convert", "demo", "int2", code=2)


def test_an_origin_is_read_back_from_its_namespace_and_from_no_other() -> None:
    origin = Origin(cache_format="k=int8,v=int4; layers 0-1=exact", source="exact", fingerprint="ab" * 32)
    assert origin_of(origin.namespace) == origin
    assert isinstance(origin, Origin)
    again = Origin(cache_format=origin.cache_format, source=origin.source, fingerprint=origin.fingerprint)
    assert again != origin
    for other in ("", "bundle:1234", "int4<-exact:ab:cd", f"int4<-exact:{'ab' * 32}:"):
        assert origin_of(other) is None


def test_where_the_disk_has_no_room_for_both_nothing_is_changed(
    ask: Run, run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(home)
    limit_bytes = sum(path.stat().st_size for path in before)
    monkeypatch.setenv("KVCHAT_KV_DISK_BYTES", str(limit_bytes))
    assert "nothing was changed" in run.err("sessions", "convert", "demo", "int4", "--yes", code=1)
    assert session_of(home).namespace == ""
    assert files(home) == before
    assert ask.json("-s", "demo", "and?")["usage"]["cached_tokens"] > 100


def test_what_was_converted_of_a_session_that_was_deleted_meanwhile_goes(
    ask: Run, home: Path, tiny_model: Path
) -> None:
    before = block_bytes(home)
    settings = read_settings(environ=dict(os.environ), cwd=home)
    config = replace(settings.engine, cache_dir=settings.paths.cache_dir)
    converter = Converter(load_exact(tiny_model, config), config, "int4")
    origin = Origin(cache_format="int4", source="exact", fingerprint=converter.target.fingerprint.hex())

    class Deleting(Status):
        def show(self, text: str) -> None:
            with closing(SessionStore(home / "data" / "sessions.db")) as store, suppress(SessionNotFound):
                store.delete_session(store.find("demo").id)

    with closing(open_store(settings)) as store:
        session = store.find("demo")
        work = convert._Work(settings, store, session, tuple(store.all_turns(session.id)))
        with pytest.raises(SessionNotFound):
            convert._written(work, converter, origin, Deleting())
    assert block_bytes(home) == before


def test_a_pinned_session_keeps_what_was_converted_and_the_exact_blocks_go(
    ask: Run, run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exact blocks need room once, though its pin keeps them."""
    assert run("sessions", "pin", "demo")[0] == 0
    ((exact, num_bytes),) = block_bytes(home).items()
    monkeypatch.setenv("KVCHAT_KV_DISK_BYTES", str(num_bytes * 17 // 10))
    assert run("sessions", "convert", "demo", "int4", "--yes")[0] == 0
    monkeypatch.delenv("KVCHAT_KV_DISK_BYTES")
    assert block_bytes(home).get(exact, 0) == 0
    assert run("cache", "evict", "--all")[0] == 0
    assert sum(block_bytes(home).values()) > 0
    assert run("sessions", "convert", "demo", "exact")[0] == 0
    assert sum(block_bytes(home).values()) == 0


def test_blocks_that_a_pack_keeps_stay(ask: Run, run: Run, home: Path) -> None:
    before = files(home)
    with closing(CacheAdmin(home / "cache")) as admin:
        (fingerprint,) = admin.usages()
        admin.keep("pack", fingerprint, [block.key for block in admin.blocks()])
    found = run.json("sessions", "convert", "demo", "int4", "--yes")["converted"]
    assert found["freed_bytes"] == 0
    assert before < files(home)


def files(home: Path) -> set[Path]:
    return set((home / "cache" / "blocks").rglob("*.safetensors"))


def test_going_back_says_what_it_did_and_would_do(ask: Run, run: Run, home: Path) -> None:
    assert run.json("sessions", "convert", "demo", "exact")["done"] is False
    run("sessions", "convert", "demo", "int4", "--yes")
    told = run("sessions", "convert", "demo", "exact", "--dry-run")[2]
    assert "would be computed exactly again" in told
    assert "nothing was changed" in told
    assert origin_of(session_of(home).namespace) is not None


def test_imported_kv_that_nobody_verified_is_not_called_exact(
    ask: Run, run: Run, tmp_path: Path, tiny_model: Path
) -> None:
    bundle = tmp_path / "demo.kvchat"
    code, _, told = run("export", "demo", "-o", str(bundle))
    assert (code, "no KV" in told) == (0, False), told
    assert run("sessions", "rm", "demo", "--yes")[0] == 0
    assert "until it is verified" in run.err("import", str(bundle), "-m", str(tiny_model))
    assert "imported and is not verified" in run.err("sessions", "convert", "demo", "exact", code=2)
