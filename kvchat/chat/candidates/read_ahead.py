"""Read-ahead: computes the beginning of a message while its end is still being typed."""

from contextlib import suppress
from threading import Lock

from kvchat.chat.conversation import Answering, Conversation
from kvchat.chat.engine_client import EngineClient, RequestHandle
from kvchat.engine.api.events import RequestFinished
from kvchat.engine.api.request import Request
from kvchat.errors import EngineFailed, KvchatError

_WAIT_S = 0.05


class ReadAhead:
    """Computes a prompt that nobody has sent yet, behind everything else."""

    def __init__(self, answering: Answering, request: Request) -> None:
        self.num_tokens = len(request.token_ids)
        self._answering = answering
        self._engine: EngineClient = answering.engine
        self._request = request
        self._lock = Lock()
        self._is_stopped = False
        self._handle: RequestHandle | None = None

    def run(self) -> None:
        """Wait until it is computed or stopped; in a thread of its own. Its blocks are held until `stop`.

        Raises:
            KvchatError: the engine refuses it, and will refuse the message too, or could not compute it.
        """
        with self._lock:
            if self._is_stopped or not self.num_tokens:
                return
            handle = self._handle = self._engine.submit(self._request)
        finished: list[RequestFinished] = []
        while not finished:
            finished = [one for one in handle.take_events(_WAIT_S) if isinstance(one, RequestFinished)]
        if (problem := finished[0].error) is not None:
            raise EngineFailed(problem)

    def stop(self) -> None:
        """End it: the message is sent or given up. What was computed stays cached. From any thread."""
        with self._lock:
            self._is_stopped = True
            handle, self._handle = self._handle, None
        if handle is not None:
            handle.cancel()
            with suppress(KvchatError):
                self._engine.release(handle.sequence)

    def hand_over(self, conversation: Conversation) -> None:
        """Let a conversation's next message find what was computed. Waits for the engine.

        A live branch goes on from its own end and looks nowhere else, so it is let go of where more is known.
        """
        known = self._engine.reusable_len(self._request.token_ids, self._request.namespace)
        if known > len(conversation.token_ids or ()):
            self._answering.release(conversation)
        self.stop()
