"""The fixtures of the command line: an empty home, and commands run in this process."""

from tests.cli.conftest import (  # noqa: F401
    ask,
    default_model,
    fork_server,
    home,
    model_dir,
    passphrase,
    quick_children,
    run,
    tiny_model,
)
