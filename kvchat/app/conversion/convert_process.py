"""`kvchat sessions convert` in a process of its own, which loads the model once more and leaves nothing."""

from kvchat.app.child_process import ended
from kvchat.app.config import Settings


def convert_words(
    settings: Settings, session_id: str, cache_format: str, model: str, *, dry_run: bool
) -> str:
    """Convert a session's stored KV and return what the command said of it.

    Args:
        model: what the session's KV was computed with.
        dry_run: change nothing; the words say what it would save and lose. Only then is that measured.

    Raises:
        EngineFailed: with what the command said instead; the session is as it was.
    """
    words = [
        "sessions",
        "convert",
        session_id,
        cache_format,
        "-m",
        model,
        *(["--dry-run"] if dry_run else ["--yes", "--no-gauge"]),
    ]
    lines = ended(settings, words).stderr.strip().splitlines()
    return "\n".join(filter(None, map(_for_the_window, lines)))


def _for_the_window(line: str) -> str:
    """Return a line without what a command line alone can do or has not done."""
    return line.partition(": kvchat ")[0].removesuffix("nothing was changed").removesuffix("; ")
