"""Slurm's commands, Ray's and the driver's as small programs on PATH, which note what they are called with.

``srun`` runs what it is given on this machine, once for each host that it names; ``scancel --signal`` reaches what it
runs. How they behave, files in the folder say: ``version``; ``refuse``, the number of the sbatch that fails; ``stuck``,
where scancel fails; ``over``, a job that no signal finds; ``queue`` and ``accounts``, rows of squeue and sacct;
``after``, those of squeue once a job was told to end; ``network``, the place of each host; ``driver`` and ``node``,
bash for the run itself and a node of Ray.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

COMMANDS = {
    "sbatch": """
if [[ $1 == --version ]]; then echo "slurm $(cat "$FAKES/version")"; exit; fi
count=$(($(cat "$FAKES/count" 2>/dev/null || echo 0) + 1))
echo "$count" > "$FAKES/count"
if [[ $count == "$(cat "$FAKES/refuse" 2>/dev/null)" ]]; then echo "sbatch: error: invalid partition" >&2; exit 1; fi
echo $((100 + count))
""",
    "squeue": """
if [[ ! -s $FAKES/queue ]]; then echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; fi
cat "$FAKES/queue"
""",
    "sacct": 'cat "$FAKES/accounts"\n',
    "scancel": """
if [[ -e $FAKES/stuck ]]; then echo "scancel: error: no permission" >&2; exit 1; fi
if [[ $1 == --batch && $3 == "$(cat "$FAKES/over" 2>/dev/null)" ]]; then echo "scancel: error: over" >&2; exit 1; fi
if [[ $1 == --batch && -e $FAKES/after ]]; then cp "$FAKES/after" "$FAKES/queue"; fi
if [[ $1 == --signal=* ]]; then kill -s "${1#*=}" $(cat "$FAKES/step.${2#*.}") 2>/dev/null; fi
""",
    "scontrol": """
case "$1 $2" in
"show hostnames") tr , '\\n' <<< "$3" ;;
"show node") echo "NodeName=$4 NodeAddr=$4 NodeHostName=$4" ;;
requeue*) [[ ! -e $FAKES/no_requeue ]] ;;
esac
""",
    "getent": 'echo "127.0.1.1 STREAM $2"\n',
    "hostname": "echo 127.0.0.1\n",
    "srun": """
hosts=$SLURM_JOB_NODELIST
while [[ $1 == -* ]]; do
    if [[ $1 == -w ]]; then hosts=$2; shift; fi
    shift
done
step=1
until mkdir "$FAKES/taken.$step" 2>/dev/null; do step=$((step + 1)); done
export SLURM_STEP_ID=$step SLURM_PROCID=0 SLURM_CPUS_ON_NODE=8
for host in ${hosts//,/ }; do
    export SLURMD_NODENAME=$host SLURM_TOPOLOGY_ADDR=$(sed -n "s/^$host //p" "$FAKES/network")
    { until [[ -e $FAKES/step.$step ]]; do sleep 0.02; done; exec "$@"; } & pids+=($!)
    SLURM_PROCID=$((SLURM_PROCID + 1))
done
echo "${pids[*]}" > "$FAKES/step.$step"
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit "${code:-0}"
""",
    "ray": """
trap 'echo "ray ended" >> "$FAKES/calls"; exit 1' TERM
source "$FAKES/node" "$@"
""",
    "grpo-bench": """
env | grep -E '^(RAY_|GRPO_BENCH_|CUDA_|SITE_)' | sort > "$FAKES/env"
cp "$RAY_AUTH_TOKEN_PATH" "$FAKES/token" 2>/dev/null && stat -c %a "$RAY_AUTH_TOKEN_PATH" > "$FAKES/mode"
source "$FAKES/driver" "$@"
""",
}
NODE = """
for word in "$@"; do
    case $word in --port=*) port=${word#*=} ;; esac
done
if [[ -n ${port:-} ]]; then
    python3 -c "import socket, sys, time
with socket.create_server(('127.0.0.1', int(sys.argv[1]))):
    time.sleep(600)" "$port" & listener=$!
    trap 'kill $listener; echo "ray ended" >> "$FAKES/calls"; exit 1' TERM
fi
sleep 600 & wait $!
"""
DRIVER = """
run=$FAKES/../replica-0/20260101-000000-mock-7
mkdir -p "$run"
echo '{}' > "$run/profile.json"
"""
PATIENCE_S = 60


@dataclass(frozen=True)
class Fakes:
    """The programs in ``folder``, and what they were called with."""

    folder: Path

    def __setitem__(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def __getitem__(self, name: str) -> str:
        file = self.folder / name
        return file.read_text() if file.exists() else ""

    def calls(self, program: str) -> list[list[str]]:
        """The words of each call of a program, in order."""
        found = (line.split("\x1f") for line in self["calls"].splitlines())
        return [words[1:] for words in found if words[0] == program]

    def path(self, path: str) -> str:
        return f"{self.folder}:{path}"


def make_fakes(folder: Path) -> Fakes:
    folder.mkdir()
    for name, body in COMMANDS.items():
        note = "words=$(printf '\\x1f%s' \"$@\")\necho \"${0##*/}$words\" >> \"$FAKES/calls\""
        (folder / name).write_text(f"#!/bin/bash\nFAKES={folder}\n{note}\n{body}")
        (folder / name).chmod(0o755)
    fakes = Fakes(folder)
    fakes["version"], fakes["node"], fakes["driver"] = "24.11.5", NODE, DRIVER
    fakes["network"] = "a1 spine.rack0.a1\na2 spine.rack0.a2\nb1 spine.rack1.b1\n"
    return fakes


@dataclass(frozen=True)
class Ended:
    code: int
    said: str


class Batch:
    """A batch script as Slurm runs it: on the first of three hosts, with its output in the job's file."""

    def __init__(self, script: Path, fakes: Fakes, *, number: int, restarts: int = 0) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        environment |= {
            "PATH": fakes.path(os.environ["PATH"]), "SLURM_JOB_ID": str(number), "SLURM_JOB_NODELIST": "a1,a2,b1",
            "RAY_ADDRESS": "of-another-cluster:1", "GRPO_BENCH_SITE": "/of/the/shell", "PYTHONPATH": "/of/the/shell",
            **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {})}
        self._output = script.parent / f"slurm-{number}.out"
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(["bash", script], env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                             stderr=output, start_new_session=True)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def until(self, condition: Callable[[], object]) -> None:
        for _ in range(PATIENCE_S * 20):
            if condition():
                return
            assert self._process.poll() is None, self._output.read_text()
            time.sleep(0.05)  # noqa: TID251 (other processes are waited for)
        raise AssertionError(self._output.read_text())

    def ended(self) -> Ended:
        """How it ended; nothing that it started is left."""
        code = self._process.wait(PATIENCE_S)
        return Ended(code, self._output.read_text())

    def close(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
