"""Cache of a remote server, for `kvchat cache status`. Loads no model."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from kvchat.app.config import RemoteSettings
from kvchat.engine.api.server_cache import ServerCache
from kvchat.errors import RemoteError
from kvchat.text.cache_usage import request_words, reuse_words, share_words

_UNTOLD = "its /metrics tell nothing of one; vLLM, SGLang, llama.cpp and `kvchat serve` report theirs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """A server. `cache`: None where it reports nothing; `problem`: why not."""

    url: str
    cache: ServerCache | None
    problem: str | None

    def values(self) -> dict[str, object]:
        reported = asdict(self.cache or ServerCache())
        return {"url": self.url, "problem": self.problem} | reported

    def lines(self) -> Iterator[str]:
        yield f"server  {self.url}"
        if self.cache is None:
            yield f"  its cache is unknown: {self.problem}"
            return
        yield f"  device    {share_words(self.cache.usage)}"
        yield f"  host      {share_words(self.cache.host_usage)}"
        yield f"  reused    {reuse_words(self.cache)}"
        yield f"  requests  {request_words(self.cache)}"


def server_state(remote: RemoteSettings) -> ServerState | None:
    """Ask the server, if one answers; it is given up where it is silent for 10 seconds.

    Raises:
        UsageError, ConfigError: the address or the key's file is none.
    """
    if remote.url is None:
        return None
    from kvchat.platform.api_key import read_key
    from kvchat.remote.endpoint import RemoteServer
    from kvchat.remote.metrics import served_cache

    endpoint = RemoteServer(remote.url, None if remote.key_file is None else read_key(remote.key_file))
    try:
        cache = served_cache(endpoint.metrics())
    except RemoteError as error:
        return ServerState(url=endpoint.url, cache=None, problem=str(error))
    problem = None if cache is not None else _UNTOLD
    return ServerState(url=endpoint.url, cache=cache, problem=problem)
