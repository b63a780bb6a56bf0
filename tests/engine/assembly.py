"""The engine's bookkeeping over a cache without tensors: who is admitted, with what, and when."""

from collections import abc
from dataclasses import dataclass, field

from kvchat.engine.api.events import LoadPlanned
from kvchat.engine.api.ids import RequestId
from kvchat.engine.api.request import Request
from kvchat.engine.memory.rates import Rates
from kvchat.engine.scheduling.scheduler import Drafter, NoDrafter, Scheduler
from kvchat.engine.sequences.completion_sequence import Completion
from kvchat.engine.sequences.sequence import Sequence
from kvchat.engine.tiering.load_controller import LoadController
from tests.engine.cache.caches import Cache


@dataclass(slots=True)
class Assembly:
    """A scheduler and what loads for it, put together as `Engine` does. Its reader has no thread."""

    cache: Cache
    max_batch_tokens: int
    rates: Rates = field(default_factory=Rates)
    drafter: Drafter = field(default_factory=NoDrafter)
    scheduler: Scheduler = field(init=False)
    loading: LoadController = field(init=False)
    planned: list[LoadPlanned] = field(default_factory=list)

    def __post_init__(self) -> None:
        flights = self.cache.flights
        self.scheduler = Scheduler(self.cache.manager, self.max_batch_tokens, self.drafter)
        self.loading = LoadController(
            self.scheduler, flights, self.rates, self.planned.append, self.cache.carry_out
        )

    def advance_loads(self) -> None:
        self.cache.flights.collect()
        self.loading.advance()


def entry_of(
    number: int, sequence: Sequence, prompt: abc.Sequence[int], max_tokens: int, priority: int = 0
) -> Completion:
    """Return request `number`, whose answer begins on `sequence`."""
    sequence.token_ids = list(prompt)
    request = Request(token_ids=tuple(prompt), priority=priority)
    return Completion(
        id=RequestId(number),
        request=request,
        sequence=sequence,
        max_tokens=max_tokens,
        submitted_s=0.0,
        prompt_len=len(prompt),
        may_draft=True,
    )
