"""Shadows of sequences: keys and values straight from blocks, and which shadows stay."""

from dataclasses import replace

import pytest
import torch

from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.view import View
from kvchat.engine.formats.shadow.settings import CHUNK_SIZE as CHUNK
from kvchat.engine.formats.shadow.settings import CODED_LEN
from kvchat.engine.formats.shadow.shadows import Shadows
from kvchat.engine.kernels.paged_attention.args import KVPair
from kvchat.engine.kernels.shadow_kv import reference
from kvchat.engine.kernels.shadow_kv.args import ChunkChoice
from kvchat.engine.sequences.batch_plan import ShadowedPrompt
from tests.engine.formats.shadow.contexts import (
    HEAD_DIM,
    NUM_KV_HEADS,
    RANK,
    ROTARY,
    SCALE,
    SMALL,
    VALUE_DIM,
    WIDTH,
    Context,
    attended,
    in_blocks,
    make_context,
    shadow_of,
)

pytestmark = pytest.mark.cpu

PROMPT = 403


def test_a_chunk_of_a_head_is_read_where_it_lies() -> None:
    context = make_context(PROMPT)
    source = in_blocks(context)
    heads, chunks = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 31, 7, 49])
    keys, values = source.take(heads, chunks)
    assert keys.shape == (4, CHUNK, HEAD_DIM)
    assert values.shape == (4, CHUNK, VALUE_DIM)
    for place, (head, chunk) in enumerate(zip(heads.tolist(), chunks.tolist(), strict=True)):
        tokens = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        assert torch.equal(keys[place], context.keys[tokens, head])
        assert torch.equal(values[place], context.values[tokens, head])


@pytest.mark.parametrize(
    ("energy", "start"), [(0.99, PROMPT), (1.0, PROMPT), (1.0, PROMPT + CODED_LEN)], ids=str
)
def test_a_step_over_blocks_is_answered_as_the_definition_says(energy: float, start: int) -> None:
    """One token, as many as a kernel takes, and more; weighed by landmarks, by keys, or by codes of them."""
    sizes = (1, 12, 16, 16, 40)
    context = make_context(start + sum(sizes), rank=RANK if energy < 1 else WIDTH)
    settings = replace(SMALL, energy=energy, query_block=64, exact_len=128)
    layer, source = shadow_of(context, start, settings), in_blocks(context)
    (segment,) = layer.stock.compressed_keys.segments
    assert (segment.directions is None) is (energy == 1)
    assert (segment.scales is not None) is (start > PROMPT)
    at, before, found = start, None, []
    for size in sizes:
        out, steps = attended(layer, context, at, at + size)
        assert len(steps) == 1
        at += size
        choice = ChunkChoice(
            blocks=source.blocks,
            stands=tuple(layer.stock.compressed_keys.stands(layer.stock.landmarks)),
            always=layer.stock.always,
            num_chosen=layer.settings.num_chosen,
            chunk_size=CHUNK,
            num_tokens=at,
            softmax_scale=SCALE,
            before=before,
        )
        wanted = reference.chosen_attention(context.query[at - size : at], source.pools, choice)
        torch.testing.assert_close(out, wanted.out, atol=1e-5, rtol=1e-5)
        assert steps[0].num_fetched == wanted.num_new
        before = wanted.chosen
        found.append(wanted.num_new)
    assert found[0] == NUM_KV_HEADS * layer.settings.num_chosen
    assert 0 < min(found) < found[0]


def shadows_with(limit_bytes: int) -> Shadows:
    return Shadows(View(rule="shadow", budget=64, is_forced=True), {0: ROTARY}, limit_bytes)


def prompt(number: int, num_tokens: int = PROMPT) -> ShadowedPrompt:
    return ShadowedPrompt(name=b"%d" % number, num_tokens=num_tokens)


def say(shadows: Shadows, sequence: int, begun: ShadowedPrompt, context: Context, start: int) -> torch.Tensor:
    """Return what the rest of a context sees that a sequence has in blocks up to `start`."""
    source = in_blocks(context)
    step = shadows.step(SequenceId(sequence), begun, start, source.blocks)
    query, keys, values = context.part(start, len(context.keys))
    return step.attend(0, query, KVPair(keys, values), source.pools, SCALE)


def three(limit_bytes: int) -> Shadows:
    """Return the shadows of three sequences, each behind a prompt of its own."""
    shadows = shadows_with(limit_bytes)
    for sequence in range(3):
        say(shadows, sequence, prompt(sequence), make_context(PROMPT + 1), PROMPT)
    return shadows


def tail_bytes(shadows: Shadows, sequence: int) -> int:
    stock = shadows._sequences[SequenceId(sequence)].layers[0].stock
    return sum(page.num_bytes for rows in (stock.tail_keys, stock.tail_values) for page in rows.pages)


def test_sequences_that_begin_alike_share_what_was_made_of_the_beginning() -> None:
    """What a sequence adds is its own, whatever another adds and compresses; nothing of the prompt is made
    again."""
    whole = make_context(PROMPT + 1)
    shadows = shadows_with(2**40)
    first = say(shadows, 0, prompt(0), whole, PROMPT)
    before = shadows.used_bytes
    second = say(shadows, 1, prompt(0), whole, PROMPT)
    assert torch.equal(first, second)
    assert shadows.counts[0].made_len == PROMPT
    assert shadows.used_bytes - before == tail_bytes(shadows, 1) > 0
    others = [make_context(PROMPT + 700, seed=seed) for seed in (1, 2)]
    for other in others:
        for side in ("keys", "values"):
            getattr(other, side)[:PROMPT] = getattr(whole, side)[:PROMPT]
    found = [say(shadows, 2 + place, prompt(0), other, PROMPT) for place, other in enumerate(others)]
    at = 1024  # behind what has been compressed, where queries begin to choose anew
    later = [say(shadows, 4 + place, prompt(0), other, at) for place, other in enumerate(others)]
    assert shadows.counts[0].made_len == PROMPT
    for place, other in enumerate(others):
        alone = shadows_with(2**40)
        wanted = say(alone, 0, prompt(0), other, PROMPT)
        torch.testing.assert_close(found[place], wanted)
        torch.testing.assert_close(later[place], wanted[at - PROMPT :], atol=1e-5, rtol=1e-5)
        assert shadows._sequences[SequenceId(2 + place)].layers[0].num_compressed > PROMPT // CHUNK


def test_what_two_sequences_share_is_counted_once() -> None:
    shadows = three(2**40)
    kept = shadows.usage(0)
    assert kept is not None
    numbers = [shadow.layers[0].stock.device_tensors()["numbers"] for shadow in shadows._prompts.values()]
    assert kept.device_bytes == shadows.used_bytes + sum(one.nbytes for part in numbers for one in part[:1])
    assert kept.made_tokens == 3 * PROMPT


def test_those_used_longest_ago_make_room_but_not_those_of_the_step() -> None:
    whole = three(0).used_bytes
    shadows = three(whole * 2 // 3)
    shadows.step(SequenceId(0), prompt(0), PROMPT + 1, torch.zeros(0))
    shadows.trim({SequenceId(2)})
    assert (list(shadows._sequences), list(shadows._prompts)) == ([2, 0], [b"2", b"0"])
    assert shadows.used_bytes == whole * 2 // 3
    shadows.limit_bytes = 0
    shadows.trim({SequenceId(2)})
    assert (list(shadows._sequences), list(shadows._prompts)) == ([2], [])
    assert shadows.used_bytes == whole // 3 - tail_bytes(shadows, 2), "what the prompt alone had is gone"
    shadows.forget(SequenceId(2))
    shadows.forget(SequenceId(2))
    assert shadows.used_bytes == 0


def test_a_prompt_stays_for_whoever_begins_with_it_while_there_is_room() -> None:
    shadows = three(2**40)
    own, before = tail_bytes(shadows, 1), shadows.used_bytes
    shadows.forget(SequenceId(1))
    assert shadows.used_bytes == before - own
    say(shadows, 7, prompt(1), make_context(PROMPT + 1), PROMPT)
    assert (shadows.used_bytes, shadows.counts[0].made_len) == (before, 3 * PROMPT)
    shadows.clear()
    assert shadows.used_bytes == 0
