"""A plugin with an environment of its own: a lock of tiny packages, which pip finds in a folder and nowhere else."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from grpo_bench.registry.envs import named
from grpo_bench.registry.envs_lock import read_lock
from grpo_bench.registry.envs_python import engine_tag
from grpo_bench.registry.envs_store import Place, Record, write_json

DESCRIPTOR = '''
from grpo_bench.contract import Plugin, Role, Settings, WorkerEnv

class Config(Settings):
    pass

plugin = Plugin("roomy", Role.GENERATOR, "for tests", Config, "none:none",
                env=WorkerEnv({name!r}, __name__ + "/env.toml", {inventory!r}))
'''
INVENTORY = '''
import os, sys
def take():
    print("noise on stdout")
    with open({counter!r}, "a") as file:
        file.write("asked ")
    try:
        import tiny
        version = tiny.VERSION
    except ImportError:
        version = None
    return {{"versions": {{"tiny": version}}, "prefix": sys.prefix}}
'''
LOCK = """
schema = 1
python = ">=3.11"
imports = ["tiny"]

[[steps]]
options = ["--no-deps"]
packages = ["tiny==1.0"]

[files]
"beside.py" = "HERE = True"
"""
COPIER = """#!/bin/sh
if [ "$2" = venv ]; then exec cp -a "{template}" "$3"; fi
exec "{python}" "$@"
"""
SLOW_BACKEND = '''
import os, shutil, threading
def build_wheel(folder, config_settings=None, metadata_directory=None):
    open(os.environ["SLOW_STARTED"], "w").close()
    while not os.path.exists(os.environ["SLOW_GO"]):
        threading.Event().wait(0.05)
    shutil.copy(os.environ["SLOW_WHEEL"], folder)
    return os.path.basename(os.environ["SLOW_WHEEL"])
'''


def wheel(folder: Path, name: str, source: str) -> Path:
    """A wheel of one module, version 1.0."""
    info = f"{name}-1.0.dist-info"
    content = {f"{name}.py": source, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
               f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    record = "".join(f"{file},,\n" for file in (*content, f"{info}/RECORD"))
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**content, f"{info}/RECORD": record}.items():
            archive.writestr(file, text)
    return path


def sdist(folder: Path, name: str, backend: str) -> None:
    """A source distribution whose build runs ``backend``."""
    build = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    with tarfile.open(folder / f"{name}-1.0.tar.gz", "w:gz") as archive:
        for file, text in {"pyproject.toml": build, "backend.py": backend, "PKG-INFO": metadata}.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{file}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))


class Rooms:
    """Installs the plugin with its lock; ``asked`` is how often its inventory function ran. ``copier`` is an
    interpreter to build with: it copies a virtual environment where Python would spend seconds on making one."""

    def __init__(self, workshop, copier: Path) -> None:
        self.workshop = workshop
        self.copier = str(copier)
        self.counter = workshop.folder / "asked"
        self.module = ""

    def plugin(self, lock: str = LOCK, name: str = "tiny", inventory: str = "") -> str:
        """Install the plugin; returns the name of its package."""
        taker = self.workshop.site / f"taker_{name}"
        taker.mkdir(exist_ok=True)
        (taker / "__init__.py").write_text(inventory or INVENTORY.format(counter=str(self.counter)))
        self.module = self.workshop.distribution(f"test-roomy-{name}", {"generator": {"roomy": "plugin"}},
                                                 DESCRIPTOR.format(name=name, inventory=f"taker_{name}:take"))
        self.lock(lock)
        return self.module

    def lock(self, text: str) -> None:
        (self.workshop.site / self.module / "env.toml").write_text(text)

    wheel = staticmethod(wheel)

    def pretend(self, name: str) -> Place:
        """What a build of the environment would have left, at no cost."""
        place = Place(f"{read_lock(named(name)).stem}-{engine_tag()}")
        place.python.parent.mkdir(parents=True)
        place.python.symlink_to(sys.executable)
        place.log.write_text("made\n" * 1000)
        write_json(place.inventory, {"key": "", "inventory": {"versions": {"tiny": "1.0"}}})
        place.finish(Record("0" * 64, "3.11.0", sys.executable, 3_000_000_000))
        return place

    @property
    def asked(self) -> int:
        return self.counter.read_text().count("asked") if self.counter.exists() else 0


@pytest.fixture(scope="module")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests of a module share, so that equal locks are built once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def copier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copier")
    subprocess.run([sys.executable, "-m", "venv", folder / "template"], check=True)
    path = folder / "python"
    path.write_text(COPIER.format(template=folder / "template", python=sys.executable))
    path.chmod(0o755)
    return path


@pytest.fixture
def rooms(workshop, built_once: Path, copier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rooms:
    index = tmp_path / "index"
    index.mkdir()
    wheel(index, "tiny", "VERSION = '1.0'")
    sdist(index, "slow", SLOW_BACKEND)
    sdist(index, "broken", "raise SystemExit('no compiler today')")
    monkeypatch.setenv("XDG_CACHE_HOME", str(built_once))
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return Rooms(workshop, copier)
