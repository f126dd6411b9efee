"""The torch trainer, its loss and its log-probabilities on a GPU: how far from float64, and how many tokens a second.

Takes minutes, so it runs only where it is named. ``python -m benchmarks.gpu_check [--out DIR] [--wheels DIR]`` needs no
installation: sources are found beside it, and what the machine's Python lacks comes from a folder of wheels. Without a
CUDA device the same is done on the CPU, at small sizes.

Errors come first, then speed, each a line as soon as it is known; with ``--out`` the files are written again after
each, so that what was measured stays if the rest is cut short. Ends with 1 if an error is beyond its bound.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile, is_zipfile

if TYPE_CHECKING:
    from ._gpu_errors import Error
    from ._gpu_speed import Speed

ON_REQUEST = True
_ROOT = Path(__file__).resolve().parents[1]
_SOURCES = ("core", "plugins/model_qwen3", "plugins/trainer_torch")
_CARRIED = ("pluggy", "pydantic", "safetensors")
"""What the sources import beside torch and numpy, with what these need in turn."""


def run() -> Iterator[str]:
    device = found_device()
    yield titled(machine(device))
    with tempfile.TemporaryDirectory() as scratch:
        yield from map(str, findings(device, Path(scratch)))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu_check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the figures there, as JSON and as Markdown")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="wheels of packages that this Python lacks")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is a CUDA device")
    given = parser.parse_args(arguments)
    wheels = sorted(given.wheels.glob("*.whl")) if given.wheels is not None else []
    if given.wheels is not None and not wheels:
        parser.error(f"--wheels {given.wheels} holds no wheels; fill it with\n  {_download(given.wheels)}")
    if broken := [wheel.name for wheel in wheels if not is_zipfile(wheel)]:
        parser.error(f"--wheels {given.wheels}: {', '.join(broken)} cannot be unpacked; download again")
    if given.out is not None:
        try:
            given.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--out {given.out} cannot be made: {error.strerror}; name another folder")
    with _importable(wheels):
        if lacking := _lacking():
            parser.error(lacking)
        device = given.device or found_device()
        if device == "cuda" and found_device() != "cuda":
            parser.error("--device cuda: torch sees no CUDA device; leave --device out to check on the CPU")
        return _check(device, given.out)


def findings(device: str, scratch: Path) -> Iterator[Error | Speed]:
    """Everything there is to find out on ``device``; ``scratch`` is for checkpoints."""
    from . import _gpu_errors, _gpu_speed, _gpu_trainer

    with _gpu_errors.matrix_precision("float32"):
        yield from _gpu_errors.log_probability_errors(device)
        yield from _gpu_errors.loss_errors(device)
    yield from _gpu_trainer.trainer_errors(device, scratch)
    yield from _gpu_speed.speeds(device, scratch)


def found_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def machine(device: str) -> dict[str, Any]:
    """What the figures are taken on."""
    import torch

    described = Path("/proc/cpuinfo")
    cpu = re.search(r"model name\s*: (.+)", described.read_text()) if described.exists() else None
    facts = {"name": cpu[1] if cpu else platform.machine(), "device": device, "cores": os.cpu_count(),
             "threads": torch.get_num_threads(), "python": platform.python_version(), "torch": torch.__version__}
    if device == "cuda":
        found = torch.cuda.get_device_properties(0)
        facts |= {"name": found.name, "cpu": facts["name"], "memory_gib": round(found.total_memory / 2**30, 1),
                  "capability": f"{found.major}.{found.minor}", "cuda": torch.version.cuda}
    return facts


def titled(facts: Mapping[str, Any]) -> str:
    half = "" if facts["device"] == "cuda" else "; the CPU half only, at small sizes: no GPU is used"
    return f"{facts['name']}, torch {facts['torch']}{half}"


def _check(device: str, out: Path | None) -> int:
    facts = machine(device)
    print(titled(facts), flush=True)
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for finding in findings(device, Path(scratch)):
            found.append(finding)
            print(finding, flush=True)
            if out is not None:
                _write(out, facts, found)
    beyond = sum(not finding.fine for finding in found)
    print(f"{len(found)} findings, {beyond} beyond their bounds" + (f"; see {out}" if out is not None else ""))
    return 1 if beyond else 0


def _write(out: Path, facts: Mapping[str, Any], found: Sequence[Error | Speed]) -> None:
    name = "gpu_check-" + re.sub(r"[^a-z0-9]+", "-", facts["name"].lower()).strip("-")
    content = {"machine": facts, "findings": [{"kind": type(one).__name__.lower(), **asdict(one)} for one in found]}
    (out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    about = ", ".join(f"{key} {value}" for key, value in facts.items() if key != "name")
    lines = [f"# GPU check: {facts['name']}", "", about]
    for kind, same in groupby(found, type):
        lines += ["", *kind.header(), *(one.row() for one in same)]
    (out / f"{name}.md").write_text("\n".join(lines) + "\n", "utf-8")


@contextmanager
def _importable(wheels: Sequence[Path]) -> Iterator[None]:
    """The sources first on the path, the wheels last: what this Python has itself is taken from there."""
    with tempfile.TemporaryDirectory() as unpacked:
        for wheel in wheels:
            ZipFile(wheel).extractall(unpacked)
        before = list(sys.path)
        sys.path[:0] = [str(_ROOT / part / "src") for part in _SOURCES]
        if wheels:
            sys.path.append(unpacked)
        try:
            yield
        finally:
            sys.path[:] = before


def _lacking() -> str | None:
    """What this Python cannot import, and what to do about it."""
    why = {}
    for name in ("torch", "numpy", *_CARRIED):
        try:
            import_module(name)
        except ImportError as error:
            why[name] = str(error)
    if not why:
        return None
    told = f"{sys.executable} lacks what this check needs ({'; '.join(why.values())})"
    if {"torch", "numpy"} & why.keys():
        return f"{told}: take a Python that has torch 2.6 and numpy 2.0 or newer"
    return f"{told}: where there is a network, fill a folder with\n  {_download(Path('wheels'))}\nand name it --wheels"


def _download(folder: Path) -> str:
    """The command that fetches wheels for this Python, wherever it is run."""
    version = ".".join(platform.python_version_tuple()[:2])
    return (f"python3 -m pip download --only-binary=:all: --python-version {version} --platform "
            f"manylinux2014_{platform.machine()} --constraint constraints.txt --dest {folder} {' '.join(_CARRIED)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
