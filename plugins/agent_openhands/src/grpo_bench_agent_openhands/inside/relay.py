"""A relay from a free port of 127.0.0.1 to a Unix socket, for a client that speaks TCP only.

Each connection has two threads, one for either direction, which end with it.
"""

from __future__ import annotations

import socket
import threading

_CHUNK = 2**16


def start(path: str) -> int:
    """Begin to relay to the socket at ``path``; the port."""
    server = socket.create_server(("127.0.0.1", 0), backlog=16)
    threading.Thread(target=_serve, args=(server, path), daemon=True).start()
    return server.getsockname()[1]


def _serve(server: socket.socket, path: str) -> None:
    while True:
        near, _ = server.accept()
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(path)
        except OSError:
            near.close()
            far.close()
            continue
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy until ``source`` says no more, then say so to ``sink``."""
    try:
        while data := source.recv(_CHUNK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
