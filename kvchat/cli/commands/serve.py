"""`kvchat serve`: an engine without a window, for `kvchat ask` and for other programs."""

from pathlib import Path
from threading import Event
from typing import Annotated

from kvchat.app.composition import Kvchat, opened, start_worker
from kvchat.chat.service import Chat
from kvchat.cli.output.engine_wait import wait_until_loaded
from kvchat.cli.output.logs import start_log
from kvchat.cli.output.signals import StopRequested, StopSignals
from kvchat.cli.output.streams import Output, Status, as_json, tell
from kvchat.cli.parser.options import EngineOptions, Json, Ndjson
from kvchat.cli.parser.typer_parameters import Option, option_class
from kvchat.errors import ConfigError, EngineFailed, UsageError
from kvchat.platform.api_key import OWN_LEN, own_key, read_key
from kvchat.platform.paths import Paths


@option_class
class ServeOptions(EngineOptions):
    json: Json = False
    ndjson: Ndjson = False
    socket_only: Annotated[
        bool, Option("--socket-only", help="Open no port; only lend the engine to `kvchat ask`.")
    ] = False
    port: Annotated[
        int, Option(help="Of this machine alone; 0: the system chooses.", metavar="PORT", min=0, max=65535)
    ] = 0
    api_key_file: Annotated[
        Path | None, Option(help="The key clients have to know; else one is made.", metavar="FILE")
    ] = None
    idle: Annotated[
        float | None,
        Option(help="End after so many seconds without a request; 0 never.", metavar="SECONDS", min=0),
    ] = None


_IDLE_S = 900.0
_POLL_S = 0.5


def serve(options: ServeOptions) -> int:
    """Serve until a signal comes, or only lend an engine until nobody has used it for a while."""
    if options.temp:
        raise UsageError("--temp keeps nothing, and an engine that others use keeps KV; leave it out")
    settings = options.settings()
    start_log(settings.paths, verbose=options.verbose)
    status = Status(quiet=options.quiet, color=settings.display.color)
    # What is missing is told before a model is loaded.
    endpoint = None if options.socket_only else _Endpoint(options, settings.paths)
    with StopSignals() as signals:
        try:
            with opened(settings, start_worker) as kvchat:
                chat = kvchat.load(None, options.model)
                if endpoint is None:
                    idle_s = _IDLE_S if options.idle is None else options.idle
                    lend(kvchat, status, signals, idle_s, Output() if as_json(options) else None)
                else:
                    endpoint.run(kvchat, chat, status, signals)
        except StopRequested:
            pass
        status.clear()
        return signals.exit_code or 0


class _Endpoint:
    """The endpoint that is to be opened.

    Raises:
        ConfigError: its packages or its key are missing.
    """

    def __init__(self, options: ServeOptions, paths: Paths) -> None:
        try:
            from kvchat.serving.app import make_app
            from kvchat.serving.server import Server
        except ImportError as error:
            missing = f"the endpoint needs packages that are not installed ({error.name})"
            raise ConfigError(f"{missing}: pip install 'kvchat[serve]'") from error
        self._make_app, self._server_class = make_app, Server
        self._key_file = options.api_key_file or paths.runtime_dir / "api-key"
        self._key = read_key(self._key_file, OWN_LEN) if options.api_key_file else own_key(self._key_file)
        self._port = options.port
        self._options = options

    def run(self, kvchat: Kvchat, chat: Chat, status: Status, signals: StopSignals) -> None:
        """Answer until a signal comes; the URL is what standard output carries."""
        kvchat.lend_if_possible()
        wait_until_loaded(kvchat.engine, status)
        app = self._make_app(kvchat.engine, chat.template, self._key, chat.sampling)
        server = self._server_class(app, self._port)
        stop = Event()
        signals.stop_with(stop.set)
        try:
            server.start()
            model, key_file = kvchat.engine.info().model, str(self._key_file)
            status.note(f"serving {model}; the API key is in {key_file}")
            tell(self._options, {"url": server.url, "model": model, "api_key_file": key_file}, server.url)
            while not stop.wait(_POLL_S):
                _check(kvchat)
        finally:
            server.close()


def lend(
    kvchat: Kvchat, status: Status, signals: StopSignals, idle_s: float, output: Output | None = None
) -> None:
    """Lend an engine through the socket alone.

    Args:
        idle_s: end after so long without a borrower; 0 never.
        output: where a program reads that it is lent.
    """
    lender = kvchat.lend()
    if lender is None:
        raise UsageError("a running kvchat lends this model already; `kvchat ask` uses it")
    wait_until_loaded(kvchat.engine, status)
    ending = f"; ends after {idle_s:g} s without one" if idle_s else ""
    status.note(f"lending {kvchat.engine.info().model} to `kvchat ask`{ending}")
    if output is not None:
        output.json({"model": kvchat.engine.info().model, "idle_s": idle_s})
    stop = Event()
    signals.stop_with(stop.set)
    while not stop.wait(_POLL_S) and not (idle_s and lender.idle_s >= idle_s):
        _check(kvchat)


def _check(kvchat: Kvchat) -> None:
    """Raise why the engine died, if it did."""
    if (error := kvchat.engine.status().error) is not None:
        raise EngineFailed(f"{error}; `kvchat doctor` looks at the machine")
