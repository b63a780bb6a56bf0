"""Conversations as tensors: token ids and the weight of each token in the loss."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tools.starter import corpus
from tools.starter.conversation import Message, Mix
from tools.starter.tokenizer import END_ID, ROLE_IDS, letter_pieces, opened, word_openings
from tools.starter.words import Lexicon

# The first tokens of an answer choose which answer it is, and what was sought in the context is hardest to
# find; an error there costs all of it.
NUM_ROUTING_TOKENS = 3
ROUTING_WEIGHT = 3.0
SIGN_SHARE = 0.25


class Batches:
    """Draws batches; every sequence is the beginning of one conversation, so nothing is packed or padded."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lexicon = Lexicon(
            pieces=letter_pieces(tokenizer), openings=word_openings(tokenizer), sign_share=SIGN_SHARE
        )

    def draw(self, seed: int, num_sequences: int, length: int, mix: Mix) -> tuple[Tensor, Tensor]:
        """Return ids [B, L + 1] int64 and weights [B, L + 1] float32, determined by the arguments; pure."""
        rows = [self._sequence(seed * 64 + index, length + 1, mix) for index in range(num_sequences)]
        ids = torch.tensor([row[0] for row in rows])
        weights = torch.tensor([row[1] for row in rows])
        return ids, weights

    def _sequence(self, seed: int, num_tokens: int, mix: Mix) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        weights: list[float] = []
        for message in corpus.conversation(seed, mix, self._lexicon):
            written = opened(message.role, message.text) if mix.is_spaced else message.text
            content = self._tokenizer.encode(written)
            ids += [ROLE_IDS[message.role], *content.ids, END_ID]
            weights += [0.0, *_token_weights(message, content.offsets)]
            if len(ids) >= num_tokens:
                break
        return ids[:num_tokens], weights[:num_tokens]


def _token_weights(message: Message, offsets: list[tuple[int, int]]) -> list[float]:
    weights = [message.weight] * (len(offsets) + 1)
    if message.routed:
        for index in range(min(NUM_ROUTING_TOKENS, len(weights))):
            weights[index] *= ROUTING_WEIGHT
    if message.sought:
        start = message.text.rindex(message.sought)
        end = start + len(message.sought)
        for index, (first, last) in enumerate(offsets):
            if last > start and first < end:
                weights[index] = message.weight * ROUTING_WEIGHT
    return weights
