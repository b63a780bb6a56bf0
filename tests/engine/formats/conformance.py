"""Promises that every cache format keeps, whatever it stores and however its layers attend.

A test of a format inherits them and says its row.

What an answer must be is told by an engine that has computed nothing but the same conversation, turn by turn,
and in the exact format by transformers.
"""

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kvchat.cli.main import run
from kvchat.engine.api.ids import GroupId, SequenceId
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.engine import Engine
from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.results import Handle
from tests.engine.conftest import OpenEngine, OpenRecorded, TinyModels
from tests.engine.latent_models import KINDS, SIZES, model_of
from tests.engine.namespaced import name
from tests.engine.recurrent_models import save_recurrent
from tests.engine.tiny_models import Answer, finish, make_config, reference, save_model, token_ids
from tests.tiny_models import write_model

pytestmark = pytest.mark.cpu

BLOCK = 16
PROMPT = 139
WHOLE = PROMPT - PROMPT % BLOCK
"""Tokens of the full blocks of a prompt; its tail goes on with the answer."""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels are interpreted: a step is then seconds, so that answers are short."""
LATENT = "V3, YaRN"
RECURRENT = "Qwen3_5"
Opened = Callable[..., Engine]
Alone = Callable[..., list[list[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A format on a model.

    Args:
        cuts: steps in which a prompt is computed.
        shared: tokens of a prompt that another conversation finds computed; None: all of them.
        exact: tokens of a prompt that the exact format finds computed.
        num_blocks: blocks of each group; too few for four conversations, but behind a shadow, where tokens of
            an answer that is computed again choose together what they look at.
        deviation: bounds of how far logits are from those of the exact format.
    """

    kind: str
    text: str
    cuts: tuple[int, ...] = (1, 33, 512)
    shared: int | None = None
    exact: int = 0
    num_blocks: int = 30
    deviation: tuple[float, float] = (0.0, 0.0)


class Conversation:
    """One conversation on an engine; each message goes on where the last answer ended."""

    def __init__(self, engine: Engine, owner: str = "a") -> None:
        self.engine, self.owner = engine, owner
        self.text: list[int] = []
        self.answer_starts: list[int] = []
        self.sequence: SequenceId | None = None

    def submit(self, ids: Sequence[int], num_tokens: int) -> Handle:
        self.text += ids
        self.answer_starts.append(len(self.text))
        request = Request(
            token_ids=tuple(self.text),
            sampling=SamplingParams(max_tokens=num_tokens),
            namespace=name(self.owner, *self.answer_starts),
            sequence=self.sequence,
        )
        handle = self.engine.submit(request)
        self.sequence = handle.sequence
        return handle

    def finish(self, handle: Handle) -> Answer:
        answer = finish(self.engine, handle)
        self.text += answer.token_ids
        return answer

    def say(self, ids: Sequence[int], num_tokens: int) -> Answer:
        return self.finish(self.submit(ids, num_tokens))

    def elsewhere(self, engine: Engine, owner: str | None = None) -> "Conversation":
        """The same conversation where it has got to, without a sequence of its own."""
        other = Conversation(engine, owner or self.owner)
        other.text, other.answer_starts = list(self.text), list(self.answer_starts)
        return other


class Conformance:
    """Models and engines of a test's row, which a fixture `row` says."""

    @pytest.fixture(autouse=True)
    def _no_kernel_is_refused(self) -> Iterator[None]:
        yield
        assert HEALTH.problems == {}

    @pytest.fixture(scope="module")
    @classmethod
    def latent_dir(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return model_of(LATENT, tmp_path_factory.mktemp("latent"))

    @pytest.fixture(scope="module")
    @classmethod
    def recurrent_dir(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return save_recurrent(RECURRENT, tmp_path_factory.mktemp("recurrent"))

    @pytest.fixture
    def model_dir(self, row: Row, tiny: TinyModels, request: pytest.FixtureRequest) -> Path:
        own = {LATENT: "latent_dir", RECURRENT: "recurrent_dir"}
        found: Path = request.getfixturevalue(own[row.kind]) if row.kind in own else tiny(row.kind)
        return found

    @pytest.fixture
    def opened(self, row: Row, model_dir: Path, open_engine: OpenEngine) -> Opened:
        return lambda **settings: open_engine(model_dir, **{"cache_format": row.text} | settings)

    @pytest.fixture
    def alone(self, row: Row, model_dir: Path, opened: Opened) -> Alone:
        """Return what tells what a conversation of turns (ids, length of the answer) is answered."""

        def answers(*turns: tuple[Sequence[int], int]) -> list[list[int]]:
            if row.text != "exact":
                conversation = Conversation(opened())
                return [conversation.say(ids, num_tokens).token_ids for ids, num_tokens in turns]
            text: list[int] = []
            found = []
            for ids, num_tokens in turns:
                text += ids
                found.append(reference(model_dir).answer(text, num_tokens))
                text += found[-1]
            return found

        return answers


class Promises(Conformance):
    """What every format keeps."""

    def test_answers_do_not_depend_on_how_a_prompt_was_cut(self, row: Row, opened: Opened) -> None:
        """Traps 20 and 32. Token by token where a format allows it, in several chunks, and at once."""
        prompt = token_ids(PROMPT * 4 // 9 if 1 in row.cuts else PROMPT)
        cuts, num_tokens = (row.cuts[1:], 4) if INTERPRETED else (row.cuts, 16)
        found = [
            Conversation(opened(max_batch_tokens=size)).say(prompt, num_tokens).token_ids for size in cuts
        ]
        assert found.count(found[0]) == len(found)

    def test_conversations_in_one_batch_are_answered_as_each_alone(
        self, opened: Opened, alone: Alone
    ) -> None:
        prompts = [token_ids(length, seed) for seed, length in enumerate((PROMPT, 40, PROMPT - 53, 33))]
        engine = opened(max_batch_tokens=100)
        conversations = [Conversation(engine) for _ in prompts]
        handles = [one.submit(prompt, 12) for one, prompt in zip(conversations, prompts, strict=True)]
        found = [one.finish(handle).token_ids for one, handle in zip(conversations, handles, strict=True)]
        assert found == [alone((prompt, 12))[0] for prompt in prompts]

    def test_a_fork_owns_nothing_until_it_writes_and_goes_on_beside_its_parent(
        self, opened: Opened, alone: Alone
    ) -> None:
        """Trap 11."""
        prompt, ends = token_ids(PROMPT), [token_ids(20, seed) for seed in (1, 2)]
        parent = Conversation(opened())
        parent.say(prompt, 8)
        child = parent.elsewhere(parent.engine)
        assert parent.sequence is not None
        child.sequence = parent.engine.fork(parent.sequence)
        assert all(usage.own_bytes == 0 for usage in parent.engine.snapshot().sequences)
        handles = [one.submit(end, 10) for one, end in zip((parent, child), ends, strict=True)]
        found = [one.finish(handle).token_ids for one, handle in zip((parent, child), handles, strict=True)]
        assert found == [alone((prompt, 8), (end, 10))[1] for end in ends]

    def test_another_conversation_reuses_what_is_exact_of_a_common_beginning(
        self, row: Row, opened: Opened
    ) -> None:
        """Trap 28: what was computed from a part of the text is the conversation's own."""
        engine, prompt, turn = opened(), token_ids(PROMPT), token_ids(20, seed=3)
        first = Conversation(engine)
        first.say(prompt, 8)
        later = [*first.text, *turn]
        starts = PROMPT, len(later)
        shared = PROMPT + 7 if row.shared is None else row.shared
        assert engine.reusable_len(later, name("a", *starts)) == PROMPT + 7
        assert engine.reusable_len(later, name("b", *starts)) == shared
        other = first.elsewhere(engine, "b")
        assert other.say(turn, 6).usage.cached_tokens == shared

    def test_under_pressure_and_from_host_memory_it_answers_the_same(
        self, row: Row, opened: Opened, alone: Alone
    ) -> None:
        """Traps 11 and 23: preempted within prompts and answers, and demoted between two."""
        prompts = [token_ids(PROMPT - 23 + 17 * seed, 20 + seed) for seed in range(4)]
        turn = token_ids(12, seed=9)
        num_tokens = 8 if INTERPRETED else 24
        wanted = [alone((prompt, num_tokens), (turn, 4)) for prompt in prompts]
        whole = sum(group.block_bytes for group in opened().snapshot().groups)
        engine = opened(
            device_bytes=row.num_blocks * whole,
            host_bytes=400 * whole,
            max_batch_tokens=64,
            max_context=320,
            eviction="lru",
        )
        conversations = [Conversation(engine, owner) for owner in "abcd"]
        handles = [one.submit(prompt, num_tokens) for one, prompt in zip(conversations, prompts, strict=True)]
        found = [one.finish(handle).token_ids for one, handle in zip(conversations, handles, strict=True)]
        assert found == [first for first, _ in wanted]
        for one, (_, second) in zip(conversations, wanted, strict=True):
            assert one.sequence is not None
            engine.demote(one.sequence)
            engine.check_integrity()
            assert one.say(turn, 4).token_ids == second

    def test_a_prompt_that_is_cancelled_anywhere_leaves_nothing_behind(
        self, opened: Opened, alone: Alone
    ) -> None:
        """Trap 7."""
        prompt = token_ids(PROMPT)
        engine = opened(max_batch_tokens=48)
        for num_steps in range(8):
            handle = Conversation(engine).submit(prompt, 6)
            for _ in range(num_steps):
                engine.step()
            handle.cancel()
            finish(engine, handle)
            engine.release(handle.sequence)
        engine.step()
        assert Conversation(engine).say(prompt, 6).token_ids == alone((prompt, 6))[0]

    def test_a_conversation_is_taken_up_by_another_process_without_computing(
        self, opened: Opened, alone: Alone, tmp_path: Path
    ) -> None:
        prompt, turn = token_ids(PROMPT), token_ids(20, seed=5)
        first = Conversation(opened(cache_dir=tmp_path))
        first.say(prompt, 20)
        first.engine.close()
        second = first.elsewhere(opened(cache_dir=tmp_path))
        result = second.say(turn, 12)
        assert result.usage.cached_tokens == PROMPT + 19
        assert 0 < result.loaded.disk <= PROMPT + 19
        assert result.token_ids == alone((prompt, 20), (turn, 12))[1]

    def test_no_format_takes_what_another_has_computed_for_its_own(
        self, row: Row, model_dir: Path, opened: Opened, tmp_path: Path
    ) -> None:
        """Trap 5. The exact format is answered from exact blocks alone, and finds those of views."""
        prompt = token_ids(PROMPT)
        first = Conversation(opened(cache_dir=tmp_path))
        assert first.engine.info.is_exact == (row.text == "exact") == first.engine.snapshot().is_exact
        first.say(prompt, 12)
        first.engine.close()
        exact = Conversation(opened(cache_dir=tmp_path, cache_format="exact"))
        result = exact.say(prompt, 12)
        assert result.usage.cached_tokens == min(row.exact, PROMPT - 1)
        assert result.token_ids == reference(model_dir).answer(prompt, 12)
        exact.engine.close()
        again = first.elsewhere(opened(cache_dir=tmp_path)).say(token_ids(20, seed=5), 1)
        assert again.usage.cached_tokens == PROMPT + 11


class StoringPromises(Conformance):
    """What formats keep that store something else than keys and values as they are."""

    def test_a_full_block_is_written_once(
        self, row: Row, model_dir: Path, open_recorded: OpenRecorded
    ) -> None:
        """What is read back is not packed again with every step that fills a block."""
        engine, recorder = open_recorded(model_dir, cache_format=row.text)
        group = GroupId(len(engine.snapshot().groups) - 1)
        conversation = Conversation(engine)
        conversation.say(token_ids(70), 3)
        (table,) = (change.block_ids for change in recorder.batches[0].changes if change.group == group)

        def contents() -> list[bytes]:
            return [bytes(recorder.device_pool.read_block(group, block, BLOCK)) for block in table[:3]]

        before = contents()
        conversation.elsewhere(engine).say(token_ids(60, seed=2), 40)
        conversation.say(token_ids(60, seed=3), 40)
        assert contents() == before

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_logits_are_as_far_from_those_of_the_exact_format_as_the_row_says(
        self, row: Row, dtype: str, model_dir: Path, open_recorded: OpenRecorded
    ) -> None:
        rows = []
        for cache_format in ("exact", row.text):
            engine, recorder = open_recorded(
                model_dir, cache_format=cache_format, dtype=dtype, max_batch_tokens=20
            )
            conversation = Conversation(engine)
            conversation.say(token_ids(150), 1)
            assert conversation.sequence is not None
            rows.append(recorder.row(conversation.sequence, 149).float())
        assert torch.isfinite(rows[1]).all()
        least, most = row.deviation
        assert least <= float((rows[0] - rows[1]).norm() / rows[0].norm()) <= most


@pytest.mark.usefixtures("loading_pays")
class TravellingPromises(Conformance):
    """What formats keep on their way to another machine, through the command line."""

    @pytest.fixture
    def talking(self, row: Row, tmp_path: Path) -> Path:
        """A model with a tokenizer and a template."""
        if row.kind == RECURRENT:
            return write_model(save_recurrent(RECURRENT, tmp_path / "talking"))
        directory = write_model(tmp_path / "talking")
        num_tokens = len(json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"])
        changes = {"vocab_size": num_tokens, "max_position_embeddings": 4096}
        if row.kind == LATENT:
            config = transformers.DeepseekV3Config(**SIZES | KINDS[LATENT][1] | changes)
        else:
            config = make_config(row.kind, **changes)
        return save_model(config, directory)

    def test_a_bundle_goes_on_elsewhere_and_is_verified(
        self,
        row: Row,
        talking: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Trap 27: there are no values beside latents, and nothing of size 0 is written."""
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
        model = ["-m", str(talking), "--cache-format", row.text]
        ask = ["ask", *model, "--max-tokens", "8", "--temperature", "0", "--json"]

        def kvchat(home: str, *words: str) -> Any:
            monkeypatch.setenv("KVCHAT_HOME", str(tmp_path / home))
            capsys.readouterr()
            assert run(list(words)) == 0
            out = capsys.readouterr().out
            return json.loads(out) if out else None

        kvchat("here", *ask, "--new", "demo", "My name is Ana and I live in Oslo. " * 26)
        kvchat("here", "export", "demo", "-o", str(tmp_path / "demo.kvchat"), "-q")
        stayed = kvchat("here", *ask, "-s", "demo", "Where do I live?")
        (imported,) = kvchat("there", "import", str(tmp_path / "demo.kvchat"), *model, "--json")
        assert imported["kv"] == "untrusted"
        verified = kvchat("there", "sessions", "verify", *model, "--all", "demo", "--json")
        assert (verified["different"], verified["wrong_logits"], verified["trusted"]) == (0, 0, True)
        assert verified["verified"] == verified["blocks"] >= 4
        moved = kvchat("there", *ask, "-s", "demo", "Where do I live?")
        assert (moved["text"], moved["usage"]) == (stayed["text"], stayed["usage"])
        assert moved["loaded"]["disk"] == imported["tokens"] - 1
        (listed,) = kvchat("there", "sessions", "list", "--json")
        assert moved["exact"] is listed["exact"] is (row.text == "exact")
        sampled = kvchat("here", "sessions", "verify", *model, "--sample", "3", "demo", "--json")
        assert (sampled["different"], sampled["wrong_logits"]) == (0, 0)
