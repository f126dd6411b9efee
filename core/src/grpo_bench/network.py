"""How processes on several hosts reach each other: by the address that ``WorkerContext.host`` gives.

Libraries guess an address of their host from its name, which others may know by another one, or not at all. So they are
told what to use: an address to listen at, and the interface that has it.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

__all__ = ["free_port", "interface_of", "use_interface_of"]

_ADDRESS_OF = 0x8915
"""SIOCGIFADDR of Linux."""
_GLOO = "GLOO_SOCKET_IFNAME"


def free_port(host: str) -> int:
    """A TCP port that nobody listens at now, at an address of this host."""
    with socket.socket(_family(host)) as free:
        free.bind((host, 0))
        return free.getsockname()[1]


def use_interface_of(host: str) -> None:
    """Have the library gloo connect through the interface with this address, unless the environment says another; call
    before it is used."""
    if _GLOO not in os.environ and (name := interface_of(host)) is not None:
        os.environ[_GLOO] = name


def interface_of(host: str) -> str | None:
    """The network interface of this host that has the address; None where none has it, or the system does not say."""
    address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
    if _family(str(address)) == socket.AF_INET6:
        return _with_long_address(str(address))
    return next((name for _, name in socket.if_nameindex() if _address_of(name) == address), None)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _address_of(interface: str) -> str | None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            answer = fcntl.ioctl(asked, _ADDRESS_OF, struct.pack("256s", interface.encode()[:15]))
        except OSError:  # it has none
            return None
    return socket.inet_ntoa(answer[20:24])


def _with_long_address(address: str) -> str | None:
    wanted = socket.inet_pton(socket.AF_INET6, address).hex()
    known = Path("/proc/net/if_inet6")
    lines = known.read_text("ascii").splitlines() if known.is_file() else []
    return next((line.split()[5] for line in lines if line.split()[0] == wanted), None)
