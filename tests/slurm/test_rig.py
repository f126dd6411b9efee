"""The rig itself: what its nodes have of their own, that jobs run and return on it, and that nothing is left of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..children import pause
from .rig import CHECKOUT, Slurm, slurm

pytestmark = pytest.mark.real("slurm")

HOLD = """
import sys
from tests.slurm.rig import slurm
with slurm() as rig:
    rig.run("sbatch", "--nodes=4", "--wrap=srun sleep 600")
    rig.until(lambda: len(rig.working()) >= 4, "sleepers on all nodes")
    print(rig.folder, flush=True)
    sys.stdin.read()
"""
NODE = 'echo "$SLURMD_NODENAME $(hostname) $SLURM_TOPOLOGY_ADDR $CUDA_VISIBLE_DEVICES"; touch /tmp/mine /dev/shm/mine'


@pytest.fixture(scope="module")
def rig():
    with slurm() as rig:
        yield rig


def below(folder: str) -> list[str]:
    """Command lines of processes that hold a rig's folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_text().replace("\0", " ")
            found += [line] * (folder in line or folder in os.readlink(path / "cwd"))
        except OSError:
            continue
    return found


def test_each_node_has_its_own_name_gpus_and_temporary_folders(rig: Slurm) -> None:
    told = rig.run("srun", "--nodes=4", "--gres=gpu:4", "--exclusive", "bash", "-c", NODE).stdout.splitlines()
    assert sorted(told) == [f"n{number} n{number} spine.rack{number // 2}.n{number} 0,1,2,3" for number in range(4)]
    assert not Path("/tmp/mine").exists()
    assert not Path("/dev/shm/mine").exists()
    addresses = rig.run("srun", "--nodes=4", "hostname", "-I").stdout.split()
    assert sorted(addresses) == sorted(rig.layout.nodes.values())


def test_nothing_is_left_of_rigs_with_jobs_whose_owners_are_ended(rig: Slurm) -> None:
    """A folder is left by SIGKILL, as of any process. The rig beside them is not disturbed."""
    ways = (signal.SIGINT, signal.SIGKILL)
    owners = [subprocess.Popen([sys.executable, "-c", HOLD], cwd=CHECKOUT, text=True, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in ways]
    folders = [owner.stdout.readline().strip() for owner in owners if owner.stdout is not None]
    for owner, folder, way in zip(owners, folders, ways, strict=True):
        assert sum("slurmd" in line or "sleep" in line for line in below(folder)) >= 4
        owner.send_signal(way)
        owner.communicate()
    for folder in folders:
        for _ in range(600):
            if not below(folder):
                break
            pause(0.1)
        assert not below(folder)
        assert folder not in Path("/proc/self/mounts").read_text()
    assert "racks" not in os.listdir("/sys/class/net")
    assert rig.all_idle()
    assert not Path(folders[0]).exists()
    shutil.rmtree(folders[1])
