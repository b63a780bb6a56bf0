"""Test files that several workers read together.

pytest rewrites the assertions of a test file when it is first imported, and keeps what it made for the next
time. That takes half of a minute for all files, and workers that read them in the same order all do it.
"""

from contextlib import suppress
from importlib import import_module

import pytest


def read_a_share_first(config: pytest.Config) -> None:
    """Import all test files, from another one on than the workers beside this: what they come to later has
    been rewritten by then. Does nothing where no others work or where some tests were chosen.
    """
    worker: dict[str, object] | None = getattr(config, "workerinput", None)
    if worker is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    number, num_workers = int(str(worker["workerid"]).removeprefix("gw")), int(str(worker["workercount"]))
    names = [
        ".".join(file.relative_to(config.rootpath).with_suffix("").parts)
        for file in sorted((config.rootpath / "tests").rglob("test_*.py"))
    ]
    begin = number * len(names) // num_workers
    for name in names[begin:] + names[:begin]:
        with suppress(Exception, pytest.skip.Exception):  # told when it is collected
            import_module(name)
