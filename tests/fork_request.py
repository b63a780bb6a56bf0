"""Asks a `ForkServer` for a program. Run by itself it is that program for whoever has started it:

python -IS tests/fork_request.py ADDRESS -m MODULE WORD...
"""

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence

LENGTH = 16
"""Bytes of the program's number and of its exit status, as they are told."""


def ask(
    address: str, module: str, words: Sequence[str], environ: Mapping[str, str], streams: Sequence[int]
) -> tuple[int, int]:
    """Have a module run with three standard streams; return the number of its process, and a descriptor that
    its exit status is read from.
    """
    request = {"module": module, "words": words, "cwd": os.getcwd(), "environ": dict(environ)}
    ended, end = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect(address)
        socket.send_fds(channel, [json.dumps(request).encode()], [*streams, end])
    os.close(end)
    return int(os.read(ended, LENGTH)), ended


if __name__ == "__main__":
    where, _, name, *others = sys.argv[1:]
    _, ended_fd = ask(where, name, others, os.environ, (0, 1, 2))
    os._exit(int(os.read(ended_fd, LENGTH)))
