"""Other ways for a conversation, on a script."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

from kvchat.chat.conversation import Conversation
from kvchat.chat.events import (
    Alternative,
    ChatEvent,
    EditCost,
    SampleDelta,
    SampleEvent,
    SamplesFinished,
    TurnFinished,
    TurnStarted,
)
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.session.tree import BranchName, Finish, Turn, TurnId
from tests.ui.gate import HELD_S
from tests.ui.records import prefilled

if TYPE_CHECKING:
    from tests.ui.scripted import ScriptedChat

COST = EditCost(reused_tokens=30, computed_tokens=1, left_turns=1, left_tokens=7)


class ScriptedReading:
    """Is there when the script says so."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_tokens = len(text.split())
        self.is_stopped = False
        self.handed_to: list[str] = []

    def run(self) -> None:
        pass

    def stop(self) -> None:
        self.is_stopped = True

    def hand_over(self, conversation: Conversation) -> None:
        self.handed_to.append(conversation.session.id)


class ScriptedTokens:
    """Has the same alternatives everywhere."""

    def __init__(self, chat: "ScriptedChat") -> None:
        self._chat = chat

    def texts(self, answer: Turn) -> Sequence[str]:
        return [f"{word} " for word in answer.text.split()]

    def alternatives(self, conversation: Conversation, answer_id: TurnId, at: int) -> Sequence[Alternative]:
        answer = next(turn for turn in conversation.turns if turn.id == answer_id)
        said = (answer.token_ids or ())[at]
        return (
            Alternative(token_id=said, text=answer.text.split()[at], probability=0.75),
            Alternative(token_id=900, text="boat", probability=0.2),
            Alternative(token_id=2, text="</s>", probability=0.05, is_end=True),
        )

    def cost(self, conversation: Conversation, answer_id: TurnId, at: int) -> EditCost:
        return replace(COST, reused_tokens=30 + at)

    def go_on(
        self, conversation: Conversation, answer_id: TurnId, at: int, token_id: int, sampling: SamplingParams
    ) -> Iterator[ChatEvent]:
        *before, answer = conversation.turns
        words = [*answer.text.split()[:at], str(token_id)]
        turn = replace(answer, id=TurnId("from a token"), text=" ".join(words), finish=Finish.COMPLETE)
        self._chat.branch_off(conversation, (*before, turn), "token")
        yield TurnStarted(question=None, answer=turn)
        yield TurnFinished(answer=turn)


class ScriptedVariants:
    """Gives numbered answers."""

    def __init__(self, chat: "ScriptedChat") -> None:
        self.answer = "answer number {0}"
        self.hold: Event | None = None
        self.readings: list[ScriptedReading] = []
        self.tokens = ScriptedTokens(chat)
        self._chat = chat

    def compare(
        self, conversation: Conversation, num: int, sampling: SamplingParams
    ) -> Iterator[SampleEvent]:
        with conversation.occupied():
            yield prefilled(31, cached=30, computed=1)
            texts = [self.answer.format(number + 1) for number in range(num)]
            for at in range(0, max(map(len, texts)), 6):
                if conversation.is_stopping:
                    texts = [text[:at] for text in texts]
                    break
                for number, text in enumerate(texts):
                    yield SampleDelta(sample=number, text=text[at : at + 6])
                if self.hold is not None:
                    self.hold.wait(HELD_S)
            finish = Finish.INTERRUPTED if conversation.is_stopping else Finish.COMPLETE
            last = conversation.turns[-1]
            answers = tuple(
                replace(last, id=TurnId(f"candidate-{number}"), text=text, finish=finish)
                for number, text in enumerate(texts)
            )
            yield SamplesFinished(answers=answers)

    def take(self, conversation: Conversation, answer: Turn) -> None:
        self._chat.branch_off(conversation, (*conversation.turns[:-1], answer), "taken")

    def retry_cost(self, conversation: Conversation) -> EditCost:
        return COST

    def reach(self, conversation: Conversation) -> EditCost:
        num = sum(len(turn.token_ids or ()) for turn in conversation.turns)
        return EditCost(reused_tokens=num, computed_tokens=0, left_turns=0, left_tokens=0)

    def throw_away(self, aside: Conversation, back: Conversation) -> bool:
        del self._chat.store.paths[aside.session.id, BranchName(aside.branch.name)]
        return True

    def read_ahead(self, conversation: Conversation | None, system: str, text: str) -> ScriptedReading:
        self.readings.append(ScriptedReading(text))
        return self.readings[-1]

    def words(self, token_ids: Sequence[int]) -> str:
        return " ".join(f"w{token_id}" for token_id in token_ids)

    def num_tokens(self, text: str) -> int:
        return len(text.split())
