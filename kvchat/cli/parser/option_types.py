"""Options that several commands take, as Typer reads them."""

from pathlib import Path
from typing import Annotated

from kvchat.cli.parser.completion import complete_pack, complete_session
from kvchat.cli.parser.option_class import Argument, Option

SESSION_HELP = "Id, unique start of an id, or title."

Json = Annotated[bool, Option("--json", help="Print JSON.")]
Ndjson = Annotated[bool, Option("--ndjson", help="Print JSON, one object per line.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask.")]
NoKv = Annotated[bool, Option("--no-kv", help="Leave the blocks out.")]
ModelName = Annotated[
    str | None,
    Option("--model", "-m", help="A directory, a GGUF file, a hub id, or `starter`.", metavar="MODEL"),
]
HubModel = Annotated[
    str | None, Option("--model", "-m", help="A directory, a hub id, or `starter`.", metavar="MODEL")
]
Device = Annotated[str | None, Option(help="auto, cpu, cuda or mps.", metavar="DEVICE")]
Dtype = Annotated[str | None, Option(help="auto, float32, bfloat16 or float16.", metavar="DTYPE")]
Weights = Annotated[
    str | None,
    Option(help="auto, fp32, bf16, fp16, int8 or int4 (quantised once, then kept).", metavar="FORM"),
]
CacheFormat = Annotated[
    str | None,
    Option(
        help="How KV is stored: exact; or, approximate, fp8, int8, int4, int2; or what of it is seen: "
        "window, knorm, keydiff, snapkv, shadow.",
        metavar="FORMAT",
    ),
]
WhenFull = Annotated[
    str | None,
    Option(
        help="What becomes of KV for which there is no room: evict refuses a conversation that outgrows "
        "memory, and lets what was used longest ago leave a full disk; compress keeps both in int8, "
        "compress:int4 in int4; shadow lets a conversation's blocks lie in host memory, where each step "
        "chooses what it looks at (both approximate).",
        metavar="CHOICE",
    ),
]
DeviceBytes = Annotated[str | None, Option(help="Most memory for KV blocks, as in 2GiB.", metavar="SIZE")]
Files = Annotated[
    list[Path] | None,
    Option("--file", "-f", help="Put this file before the question; `-` is standard input.", metavar="FILE"),
]
PackName = Annotated[
    str | None,
    Option(
        "--pack",
        help="Begin a new session with this pack; see `kvchat pack`.",
        metavar="NAME",
        autocompletion=complete_pack,
    ),
]
RemoteUrl = Annotated[
    str | None,
    Option(help="Let this OpenAI-compatible server answer; `none` for here.", metavar="URL"),
]
RemoteKeyFile = Annotated[
    Path | None, Option(help="The server's API key, in a file of your own.", metavar="FILE")
]
NamedSession = Annotated[
    str | None,
    Option(
        "--session", "-s", help="Go on in this session.", metavar="SESSION", autocompletion=complete_session
    ),
]
LastSession = Annotated[bool, Option("--continue", "-c", help="Go on in the session that was used last.")]
NewSession = Annotated[str | None, Option("--new", help="Begin a new session of this name.", metavar="NAME")]
SessionWord = Annotated[str, Argument(help=SESSION_HELP, metavar="SESSION", autocompletion=complete_session)]
SessionWords = Annotated[
    list[str] | None,
    Argument(help=SESSION_HELP, metavar="[SESSION]", show_default=False, autocompletion=complete_session),
]
