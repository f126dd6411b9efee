"""What the package index gives, made into folders without running any of it here.

A source distribution is a tar archive that is unpacked as data; wheels are unpacked by pip. An environment
(``venvs/<digest>``) has exactly the releases that are pinned, and the interpreter of the process that builds it; inside
of sandboxes it lies at ``/testbed/.venv``, and what it says about its place says that.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from grpo_bench.contract import GrpoBenchError

from .tasks_script import WORKDIR

VENV = f"{WORKDIR}/.venv"
INTERPRETER = Path(os.path.realpath(sys.base_prefix))
"""Where the interpreter is; sandboxes see it at the same place."""
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_TEST_FOLDERS = ("tests", "test")
_TEST_FILE = re.compile(r"(test_.*|.*_test|tests)\.py")
_METADATA = re.compile(r".*\.egg-info|PKG-INFO|\.git|\.venv|r2e_tests|__pycache__|.*\.py[co]")
_TEXT_BYTES = 1 << 22


class Refused(GrpoBenchError):
    """A pair of releases makes no task."""


def fetch(package: str, version: str, folder: Path) -> Path:
    """A source distribution as a plain file; see :mod:`.tasks_fetching`."""
    path = folder / f"{package}-{version}.tar.gz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        program = str(Path(__file__).with_name("tasks_fetching.py"))
        _run([sys.executable, program, str(folder), f"{package}=={version}"], f"{package} {version}")
    return path


def unpack(archive: Path, folder: Path) -> Path:
    """The one folder of a source distribution."""
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise Refused(f"{archive.name} cannot be unpacked: {error}") from None
    found = [path for path in folder.iterdir() if path.is_dir()]
    if len(found) != 1:
        raise Refused(f"{archive.name} has {len(found)} folders where a source distribution has one")
    return found[0]


def take_tests(release: Path, folder: Path) -> None:
    """Copy the tests of a release: its folder of tests, and test modules at the top."""
    folder.mkdir()
    for name in _TEST_FOLDERS:
        if (release / name).is_dir():
            _copy(release / name, folder)
    for path in sorted(release.iterdir()):
        if path.is_file() and _TEST_FILE.fullmatch(path.name):
            name = "test_all.py" if path.name == "tests.py" else path.name
            (folder / name).write_bytes(path.read_bytes())
    if not any(folder.rglob("*.py")):
        raise Refused("the newer release's source distribution has no tests")


def take_code(release: Path, folder: Path) -> None:
    """Copy a release without its tests and without what the packaging added."""
    folder.mkdir()
    _copy(release, folder, without_tests=True)


def _copy(source: Path, target: Path, *, without_tests: bool = False) -> None:
    """Regular files of text, all with the same mode: links and binary files are no part of a task."""
    for path in sorted(source.rglob("*")):
        parts = path.relative_to(source).parts
        if path.is_symlink() or not path.is_file() or any(_METADATA.fullmatch(part) for part in parts):
            continue
        if without_tests and (any(part in _TEST_FOLDERS for part in parts[:-1]) or _TEST_FILE.fullmatch(parts[-1])):
            continue
        data = path.read_bytes()
        if without_tests and (not _is_text(data) or len(data) > _TEXT_BYTES):
            continue
        copy = target.joinpath(*parts)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(data)
        copy.chmod(0o644)


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def digest_of(pins: Sequence[str]) -> str:
    """The name of the environment with these releases."""
    text = json.dumps([sorted(pins), str(INTERPRETER), sys.version, 1])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_venv(pins: Sequence[str], folder: Path) -> Path:
    """The environment with these releases, made where it is not there yet. No code of theirs runs: they come as wheels,
    and pip only unpacks them."""
    done = folder / digest_of(pins)
    if done.is_dir():
        return done
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as temporary:
        part = Path(temporary) / "venv"
        packages, programs = part / "lib" / VERSION / "site-packages", part / "bin"
        programs.mkdir(parents=True)
        pip = [sys.executable, "-m", "pip", "--quiet", "--no-input"]
        _run([*pip, "install", "--no-deps", "--only-binary", ":all:", "--no-compile", "--target", str(packages),
              *sorted(pins)], "the environment of the tests")
        for name in ("python", "python3", VERSION):
            (programs / name).symlink_to(INTERPRETER / "bin" / VERSION)
        for program in sorted((packages / "bin").glob("*")):
            text = re.sub(rb"\A#!.*", f"#!{VENV}/bin/python".encode(), program.read_bytes())
            (programs / program.name).write_bytes(text)
            (programs / program.name).chmod(0o755)
        shutil.rmtree(packages / "bin", ignore_errors=True)
        (packages / "testbed.pth").write_text(f"{WORKDIR}\n{WORKDIR}/src\n")
        (part / "pyvenv.cfg").write_text(f"home = {INTERPRETER}/bin\ninclude-system-site-packages = false\n"
                                         f"version = {sys.version.split()[0]}\n")
        _run([sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(part), "-p",
              VENV, str(part / "lib")], "the environment of the tests")
        if not done.is_dir():
            part.rename(done)
    return done


class Git:
    """A repository that is made here: always the same commits from the same files."""

    _ENV = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C", "PATH": os.environ["PATH"],
            **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (
                ("NAME", "task"), ("EMAIL", "task@localhost"), ("DATE", "2000-01-01T00:00:00+00:00"))}}

    def __init__(self, folder: Path, work_tree: Path) -> None:
        self._start = ["git", f"--git-dir={folder}", f"--work-tree={work_tree}", "-c", "core.autocrlf=false",
                       "-c", "core.quotePath=false", "-c", "gc.auto=0"]

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run([*self._start, *arguments], env=self._ENV, stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode:
            raise Refused(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode()

    def commit(self, message: str) -> str:
        self("add", "-A", "-f", ".")
        self("commit", "-q", "--allow-empty", "-m", message)
        return self("rev-parse", "HEAD").strip()


def _run(argv: Sequence[str], what: str) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if not line.startswith("WARNING")]
        raise Refused(f"{what}: {lines[-1].removeprefix('ERROR: ') if lines else f'exit code {done.returncode}'}")
