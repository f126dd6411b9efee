"""The login node of a rig, as a script: process 1 in namespaces of its own, which all of the rig lives in.

It reads one line of JSON, lays a network, starts munge, Slurm's controller and the nodes, each of which has further
namespaces inside these, and waits until its stdin closes. Then it ends, and with process 1 the kernel ends whatever
runs in its namespaces; the network and the mounts, which no other process sees, go with it. So nothing is left of a
rig, however the one that started it ends. (A fresh /run keeps the named network namespaces out of the real one.)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

BRIDGE = "racks"
NODE = Path(__file__).with_name("node.sh")


def sh(command: str) -> None:
    subprocess.run(["bash", "-euc", command], check=True, stdin=subprocess.DEVNULL)


def start(*command: str) -> None:
    subprocess.Popen(command, stdin=subprocess.DEVNULL)


def main(plan: dict[str, Any]) -> None:
    folder = Path(plan["folder"])
    if plan["root"] is not None:
        move_into(plan["root"], ("/dev", "/sys", *plan["shared"]))
    sh(f"""hostname {plan["name"]}
        mount -t tmpfs tmpfs /run; mkdir /run/tmp /run/munge
        mount --bind {folder}/etc /etc/slurm; mount --bind {folder}/etc/hosts /etc/hosts
        ip link set lo up
        ip link add {BRIDGE} type bridge; ip addr add {plan["address"]}/16 dev {BRIDGE}; ip link set {BRIDGE} up""")
    start("munged", "--foreground", "--force", f"--key-file={folder}/munge.key", f"--seed-file={folder}/munge.seed",
          f"--log-file={folder}/logs/munged")
    for _ in range(1000):
        if Path("/run/munge/munge.socket.2").exists():
            break
        time.sleep(0.02)  # noqa: TID251 (another process is waited for)
    start("slurmctld", "-D")
    for number, (name, address) in enumerate(plan["nodes"].items()):
        sh(f"""ip netns add {name}; ip link add veth{number} type veth peer name eth0 netns {name}
            ip link set veth{number} master {BRIDGE} up
            ip -n {name} addr add {address}/16 dev eth0; ip -n {name} link set eth0 up; ip -n {name} link set lo up""")
        start("nsenter", f"--net=/run/netns/{name}", "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child",
              "--mount-proc", "bash", str(NODE), name, *plan["shared"])
    signal.signal(signal.SIGCHLD, reap)
    sys.stdin.read()


def move_into(root: str, folders: Iterable[str]) -> None:
    """Make ``root`` the root of this process and all it starts, with these folders of the machine's inside."""
    sh(f"""mount --rbind {root} {root}; mount -t proc proc {root}/proc; mount -t tmpfs tmpfs {root}/tmp
       mkdir -p {root}/.left; touch {root}/etc/hosts""")
    for path in folders:
        sh(f"mkdir -p {root}{path}; mount --rbind {path} {root}{path}")
    sh(f"cd {root}; pivot_root . .left; cd /; umount --lazy /.left")
    os.chdir("/")


def reap(*_: object) -> None:
    """Whatever ends without a parent is process 1's to bury."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    main(json.loads(sys.stdin.readline()))
