"""What attacks are after on the host, and whether they got at it.

There are a file anyone may write to, a server on every kind of socket, a variable in this process's environment and a
key in its session keyring. Whoever connects is written down. ``values`` names them for the attacks.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import tempfile
import threading
from pathlib import Path

MARK_TEXT = "this file of the host is as it was: " + secrets.token_hex(8)
ADD_KEY, KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}.get(os.uname().machine, (-1, -1))
SESSION, UNLINK = -3, 9


class Decoys:
    """Open from ``__enter__`` to ``__exit__``."""

    def __init__(self) -> None:
        self.token, self._secret = secrets.token_hex(12), secrets.token_hex(12)
        self.connected: list[str] = []
        self._folder = Path(tempfile.mkdtemp(prefix="host-", dir="/tmp"))
        self._mark = self._folder / "mark"
        self._sockets: dict[str, socket.socket] = {}
        self._key = -1

    def __enter__(self) -> Decoys:
        self._folder.chmod(0o777)
        self._mark.write_text(MARK_TEXT)
        self._mark.chmod(0o666)
        os.environ["GRPO_ATTACK_DECOY"] = self._secret
        libc = ctypes.CDLL(None, use_errno=True)
        name = self.token.encode()
        self._key = libc.syscall(ADD_KEY, b"user", name, b"of the host", ctypes.c_size_t(11), SESSION)
        for kind, family, form, address in (
                ("tcp", socket.AF_INET, socket.SOCK_STREAM, ("0.0.0.0", 0)),
                ("udp", socket.AF_INET, socket.SOCK_DGRAM, ("0.0.0.0", 0)),
                ("path", socket.AF_UNIX, socket.SOCK_STREAM, str(self._folder / "other-rollout.sock")),
                ("abstract", socket.AF_UNIX, socket.SOCK_STREAM, f"\0host-{self.token}")):
            server = self._sockets[kind] = socket.socket(family, form)
            server.bind(address)
            if form is socket.SOCK_STREAM:
                server.listen()
            threading.Thread(target=self._watch, args=(kind, server, form), daemon=True).start()
        (self._folder / "other-rollout.sock").chmod(0o777)
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._sockets.values():
            server.shutdown(socket.SHUT_RDWR) if server.type is socket.SOCK_STREAM else server.close()
            server.close()
        os.environ.pop("GRPO_ATTACK_DECOY")
        if self._key >= 0:
            ctypes.CDLL(None).syscall(KEYCTL, UNLINK, self._key, SESSION)
        for path in self._folder.iterdir():
            path.unlink()
        self._folder.rmdir()

    @property
    def values(self) -> dict[str, str]:
        return {"MARK_FOLDER": str(self._folder), "MARK_TEXT": MARK_TEXT, "MARK": str(self._mark), "TOKEN": self.token,
                "KEY": self.token, "ABSTRACT": f"host-{self.token}",
                "HOST_ENV_1": self._secret[:12], "HOST_ENV_2": self._secret[12:],
                "REPOSITORY": str(Path(__file__).parents[4]),
                "HOST_PID": str(os.getpid()), "SOCKET": str(self._folder / "other-rollout.sock"),
                "PORT": str(self._sockets["tcp"].getsockname()[1]), "HOST_ADDRESS": _address(),
                "UDP_PORT": str(self._sockets["udp"].getsockname()[1])}

    def harm(self) -> list[str]:
        """What happened to the host."""
        found = [f"a connection to {kind}" for kind in self.connected]
        if self._mark.read_text() != MARK_TEXT:
            found.append("the host's file was changed")
        others = {path.name for path in self._folder.iterdir()} - {"mark", "other-rollout.sock"}
        return found + [f"a file on the host: {name}" for name in sorted(others)]

    def _watch(self, kind: str, server: socket.socket, form: int) -> None:
        while True:
            try:
                if form == socket.SOCK_DGRAM:
                    if self.token.encode() in server.recv(4096):
                        self.connected.append(kind)
                else:
                    server.accept()[0].close()
                    self.connected.append(kind)
            except OSError:
                return


def left_running(token: str) -> list[int]:
    """Processes of this machine, wherever they are, that come from an attack with this token."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            for part in ("environ", "cmdline"):
                try:
                    if f"ATTACK={token}" in (text := Path("/proc", name, part).read_text(errors="replace")) or (
                            part == "cmdline" and text.startswith(token)):
                        found.append(int(name))
                except OSError:
                    continue
    return sorted(set(found))


def _address() -> str:
    """An address of this host that is not its loopback; that where there is no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
