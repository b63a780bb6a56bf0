"""`kvchat cache watch`: the cache of an engine in another process, as a panel or as JSON Lines."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from threading import Event
from typing import Annotated

from kvchat.app.ipc.client import EngineClientProxy, borrow_any
from kvchat.app.open_store import open_store
from kvchat.cli.output.signals import StopSignals
from kvchat.cli.output.streams import Output, as_json
from kvchat.cli.parser.options import ListOptions
from kvchat.cli.parser.typer_parameters import Option, option_class
from kvchat.engine.api.cache_events import CacheEvent
from kvchat.errors import EngineFailed, NoTerminal, UsageError

_INTERVAL_S = 1.0


@option_class
class WatchOptions(ListOptions):
    events: Annotated[
        bool, Option("--events", help="Print what moves and why, as JSON Lines, not what is held.")
    ] = False


def watch_cache(options: WatchOptions) -> int:
    """Follow a cache until a signal comes, or its engine ends."""
    settings = options.settings()
    engine = borrow_any(settings.paths.runtime_dir)
    if engine is None:
        raise UsageError("no kvchat runs here whose cache could be watched; start one: `kvchat serve`")
    with closing(engine):
        if options.events or as_json(options):
            return _print(engine, is_events=options.events)
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise NoTerminal("the panel needs a terminal; --json and --events print without one")
        from kvchat.ui.watch import WatchApp

        with closing(open_store(settings)) as store:
            WatchApp(engine, store).run_in_terminal(settings.paths.log_file)
        _check(engine)
    return 0


def _print(engine: EngineClientProxy, *, is_events: bool) -> int:
    output, stop, events = Output(), Event(), _new_events(engine)
    with StopSignals() as signals:
        signals.stop_with(stop.set)
        while not stop.is_set():
            if is_events:
                for event in next(events):
                    output.json(asdict(event))
            elif (snapshot := engine.snapshot()) is not None:
                output.line(snapshot.to_json())
            _check(engine)
            output.check()
            stop.wait(_INTERVAL_S)
        return signals.exit_code or 0


def _new_events(engine: EngineClientProxy) -> Iterator[Sequence[CacheEvent]]:
    """Yield whenever it is asked what has come since, each event once: the last may still grow, and waits
    until it has stayed the same.
    """
    number, last = 0, None
    while True:
        found = engine.cache_events(number)
        newest = found[-1] if found else None
        due = found if newest == last else found[:-1]
        last = newest
        number = due[-1].number + 1 if due else number
        yield due


def _check(engine: EngineClientProxy) -> None:
    if engine.is_gone:
        raise EngineFailed("the kvchat whose cache was watched has ended")
