"""The command `kvchat`: how a run of it begins and ends."""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from threading import enumerate as enumerate_threads
from threading import main_thread

from kvchat.cli.output.standard_streams import CLOSED_PIPE, complain, flushed, occupy, soften
from kvchat.errors import KvchatError, OutOfMemory, StorageError

_MOST_TOLD, _TOLD_END = 2000, 900
_NEW_OBJECTS_UNTIL_COLLECTION = 50_000
"""What importing makes stays: looking through it over and over again took an eighth of the time to begin."""

_COMPLETION = "_KVCHAT_COMPLETE"
"""Set by a shell that asks what could be typed."""


def main() -> None:
    """Run the command line of this process and end it."""
    gc.set_threshold(_NEW_OBJECTS_UNTIL_COLLECTION)
    occupy()
    soften()
    code = flushed(run(sys.argv[1:]))
    others = [thread for thread in enumerate_threads() if thread is not main_thread()]
    # A model that is still being loaded: native code in a thread does not survive the interpreter's end.
    is_loading = any(thread.daemon for thread in others)
    # Everything is stored and closed. Taking torch's modules apart takes a second of its own, and those of a
    # short command a fifth of its time.
    if is_loading or "torch" in sys.modules or not others:
        if "logging" in sys.modules:
            sys.modules["logging"].shutdown()
        os._exit(code)
    sys.exit(code)


def run(words: Sequence[str]) -> int:
    """Run a command line and return its exit code; a failure is one message on standard error."""
    try:
        return _run(words)
    except KvchatError as error:
        return _fail(words, error, error.exit_code)
    except MemoryError:
        return _fail(words, OutOfMemory("out of memory; choose a smaller --kv-device-bytes or model"), 6)
    except KeyboardInterrupt:
        return _end_json(words, "interrupted", 128 + signal.SIGINT)
    except Exception as error:
        return _fail_unexpectedly(words, error)


def _run(words: Sequence[str]) -> int:
    if not words and _COMPLETION not in os.environ:
        return _open_window()
    from kvchat.cli.parser.command_line import Misused, call

    try:
        return call(words)
    except Misused as error:
        return _fail(words, str(error), error.exit_code)


def _open_window() -> int:
    """Do what `kvchat resume` does. Nothing is said, so that nothing of all commands need be read before."""
    gc.disable()  # until the window is drawn: a twentieth of the time that this takes
    from kvchat.cli.commands.interface import ResumeOptions, resume

    try:
        return resume(ResumeOptions())
    except BrokenPipeError:
        return CLOSED_PIPE
    finally:
        gc.enable()


def _fail(words: Sequence[str], error: KvchatError | str, exit_code: int) -> int:
    """Say what went wrong on standard error, and to whoever reads JSON on standard output too."""
    from kvchat.platform.printable_text import clean_text

    complain(f"kvchat: {_short(clean_text(str(error)))}")  # it may name what an import brought
    return _end_json(words, error, exit_code)


def _short(message: str) -> str:
    """Return a message of which a person sees both ends, whatever was typed: what to do is at the end."""
    return message if len(message) <= _MOST_TOLD else f"{message[:_TOLD_END]} … {message[-_TOLD_END:]}"


def _end_json(words: Sequence[str], error: KvchatError | str, exit_code: int) -> int:
    """Tell whoever reads JSON what went wrong; return the exit code."""
    options = words[: words.index("--")] if "--" in words else words
    if "--json" in options or "--ndjson" in options:
        from kvchat.cli.commands.ask.answer_writers import error_event
        from kvchat.cli.output.streams import Output

        try:
            event = error_event(error, exit_code)
            Output().json(event | {"message": _short(str(error))})
        except BrokenPipeError:
            return CLOSED_PIPE
        except StorageError:  # standard output itself is what went wrong
            pass
    return exit_code


def _fail_unexpectedly(words: Sequence[str], error: Exception) -> int:
    import logging

    from kvchat.app.config import read_settings

    where = "the log cannot be written"
    try:
        home = {name: value for name, value in os.environ.items() if name == "KVCHAT_HOME"}
        paths = read_settings(environ=home).paths
        if not logging.getLogger().handlers:
            from kvchat.cli.output.logs import start_log

            start_log(paths)
        logging.getLogger("kvchat").error("unexpected error", exc_info=error)
        where = f"the details are in {paths.log_file}"
    except (KvchatError, OSError):
        pass
    return _fail(words, f"unexpected error ({type(error).__name__}); {where}", 1)
