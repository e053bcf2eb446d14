"""A loopback server that speaks the part of the hub's protocol that fetching a model needs."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE = 2000  # bytes from which a file is stored apart, with a SHA-256 ("LFS")


@dataclass
class FakeRepository:
    files: dict[str, bytes]
    revisions: dict[str, str]  # branch or tag to commit; files are the same at each
    gated: bool = False
    private: bool = False


@dataclass
class FakeHub:
    """Its faults may be changed between requests; ``requests`` logs (method, path, Range header)."""

    repositories: dict[str, FakeRepository] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    cut: dict[str, list[int]] = field(default_factory=dict)  # file: bytes after which each next transfer breaks
    garble: set[str] = field(default_factory=set)  # files whose bytes differ from what was announced
    status: int | None = None  # of every answer
    endpoint: str = ""

    def add(self, name: str, files: dict[str, bytes], **kwargs: bool) -> FakeRepository:
        commit = hashlib.sha1(name.encode()).hexdigest()
        self.repositories[name] = FakeRepository(files, {"main": commit}, **kwargs)
        return self.repositories[name]

    def fetched(self) -> list[str]:
        """Names of the files whose bytes were asked for."""
        paths = [path for method, path, _ in self.requests if method == "GET" and "/resolve/" in path]
        return sorted({path.split("/resolve/")[1].split("/", 1)[1] for path in paths})


@contextmanager
def running() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


_API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)(/(?P<kind>revision|tree)/(?P<revision>[^/]+))?")
_RESOLVE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.state.requests.append((self.command, path, self.headers.get("Range")))
        if self.state.status is not None:
            return self.fail(self.state.status, "")
        match = _API.fullmatch(path) or _RESOLVE.fullmatch(path)
        repository = self.state.repositories.get(match["repo"]) if match else None
        token = self.headers.get("Authorization")
        if token == "Bearer bad":
            return self.fail(401, "", "Invalid credentials in Authorization header")
        if match is None or repository is None or (repository.private and token is None):
            return self.fail(404 if token else 401, "RepoNotFound")
        commit = self.commit(repository, match["revision"] or "main")
        if commit is None:
            return self.fail(404, "RevisionNotFound")
        if match.re is _API:
            return self.send_json(match, repository, commit)
        if repository.gated and token is None:
            return self.fail(401, "GatedRepo")
        if match["file"] not in repository.files:
            return self.fail(404, "EntryNotFound")
        return self.send_file(match["file"], repository.files[match["file"]], commit)

    @staticmethod
    def commit(repository: FakeRepository, revision: str) -> str | None:
        return revision if revision in repository.revisions.values() else repository.revisions.get(revision)

    def fail(self, status: int, code: str, message: str = "refused") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send_json(self, match: re.Match[str], repository: FakeRepository, commit: str) -> None:
        listing = [_tree_entry(name, data) for name, data in repository.files.items()]
        info = {"id": match["repo"], "sha": commit, "gated": repository.gated, "siblings": []}
        body = json.dumps(listing if match["kind"] == "tree" else info).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, name: str, data: bytes, commit: str) -> None:
        wanted = self.headers.get("Range") if self.command == "GET" else None
        first, _, last = (wanted or "").removeprefix("bytes=").partition("-")
        start = int(first or 0)
        tag, whole, data = _etag(data), len(data), data[: int(last) + 1] if last else data
        self.send_response(206 if wanted else 200)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{tag}"')
        self.send_header("Accept-Ranges", "bytes")
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{whole}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        if name in self.state.garble:
            data = bytes(len(data))
        cuts = self.state.cut.get(name)
        if cuts:
            self.wfile.write(data[start : start + cuts.pop(0)])
            self.close_connection = True
            return
        self.wfile.write(data[start:])


def _git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest() if len(data) >= LARGE else _git_id(data)


def _tree_entry(name: str, data: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": _git_id(data)}
    if len(data) >= LARGE:
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry
