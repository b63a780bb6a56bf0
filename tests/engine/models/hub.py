"""A model hub on this machine, which speaks as much of the protocol as a download needs."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

COMMIT = "c" * 40


class Hub(ThreadingHTTPServer):
    """Serves directories as repositories; notes every path it was asked for."""

    def __init__(self, repositories: dict[str, Path]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = repositories
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        self.asked.append(path)
        for name, directory in self.repositories.items():
            files = {
                str(file.relative_to(directory)): file for file in directory.rglob("*") if file.is_file()
            }
            if path in (f"/api/models/{name}", f"/api/models/{name}/revision/main"):
                siblings = [{"rfilename": file} for file in files]
                return _json({"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings})
            if path.startswith(f"/api/models/{name}/tree/"):
                return _json([_entry(relative, file) for relative, file in files.items()])
            prefix = f"/{name}/resolve/{COMMIT}/"
            if path.startswith(prefix) and path.removeprefix(prefix) in files:
                data = files[path.removeprefix(prefix)].read_bytes()
                return 200, data, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        return 404, b"", {"X-Error-Code": "RepoNotFound"}


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        status, body, headers = self.server.answer(self.path.partition("?")[0])
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@contextmanager
def running(repositories: dict[str, Path]) -> Iterator[Hub]:
    with Hub(repositories) as hub:
        thread = Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


def _json(value: object) -> tuple[int, bytes, dict[str, str]]:
    return 200, json.dumps(value).encode(), {"Content-Type": "application/json"}


def _entry(relative: str, file: Path) -> dict[str, object]:
    data = file.read_bytes()
    return {"type": "file", "path": relative, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
