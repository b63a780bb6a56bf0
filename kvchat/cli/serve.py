"""`kvchat serve`: an engine without a window, for `kvchat ask` and for other programs."""

from threading import Event

from kvchat.cli.compose import Kvchat, opened, start_worker
from kvchat.cli.logs import start_log
from kvchat.cli.serve_options import ServeOptions
from kvchat.cli.signals import StopAsked, StopSignals
from kvchat.cli.streams import Status
from kvchat.cli.waiting import wait_until_loaded
from kvchat.errors import EngineFailed, UsageError

_IDLE_S = 900.0
_POLL_S = 0.5


def serve(options: ServeOptions) -> int:
    """Lend an engine until nobody has used it for a while, or a signal comes."""
    if options.temp:
        raise UsageError("--temp keeps nothing, and an engine that is lent keeps KV; leave it out")
    settings = options.settings()
    start_log(settings.paths, verbose=options.verbose)
    status = Status(quiet=options.quiet, color=settings.display.color)
    with StopSignals() as signals:
        try:
            with opened(settings, start_worker) as kvchat:
                kvchat.load(None, options.model)
                lend(kvchat, status, signals, _IDLE_S if options.idle is None else options.idle)
        except StopAsked:
            pass
        status.clear()
        return signals.exit_code or 0


def lend(kvchat: Kvchat, status: Status, signals: StopSignals, idle_s: float) -> None:
    """Lend an engine through the socket alone. `idle_s`: end after so long without a borrower; 0 never."""
    lender = kvchat.lend()
    if lender is None:
        raise UsageError("a running kvchat lends this model already; `kvchat ask` uses it")
    wait_until_loaded(kvchat.engine, status)
    status.note(f"lending {kvchat.engine.info().model} to `kvchat ask`" + _ending_words(idle_s))
    stop = Event()
    signals.stop_with(stop.set)
    while not stop.wait(_POLL_S) and not (idle_s and lender.idle_s >= idle_s):
        _check(kvchat)


def _check(kvchat: Kvchat) -> None:
    """Raise why the engine died, if it did."""
    if (error := kvchat.engine.status().error) is not None:
        raise EngineFailed(f"{error}; `kvchat doctor` looks at the machine")


def _ending_words(idle_s: float) -> str:
    return f"; ends after {idle_s:g} s without one" if idle_s else ""
