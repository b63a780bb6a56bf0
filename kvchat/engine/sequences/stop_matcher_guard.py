"""Stop guard: wraps a caller's stop matcher so that its failure ends one request, not the engine."""

import logging

from kvchat.engine.api.request import StopMatcher

log = logging.getLogger(__name__)


class StopMatcherGuard:
    """Asks a matcher of the request's; its answer ends where it fails, and `error` says why.

    A matcher that cannot be forked fails with the first token of the fork.
    """

    def __init__(self, inner: StopMatcher | None, error: str | None = None) -> None:
        """Args:
        inner: None if it has failed already.
        """
        self._inner = inner
        self.error = error

    def feed(self, token_id: int) -> bool:
        """Take the next token and return whether the answer ends with it."""
        if self._inner is None:
            return True
        try:
            return bool(self._inner.feed(token_id))
        except Exception as error:
            self._fail(error)
            return True

    def fork(self) -> "StopMatcherGuard":
        """Return a guard of the matcher's fork."""
        if self._inner is None:
            return StopMatcherGuard(None, self.error)
        try:
            return StopMatcherGuard(self._inner.fork())
        except Exception as error:
            fork = StopMatcherGuard(None)
            fork._fail(error)
            return fork

    def _fail(self, error: Exception) -> None:
        log.warning("a stop matcher failed", exc_info=error)
        self._inner = None
        self.error = f"what looks for stop strings failed: {error!r}"
