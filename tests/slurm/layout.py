"""What a rig's Slurm is told: its nodes, their racks and fake GPUs, as the text of its files. Nothing here touches the
machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LOGIN, LOGIN_ADDRESS = "login", "10.77.0.1"
REQUEUE_S = 5
"""How long Slurm holds a job that was requeued: until no credential of its last start can still be valid."""


@dataclass(frozen=True)
class Layout:
    """``racks`` of ``per_rack`` nodes named n0, n1, ..., each with ``gpus``; as blocks, which segments of a job fill
    (Slurm 23.11 and newer), or as switches of a tree. ``root`` is another system to run it all in."""

    racks: int = 2
    per_rack: int = 2
    gpus: int = 4
    cpus: int = 8
    blocks: bool = False
    root: Path | None = None

    @property
    def nodes(self) -> dict[str, str]:
        """Addresses by name."""
        return {f"n{number}": f"10.77.1.{number + 1}" for number in range(self.racks * self.per_rack)}

    @property
    def domains(self) -> dict[str, list[str]]:
        """Names of nodes by rack."""
        names = list(self.nodes)
        return {f"rack{rack}": names[rack * self.per_rack:(rack + 1) * self.per_rack] for rack in range(self.racks)}

    def files(self, folder: Path) -> dict[str, str]:
        """What belongs into /etc/slurm, for a rig whose own files are in ``folder``."""
        last = self.racks * self.per_rack - 1
        gres = f"NodeName=n[0-{last}] Name=gpu File={folder}/gpus/nvidia[0-{self.gpus - 1}]\n"
        return {"slurm.conf": self._conf(folder, last), "gres.conf": gres, "topology.conf": self._topology(),
                **({"cgroup.conf": "CgroupPlugin=disabled\n"} if self.blocks else {})}

    def _conf(self, folder: Path, last: int) -> str:
        return f"""\
ClusterName=rig
SlurmctldHost={LOGIN}({LOGIN_ADDRESS})
SlurmUser=root
SlurmdUser=root
AuthInfo=cred_expire={REQUEUE_S}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
SlurmctldLogFile={folder}/logs/slurmctld
SlurmdLogFile={folder}/logs/%n
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
TopologyPlugin=topology/{"block" if self.blocks else "tree"}
SlurmdTimeout=120
MessageTimeout=60
KillWait=30
GresTypes=gpu
NodeName=n[0-{last}] NodeAddr=10.77.1.[1-{last + 1}] CPUs={self.cpus} RealMemory=1000 Gres=gpu:{self.gpus}
PartitionName=gpu Nodes=n[0-{last}] Default=YES MaxTime=INFINITE State=UP
"""

    def _topology(self) -> str:
        kind = "Block" if self.blocks else "Switch"
        racks = [f"{kind}Name={rack} Nodes={','.join(names)}" for rack, names in self.domains.items()]
        top = f"BlockSizes={self.per_rack}" if self.blocks else f"SwitchName=spine Switches={','.join(self.domains)}"
        return "\n".join([*racks, top, ""])
