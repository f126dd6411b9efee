"""A web server on this machine that misbehaves as told."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Shelf:
    """What is served, by path. ``cuts`` ends answers after so many bytes, ``errors`` answers with these codes first;
    ``held`` stops an answer in the middle until ``go``. ``requests`` are method, path and Range as they came."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    lengths: bool = True
    cuts: dict[str, list[int]] = field(default_factory=dict)
    errors: dict[str, list[int]] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    held: str = ""
    reached: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    base: str = ""

    def publish(self, name: str, files: dict[str, bytes], folder: str = "data") -> str:
        """Files with their two documents; returns the metadata URI."""
        self.files.update({f"/{folder}/{path}": content for path, content in files.items()})
        self.files[f"/metadata/{name}.uri"] = f"{self.base}/{folder}\n".encode()
        self.files[f"/metadata/{name}.md5"] = manifest(files).encode()
        return f"{self.base}/metadata/{name}.uri"

    def got(self, path: str) -> list[str | None]:
        """The ranges that were asked for of a file."""
        return [asked for method, at, asked in self.requests if (method, at) == ("GET", path)]


def manifest(files: dict[str, bytes]) -> str:
    return "".join(f"{hashlib.md5(content).hexdigest()}  {path}\n" for path, content in files.items())


@contextmanager
def serving() -> Iterator[Shelf]:
    shelf = Shelf()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(b"")

        def do_GET(self) -> None:
            self._answer(None)

        def _answer(self, body: bytes | None) -> None:
            asked = self.headers.get("Range")
            shelf.requests.append((self.command, self.path, asked))
            content = shelf.files.get(self.path)
            if self.command == "GET" and shelf.errors.get(self.path):
                return self._end(shelf.errors[self.path].pop(0))
            if self.path in shelf.moved:
                return self._end(302, {"Location": shelf.moved[self.path]})
            if content is None:
                return self._end(404)
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and shelf.ranges else 0
            if start and start >= len(content):
                return self._end(416, {"Content-Range": f"bytes */{len(content)}"})
            headers = {"Content-Length": str(len(content) - start)} if shelf.lengths else {"Connection": "close"}
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._end(206 if start else 200, headers)
            self._send(content[start:] if body is None else body)

        def _end(self, code: int, headers: dict[str, str] | None = None) -> None:
            self.send_response(code)
            for name, value in (headers or {"Content-Length": "0"}).items():
                self.send_header(name, value)
            self.end_headers()

        def _send(self, content: bytes) -> None:
            if self.command == "GET" and shelf.cuts.get(self.path):
                self.wfile.write(content[:shelf.cuts[self.path].pop(0)])
                self.close_connection = True
            elif self.command == "GET" and shelf.held == self.path:
                self.wfile.write(content[:len(content) // 2])
                self.wfile.flush()
                shelf.reached.set()
                shelf.go.wait()
            else:
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    shelf.base = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield shelf
    finally:
        shelf.go.set()
        server.shutdown()
        thread.join()
        server.server_close()
