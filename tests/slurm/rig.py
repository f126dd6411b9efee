"""A real Slurm on this one machine, for as long as a test needs it: a login node and nodes with fake GPUs in racks.

Every node has an address, a name, processes, /tmp and /dev/shm of its own; the rest of the file system is shared, as on
a cluster. All of it lives in namespaces below one process (``login``), so that rigs do not see each other, the machine
sees nothing of them but their processes and one folder, and both are gone when the rig is closed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from grpo_bench.fabric._proc import family, table

from .layout import LOGIN, LOGIN_ADDRESS, Layout

NAMESPACES = ("--mount", "--uts", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
OWN = re.compile(r"(munged|slurm(ctld|d|stepd)|: slurmscriptd|unshare|\S*python \S*login.py|bash \S*node.sh)\b")
"""How the command lines of a rig's own processes begin."""
COMMAND_S = 120.0
CHECKOUT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent
"""Where grpo-bench and ray are."""


class RigError(Exception):
    """A rig that does not come up, or a job that does not get where it should; with the logs that may say why."""


@dataclass(frozen=True)
class Work:
    """A process of a job: the node it is on, and its command line."""

    node: str
    line: str


@dataclass(frozen=True)
class Slurm:
    """A rig that is up. ``folder`` is on all its nodes; ``layout`` says which these are."""

    layout: Layout
    folder: Path
    process: subprocess.Popen[str]

    def command(self, *words: str | Path) -> list[str]:
        """The command that runs ``words`` on the login node."""
        here = f"/proc/{self.process.pid}/ns"
        return ["nsenter", f"--mount={here}/mnt", f"--uts={here}/uts", f"--net={here}/net",
                f"--pid={here}/pid_for_children", f"--wdns={self.folder}", *map(str, words)]

    def run(self, *words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node to its end."""
        done = subprocess.run(self.command(*words), check=False, capture_output=True, text=True, timeout=COMMAND_S,
                              stdin=subprocess.DEVNULL)
        if check and done.returncode:
            raise RigError(f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def submit(self, script: Path, *options: str) -> int:
        return int(self.run("sbatch", "--parsable", *options, script).stdout.partition(";")[0])

    def job(self, number: int) -> dict[str, str]:
        """What Slurm says of a job: JobState, ExitCode, Reason, Requeue, ..."""
        shown = self.run("scontrol", "--oneliner", "show", "job", str(number)).stdout
        return {key: value for key, _, value in (word.partition("=") for word in shown.split())}

    def until_job(self, number: int, *states: str, patience_s: float = 120.0) -> dict[str, str]:
        """The job once it is in one of these states; one that is over in another raises, with what it printed."""
        def arrived() -> bool:
            state = self.job(number)["JobState"]
            if state not in states and state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"):
                raise RigError(f"job {number} is {state}, not {' or '.join(states)}\n{self._said(number)}")
            return state in states

        self.until(arrived, f"job {number} to be {' or '.join(states)}", patience_s)
        return self.job(number)

    def _said(self, number: int) -> str:
        output = Path(self.job(number)["StdOut"])
        return output.read_text() if output.exists() else f"{output} was not written"

    def until(self, condition: Callable[[], object], what: str, patience_s: float = 60.0) -> None:
        until = time.monotonic() + patience_s  # noqa: TID251 (other processes are waited for)
        while time.monotonic() < until:  # noqa: TID251
            if condition():
                return
            time.sleep(0.1)  # noqa: TID251
        raise RigError(f"waited {patience_s:.0f} s for {what}\n{self.logs()}")

    def working(self) -> list[Work]:
        """All that runs in the rig for a job: nothing, once it is over."""
        found = []
        for process in family(self.process.pid, table()):
            folder = Path(f"/proc/{process.pid}")
            try:
                line, environment = ((folder / name).read_text(errors="replace") for name in ("cmdline", "environ"))
            except OSError:
                continue
            line = line.replace("\0", " ").strip()
            if line and not OWN.match(line):
                node = next((item for name, _, item in (word.partition("=") for word in environment.split("\0"))
                             if name == "SLURMD_NODENAME"), "")
                found.append(Work(node, line))
        return found

    def logs(self) -> str:
        """The ends of what the daemons say, those of the first few nodes only."""
        names = (LOGIN, "munged", "slurmctld", *list(self.layout.nodes)[:4])
        files = [file for name in names if (file := self.folder / "logs" / name).exists()]
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-2000:]}" for file in files)

    def all_idle(self) -> bool:
        if self.process.poll() is not None:
            raise RigError(f"the rig ended with {self.process.returncode}\n{self.logs()}")
        states = self.run("sinfo", "--noheader", "--Node", "--format=%T", check=False).stdout.split()
        return states == ["idle"] * len(self.layout.nodes)


@contextmanager
def slurm(layout: Layout | None = None) -> Iterator[Slurm]:
    """A rig that is up with all nodes idle. Its path is short: sockets lie below it."""
    layout = layout or Layout()
    with TemporaryDirectory(prefix="rig-", dir="/tmp") as name:
        folder = Path(name)
        _lay_out(layout, folder)
        with (folder / "logs" / "login").open("w") as log:
            process = subprocess.Popen(["unshare", *NAMESPACES, sys.executable, Path(__file__).with_name("login.py")],
                                       stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, start_new_session=True)
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({
                "folder": name, "name": LOGIN, "address": LOGIN_ADDRESS, "nodes": layout.nodes,
                "root": None if layout.root is None else str(layout.root),
                "shared": [name, *sorted({sys.prefix, sys.base_prefix, str(CHECKOUT)})]}) + "\n")
            process.stdin.flush()
            rig = Slurm(layout, folder, process)
            rig.until(rig.all_idle, "all nodes to be idle")
            yield rig
        finally:
            process.communicate()


def _lay_out(layout: Layout, folder: Path) -> None:
    for part in ("etc", "gpus", "logs", "spool", "state"):
        (folder / part).mkdir()
    for file, text in layout.files(folder).items():
        (folder / "etc" / file).write_text(text)
    addresses = {"localhost": "127.0.0.1", LOGIN: LOGIN_ADDRESS, **layout.nodes}
    (folder / "etc" / "hosts").write_text("".join(f"{address} {name}\n" for name, address in addresses.items()))
    for node in layout.nodes:
        (folder / "spool" / node).mkdir()
    for number in range(layout.gpus):
        os.mknod(folder / "gpus" / f"nvidia{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))  # as /dev/null
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))


def lacking() -> str | None:
    """Why there can be no rig here; None where there can."""
    if os.geteuid() != 0:
        return "needs root, for namespaces and Slurm's daemons"
    if missing := [name for name in ("slurmctld", "slurmd", "munged", "ip") if shutil.which(name) is None]:
        return f"not installed: {', '.join(missing)} (Debian's slurm-wlm, munge, iproute2)"
    probe = "ip link add probe type bridge && mount -t tmpfs tmpfs /run && mknod /run/probe c 1 3"
    tried = subprocess.run(["unshare", *NAMESPACES, "bash", "-c", probe], check=False, capture_output=True, text=True)
    return f"namespaces, mounts or devices are not permitted: {tried.stderr.strip()}" if tried.returncode else None
