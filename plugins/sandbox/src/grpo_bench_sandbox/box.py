"""A sandbox of bubblewrap, open: the contract's ProgramSandbox."""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import shutil
from collections.abc import Callable, Mapping, Sequence

from grpo_bench.contract import Entry, ExecResult, PlanError
from grpo_bench.processes import start_process

from . import bwrap
from .cgroups import Cgroup, make_cgroup
from .holding import INSIDE, PATH, PYTHON, Holder, inside_uid
from .limits import Limits
from .running import DROPPED, Running, collect
from .spec import SandboxError, SandboxSpec

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts")
TIMED_OUT, UNFIT, NOT_FOUND = 124, 126, 127
_MOST_BYTES = 100_000
"""Of a command line, as JSON: below what the kernel takes as one argument, which is how it comes to the sandbox."""
_FILE_S = 60.0
_DIFF_S = 120.0
_READ_BYTES = 1 << 26
_MISSING = 44
_CGROUP_TRIES, _CGROUP_WAIT_S = 200, 0.02
"""How long the kernel may take to forget processes that have ended."""
_GIT = ("git", "--git-dir=/run/pristine", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null",
        "-c", "core.quotePath=false", "-c", "gc.auto=0", "-c", "core.autocrlf=false")
_NO_SETTINGS = {"HOME": "/nonexistent", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
                "GIT_ATTR_NOSYSTEM": "1"}
_ATTRIBUTES = "/run/pristine/info"
_AS_THEY_ARE = "* -filter -ident -working-tree-encoding"
"""What files are read with, whatever the working folder's own attributes say."""
_WHAT_TO_ADD = "{ printf '.\\0'; find . -xdev -mindepth 2 -name .git -prune -printf ':(exclude,literal)%h\\0'; }"
"""Everything but repositories within, one of which without a commit would make git refuse the whole."""


class UnfitError(OSError):
    """Text that no program can be given. This says nothing about the sandbox."""


class BwrapSandbox:
    """Commands share the sandbox's files and nothing else: each has a process tree of its own, which ends with it."""

    def __init__(self, spec: SandboxSpec, limits: Limits, holder: Holder, cgroup: Cgroup) -> None:
        self.spec = spec
        self.limits = limits
        self._holder = holder
        self._cgroup = cgroup
        self._live: set[Running] = set()
        self._lent: list[Running] = []
        self._entry: Entry | None = None
        self._closed = False
        self._bwrap = shutil.which("bwrap") or "bwrap"

    async def exec(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "",
                   env: Mapping[str, str] | None = None) -> ExecResult:
        try:
            check_words(argv, env or {})
            data = _encoded(stdin)
        except UnfitError as error:
            return ExecResult(UNFIT, "", str(error))
        return await self._run(argv, timeout_s, data, env=env or {})

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], stdin: bytes = b"") -> Running:
        check_words(argv, env)
        running = await self._start(argv, env)
        self._lent.append(running)
        try:
            await running.feed(stdin)
        except BaseException:
            await asyncio.shield(self._end(running))
            raise
        return running

    async def entry(self) -> Entry | None:
        if self._entry is None:
            keeper = await self._start(["sh", "-c", "echo ready && exec sleep infinity"], {})
            self._lent.append(keeper)
            if await keeper.stdout.readline() != b"ready\n":
                said = (await keeper.stderr.read()).decode(errors="replace").strip()
                raise SandboxError(f"the sandbox lets nobody in: {said or 'it said nothing'}")
            uid = inside_uid(self.spec)
            self._entry = Entry(
                keeper.report["child-pid"], NAMESPACES, uid, uid, self.spec.workdir, bwrap.environment(self.spec),
                self._rlimits(), self._cgroup.entrances)
        return self._entry

    async def read(self, path: str) -> str:
        script = f'[ -f "$1" ] || exit {_MISSING}; exec cat -- "$1"'
        result = await self._run(["sh", "-c", script, "sh", self._path(path)], _FILE_S, b"", keep=_READ_BYTES)
        if result.exit_code == _MISSING:
            raise FileNotFoundError(f"{path}: no such file")
        if result.exit_code:
            raise OSError(f"{path}: {result.stderr.strip()}")
        if _cut(result.stdout):
            raise OSError(f"{path}: larger than {_READ_BYTES} bytes")
        return result.stdout

    async def write(self, path: str, text: str) -> None:
        script = 'mkdir -p -- "$(dirname -- "$1")" && exec cat > "$1"'
        result = await self._run(["sh", "-c", script, "sh", self._path(path)], _FILE_S, _encoded(text))
        if result.exit_code:
            raise OSError(f"{path}: {result.stderr.strip()}")

    async def diff(self) -> str:
        """What has changed, once whoever still lives inside has been ended: they could keep it from being made. Where
        the files themselves do, such as by being too large, a text that says so and is no patch."""
        await asyncio.gather(*(self._end(running) for running in tuple(self._live)))
        self._entry = None
        git = f"{' '.join(_GIT)} --work-tree={self.spec.workdir}"
        show = f"{git} diff --cached --binary --no-ext-diff --no-textconv --no-color HEAD"
        add = f"{git} add -A --pathspec-from-file=- --pathspec-file-nul"
        enter = f"chmod u+rwx {self.spec.workdir} && cd {self.spec.workdir}"
        found = await self._differ(f"{enter} && mkdir -p {_ATTRIBUTES} && echo '{_AS_THEY_ARE}' > "
                                   f"{_ATTRIBUTES}/attributes && {_WHAT_TO_ADD} | {add} && {show}")
        if _is_text(found):
            return found
        return await self._differ(f"{enter} && echo '* -diff' >> {_ATTRIBUTES}/attributes && {show}")

    async def _differ(self, script: str) -> str:
        """What git says with no settings but ours: those of the user inside are anybody's."""
        async def git(said: str) -> ExecResult:
            return await self._run(["sh", "-c", said], _DIFF_S, b"", pristine=True, keep=_READ_BYTES, env=_NO_SETTINGS,
                                   errors="surrogateescape")

        result = await git(script)
        if result.exit_code:
            why = result.stderr.strip() or f"exit code {result.exit_code}"
            if result.timed_out or (await git(f"{' '.join(_GIT)} cat-file -e HEAD")).exit_code:
                raise SandboxError(f"no diff could be made: {why}")
            return f"no diff could be made of these files: {why[-500:]!a}\n"
        if _cut(result.stdout):
            return f"no diff is made: it is larger than {_READ_BYTES} bytes\n"
        return result.stdout

    async def prepare(self) -> None:
        """Take what is masked out of an image's files, and begin the history that diffs are made from."""
        if self.spec.image.masks:
            result = await self._run(["rm", "-rf", "--", *self.spec.image.masks], _FILE_S, b"")
            if result.exit_code:
                raise SandboxError(f"not all that is masked could be taken away: {result.stderr.strip()}")
        if self.spec.source is None:
            await self.make_history()

    async def make_history(self) -> None:
        """The working folder of an image gets a history of one commit; the one it came with is gone."""
        workdir = self.spec.workdir
        git = f"{' '.join(_GIT)} --work-tree={workdir} -c user.name=task -c user.email=task@localhost"
        result = await self._run(["sh", "-c", (
            f"cd {workdir} && rm -rf {workdir}/.git && {git} init -q && {git} add -A && "
            f"{git} commit -q --allow-empty -m task && cp -a /run/pristine {workdir}/.git && "
            f"git config --file {workdir}/.git/config --unset core.worktree; "
            f"[ -d {workdir}/.git ]")], _DIFF_S, b"", pristine=True)
        if result.exit_code:
            raise SandboxError(f"the image's working folder got no history: {result.stderr.strip()}")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(self._end(running) for running in tuple(self._live)), return_exceptions=True)
        for running in self._lent:
            running.let_go()
        await self._holder.close()
        for _ in range(_CGROUP_TRIES):
            if self._cgroup.remove():
                break
            await asyncio.sleep(_CGROUP_WAIT_S)

    async def _run(self, argv: Sequence[str], timeout_s: float, stdin: bytes, *, env: Mapping[str, str] | None = None,
                   pristine: bool = False, keep: int | None = None, errors: str = "replace") -> ExecResult:
        limit = self.limits.output_bytes if keep is None else keep
        running = await self._start(argv, env or {}, pristine=pristine)
        streams = [asyncio.ensure_future(collect(stream, limit)) for stream in (running.stdout, running.stderr)]
        feeding = asyncio.ensure_future(running.feed(stdin))
        try:
            _, unfinished = await asyncio.wait([asyncio.ensure_future(running.wait()), *streams], timeout=timeout_s)
            await asyncio.shield(self._end(running))
            out, err = (text.decode(errors=errors) for text in await asyncio.gather(*streams))
        finally:
            for task in (feeding, *streams):
                task.cancel()
            if running in self._live:
                await asyncio.shield(self._end(running))
        return self._result(running, await running.wait(), out, err, late=bool(unfinished))

    def _result(self, running: Running, code: int, out: str, err: str, *, late: bool) -> ExecResult:
        if late:
            return ExecResult(TIMED_OUT, out, err, True)
        if code and err.startswith("bwrap: execvp"):
            return ExecResult(NOT_FOUND, out, err.removeprefix("bwrap: execvp "))
        if code and err.startswith("bwrap: Can't chdir to"):
            return ExecResult(UNFIT, out, err.removeprefix("bwrap: "))
        if code and "exit-code" not in running.report:
            raise SandboxError(f"a command could not be started: {err.strip()[-500:] or f'exit code {code}'}")
        return ExecResult(code if code >= 0 else 128 - code, out, err)

    async def _start(self, argv: Sequence[str], env: Mapping[str, str], *, pristine: bool = False) -> Running:
        if self._closed:
            raise SandboxError("the sandbox is closed")
        options = bwrap.arguments(self.spec, self.limits, self._holder, env=env, pristine=pristine)
        told = _unseen(options)
        try:
            return await self._launched(lambda status: [
                self._bwrap, "--args", str(told), "--json-status-fd", str(status), "--", *argv], (told,))
        finally:
            os.close(told)

    async def _launched(self, command: Callable[[int], Sequence[str]], kept: Sequence[int] = (), path: str = PATH,
                        kind: type[Running] = Running) -> Running:
        """Begin a command among what the holder holds. ``command`` gets the descriptor on which it is to report, and
        inherits those that are ``kept``."""
        reading, writing = os.pipe()
        job = {"holder": self._holder.pid, "user": os.geteuid() != 0, "cgroups": self._cgroup.entrances,
               "limits": self._rlimits(), "uid": self._holder.uid, "owner": os.getpid(), "argv": command(writing)}
        try:
            process = await start_process(
                *PYTHON, str(INSIDE / "step.py"), json.dumps(job), stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, pass_fds=[*kept, writing], cwd="/",
                env={"PATH": path}, start_new_session=True)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        running = kind(process, reading, self.limits.grace_s)
        self._live.add(running)
        return running

    async def _end(self, running: Running) -> None:
        try:
            await running.kill()
        finally:
            running.close()
            self._live.discard(running)

    def _rlimits(self) -> dict[str, int]:
        limits = self.limits
        found = {"RLIMIT_CPU": limits.cpu_s, "RLIMIT_FSIZE": limits.file_mb << 20, "RLIMIT_NOFILE": limits.open_files,
                 "RLIMIT_CORE": 0}
        if self._holder.uid is not None:
            found["RLIMIT_NPROC"] = limits.pids
        if "memory" not in self._cgroup.holds:
            found["RLIMIT_AS"] = limits.memory_mb << 20
        return found

    def _path(self, path: str) -> str:
        if not path:
            raise OSError(f"{path!r} is no path")
        check_words([path], {})
        return posixpath.join(self.spec.workdir, path)


async def open_sandbox(spec: SandboxSpec, limits: Limits) -> BwrapSandbox:
    """A new sandbox, its files in place."""
    shown = bwrap.visible(spec)
    for host in shown.values():
        if not os.path.exists(host):  # noqa: ASYNC240 - of this machine, and at once
            raise PlanError(f"{host}, which a sandbox should see, does not exist")
    holder = await Holder.start(spec, limits, _image(spec), list(dict.fromkeys(shown.values())),
                                bwrap.anchors(spec).values())
    box = BwrapSandbox(spec, limits, holder, make_cgroup(limits))
    try:
        if spec.image.root != "host":
            await box.prepare()
    except BaseException:
        await asyncio.shield(box.close())
        raise
    return box


def check_words(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """UnfitError where the kernel would not take a command line."""
    words = [*argv, *env, *env.values()]
    if any(b"\0" in _encoded(word) for word in words):
        raise UnfitError("a command line cannot have a zero byte in it")
    if len(json.dumps(words)) > _MOST_BYTES:
        raise UnfitError(f"a command line cannot be longer than {_MOST_BYTES} bytes")


def _encoded(text: str) -> bytes:
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise UnfitError("half of a surrogate pair is no text") from None


def _cut(text: str) -> bool:
    return len(text.encode(errors="surrogateescape")) > _READ_BYTES and text.endswith(DROPPED)


def _is_text(text: str) -> bool:
    """Whether a diff is UTF-8 throughout. One that is not can be passed on as a diff of binary files."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unseen(options: Sequence[str]) -> int:
    """A descriptor that bubblewrap reads its options from: its command line can be seen from inside."""
    told = os.memfd_create("options", 0)
    os.write(told, b"".join(os.fsencode(option) + b"\0" for option in options))
    os.lseek(told, 0, os.SEEK_SET)
    return told


def _image(spec: SandboxSpec) -> dict[str, object]:
    image = spec.image
    found: dict[str, object] = {"root": image.root, "path": None if image.path is None else str(image.path),
                                "trusted": os.geteuid() == 0}
    if image.root == "sif":
        from .sif import squashfs_of

        assert image.path is not None
        found["offset"] = squashfs_of(image.path).offset
    return found
