"""Sandboxes of bubblewrap for real: what goes in, what stays in, and what is left when they are gone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import PlanError
from grpo_bench_sandbox import Image, Limits, SandboxError, SandboxSpec, backend
from grpo_bench_sandbox.cgroups import make_cgroup
from grpo_bench_sandbox.holding import INSIDE, PARENT, PREFIX

pytestmark = pytest.mark.real("bwrap")

LIMITS = Limits(memory_mb=512, scratch_mb=64, file_mb=32, shm_mb=8, pids=64, open_files=128, output_bytes=4096,
                grace_s=0.5)
QUICK_S = 30.0
ROOT = os.geteuid() == 0


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "code.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("pkg/code.py")
    for command in (["init", "-q", "-b", "main"], ["add", "-A"],
                    ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", "task"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


Use = Callable[[Any], Awaitable[Any]]


@pytest.fixture
def inside(source: Path) -> Callable[..., Any]:
    """Runs a coroutine function with an open sandbox."""
    def run(use: Use, *, limits: Limits = LIMITS, **spec: Any) -> Any:
        async def play() -> Any:
            box = await backend("bwrap").open(SandboxSpec(source=source, **spec), limits)
            try:
                return await use(box)
            finally:
                await box.close()

        return asyncio.run(play())

    return run


def sh(box: Any, script: str, timeout_s: float = QUICK_S) -> Any:
    return box.exec(["sh", "-c", script], timeout_s=timeout_s)


def left_behind(owner: int | None = None) -> list[str]:
    """Folders, cgroups and processes of sandboxes of one owner, this process or one that has ended."""
    mark = f"{PREFIX}{owner or os.getpid()}-"
    found = [str(path) for path in PARENT.glob(f"{mark}*")]
    found += [str(path) for kind in ("memory", "pids", "") for path in Path("/sys/fs/cgroup", kind).rglob(f"{mark}*")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mounts = (process / "mounts").read_text()
        except OSError:
            continue
        if mark in mounts:
            found.append(str(process))
    return found


async def nothing_left(owner: int | None = None) -> None:
    async with asyncio.timeout(30):
        while left_behind(owner):  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.05)


def test_commands_see_the_task_and_keep_its_modes(inside: Any) -> None:
    async def use(box: Any) -> Any:
        assert (await sh(box, "pwd; ./run.sh; cat link; git log --format=%s; git status --short")).stdout == (
            "/testbed\nran\nx = 1\ntask\n")
        assert (await box.exec(["cat"], timeout_s=QUICK_S, stdin="äöü\n")).stdout == "äöü\n"
        said = await sh(box, "echo out; echo err >&2; exit 3")
        return said.exit_code, said.stdout, said.stderr, said.timed_out

    assert inside(use) == (3, "out\n", "err\n", False)


def test_what_commands_write_stays_for_the_next_and_leaves_the_source_alone(inside: Any, source: Path) -> None:
    async def use(box: Any) -> str:
        await sh(box, "echo 2 > pkg/code.py; echo t > /tmp/t; echo h > ~/h; git commit -qam mine")
        await sh(box, "mkdir new; echo n > new/n")
        assert (await sh(box, "cat pkg/code.py /tmp/t ~/h")).stdout == "2\nt\nh\n"
        await box.write("a/b/c.txt", "zwei\n")
        assert await box.read("a/b/c.txt") == "zwei\n"
        assert await box.read("/testbed/a/b/c.txt") == "zwei\n"
        with pytest.raises(FileNotFoundError):
            await box.read("nowhere")
        with pytest.raises(OSError, match="Read-only"):
            await box.write("/usr/x", "")
        return await box.diff()

    diff = inside(use)
    assert "-x = 1\n+2\n" in diff and "+++ b/new/n" in diff and "+++ b/a/b/c.txt" in diff
    assert (source / "pkg" / "code.py").read_text() == "x = 1\n" and not (source / "a").exists()


@pytest.mark.parametrize("trick", [
    "rm -rf .git", "rm -rf .git && git init -q && git add -A && git -c user.name=a -c user.email=a@a commit -qm a",
    "git -c user.name=a -c user.email=a@a commit -qam hide", "printf '*.py -diff\\n' > .gitattributes",
    "git config core.fsmonitor 'touch /tmp/ran'",
    "git config filter.f.clean 'touch /tmp/ran'; echo '* filter=f' > .gitattributes",
    "echo '[alias] add = !true' >> ~/.gitconfig",
    "git config --global filter.f.clean 'touch /tmp/ran; cat'; echo '* filter=f' > .gitattributes",
    "mkdir -p ~/.config/git && echo '*' > ~/.config/git/ignore && rm -rf .git",
    "printf '#!/bin/sh\\ntrue' > git && chmod +x git"])
def test_the_diff_is_right_whatever_was_done_to_git(inside: Any, trick: str) -> None:
    async def use(box: Any) -> str:
        await sh(box, f"echo changed > pkg/code.py; {trick}")
        diff = await box.diff()
        assert (await sh(box, "ls /tmp")).stdout == ""
        return diff

    diff = inside(use)
    assert "pkg/code.py" in diff
    assert "+changed" in diff or "GIT binary patch" in diff


def test_a_diff_of_text_in_any_encoding_can_be_applied(inside: Any) -> None:
    async def use(box: Any) -> tuple[str, str]:
        await sh(box, "printf 'caf\\351\\n' > pkg/code.py")
        diff = await box.diff()
        assert diff == await box.diff()
        await sh(box, "git checkout -q .")
        assert await box.diff() == ""
        assert (await box.exec(["git", "apply"], timeout_s=QUICK_S, stdin=diff)).exit_code == 0
        return diff, (await sh(box, "od -An -c pkg/code.py")).stdout

    diff, found = inside(use)
    assert diff.encode().isascii() and found.split() == ["c", "a", "f", "351", r"\n"]


def test_a_command_cannot_put_a_link_where_the_next_ones_mounts_go(inside: Any, tmp_path: Path) -> None:
    (tmp_path / "lent").mkdir()
    (tmp_path / "lent" / "f").write_text("lent\n")

    async def use(box: Any) -> None:
        for trick in ("mv a x", "mv a/b x", "rm -rf a; ln -s /oldroot/tmp a", "mv a/b/c x", "cd ..; mv testbed x"):
            await sh(box, trick)
            assert (await sh(box, "readlink a a/b; cat a/b/c/f")).stdout == "lent\n"

    inside(use, mounts={"/testbed/a/b/c": str(tmp_path / "lent")})


def test_what_is_too_large_is_not_read_by_halves(inside: Any) -> None:
    async def use(box: Any) -> None:
        await sh(box, "truncate -s 70M large; mkfifo fifo")
        with pytest.raises(OSError, match="larger than"):
            await box.read("large")
        with pytest.raises(FileNotFoundError):
            await box.read("fifo")

    inside(use, limits=LIMITS.model_copy(update={"file_mb": 128}))


@pytest.mark.parametrize("word", ["echo \0", "echo \ud83d", "true " + "x" * 200_000])
def test_what_no_program_can_be_given_is_an_answer(inside: Any, word: str) -> None:
    async def use(box: Any) -> None:
        assert (await sh(box, word)).exit_code == 126
        for attempt in (box.read(word), box.write(word, "x"), box.spawn(["sh", "-c", word], env={})):
            with pytest.raises(OSError, match=r"command line|surrogate"):
                await attempt
        assert (await sh(box, "true")).exit_code == 0

    inside(use)


@pytest.mark.parametrize("script", [
    "echo x > shut; chmod 000 shut", "for i in 1 2 3; do head -c 20000000 /dev/urandom > $i; done"])
def test_files_of_which_no_diff_can_be_made_are_no_patch(inside: Any, script: str) -> None:
    async def use(box: Any) -> None:
        await sh(box, script)
        found = await box.diff()
        assert found.startswith("no diff could be made of these files: ")
        assert found.count("\n") == 1

    inside(use)


def test_a_shut_working_folder_is_an_answer_and_has_a_diff(inside: Any) -> None:
    async def use(box: Any) -> None:
        await sh(box, "echo y > pkg/code.py; chmod 000 .")
        assert (await sh(box, "true")).exit_code == 126
        assert "+y" in await box.diff()

    inside(use)


def test_a_diff_is_made_whoever_has_been_left_behind(inside: Any) -> None:
    async def use(box: Any) -> None:
        fill = "echo y > pkg/code.py; for i in $(seq 200); do sleep 100 & done; echo full; wait"
        program = await box.spawn(["bash", "-c", fill], env={"PATH": "/usr/bin:/bin"})
        await program.stderr.read(1)
        assert "+y" in await box.diff()
        assert await program.wait() != 0

    inside(use)


def test_a_command_that_is_not_there_is_an_answer(inside: Any) -> None:
    async def use(box: Any) -> None:
        for argv in (["no-such-command"], ["/"], ["./pkg"]):
            result = await box.exec(argv, timeout_s=QUICK_S)
            assert (result.exit_code, result.stdout) == (127, "") and result.stderr

    inside(use)


def test_a_tree_ends_with_its_command_and_at_its_limit(inside: Any) -> None:
    """Daemons included: what left its session and its parent is a member of the same tree."""
    daemon = ("python3 -c 'import os,time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
              "time.sleep(300)'")

    async def use(box: Any) -> None:
        assert (await sh(box, f"{daemon}; (setsid sleep 301 >/dev/null 2>&1 &); echo done")).stdout == "done\n"
        late = await sh(box, f"{daemon}; trap 'echo told; exit 9' TERM; echo begun; sleep 302 & wait", 2.0)
        assert (late.exit_code, late.timed_out, late.stdout) == (124, True, "begun\ntold\n")
        deaf = await sh(box, "trap '' TERM; echo begun; while :; do sleep 1; done", 1.0)
        assert (deaf.exit_code, deaf.timed_out, deaf.stdout) == (124, True, "begun\n")
        assert (await sh(box, "ps -e -o args | grep -c '[s]leep 30'")).stdout == "0\n"

    inside(use)
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert not [line for line in commands.splitlines() if "sleep 30" in line]


def test_output_is_kept_up_to_a_bound_and_never_blocks(inside: Any) -> None:
    async def use(box: Any) -> Any:
        return await sh(box, "head -c 3000000 /dev/zero | tr '\\0' x; head -c 100 /dev/zero >&2")

    result = inside(use)
    assert result.exit_code == 0
    assert result.stdout == "x" * 4096 + f"\n[{3_000_000 - 4096} more bytes of output were dropped]\n"
    assert len(result.stderr) == 100


def test_nobody_inside_is_anybody_outside(inside: Any) -> None:
    async def use(box: Any) -> None:
        assert (await sh(box, "id -u; grep ^Cap /proc/self/status | sort -u -k2 | wc -l")).stdout == "1000\n1\n"
        assert "0000000000000000" in (await sh(box, "grep CapEff /proc/self/status")).stdout
        waiting = await box.spawn(["sleep", "60"], env={})
        async with asyncio.timeout(QUICK_S):
            while "child-pid" not in waiting.report:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        status = Path(f"/proc/{waiting.report['child-pid']}/status").read_text()  # noqa: ASYNC240
        outside = next(line.split()[1] for line in status.splitlines() if line.startswith("Uid:"))
        assert (outside != "0") if ROOT else (outside == str(os.geteuid()))
        for forbidden in ("unshare -U true", "mount -t tmpfs none /tmp", "chroot / true", "mknod /tmp/m c 1 3",
                          "touch /usr/x", "touch /x", "touch /dev/x", "echo 1 > /proc/sys/kernel/panic",
                          "echo b > /proc/sysrq-trigger", "kill -9 1"):
            failed = await sh(box, forbidden)
            assert failed.exit_code != 0 or forbidden == "kill -9 1", forbidden

    inside(use)


def test_the_host_is_not_there(inside: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")

    async def use(box: Any) -> None:
        for path in (tmp_path / "secret", "/root", "/home/agent/../root", "/etc/shadow", "/sys", "/run", "/var/lib",
                     Path(__file__)):
            assert (await sh(box, f"ls {path} 2>/dev/null | head -3")).stdout in ("", "sockets\n"), path
        assert (await sh(box, "cut -d: -f1 /etc/passwd")).stdout == "root\nagent\n"
        assert (await sh(box, "env | cut -d= -f1 | sort | tr '\\n' ' '")).stdout == (
            "GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 GIT_CONFIG_VALUE_0 HOME LANG PATH PWD PYTHONDONTWRITEBYTECODE TMPDIR ")
        assert (await sh(box, "ls /usr/lib/python3*/*-packages /usr/local/lib/python3*/*-packages "
                              "2>/dev/null | grep -v :")).stdout.strip() == ""

    inside(use)


def test_there_is_no_network_but_its_own(inside: Any) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0grpo-bench-test-socket")
    abstract.listen()
    code = ("import socket\n"
            "def tried(family, where):\n"
            "    try:\n"
            "        s = socket.socket(family); s.settimeout(3); s.connect(where); return 'CONNECTED'\n"
            "    except OSError as e:\n"
            "        return type(e).__name__\n"
            f"print(tried(socket.AF_INET, ('127.0.0.1', {listener.getsockname()[1]})))\n"
            "print(tried(socket.AF_INET, ('1.1.1.1', 53)))\n"
            "print(tried(socket.AF_UNIX, '\\0grpo-bench-test-socket'))\n"
            "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); print('own')\n")

    async def use(box: Any) -> str:
        return (await box.exec(["python3", "-c", code], timeout_s=QUICK_S)).stdout

    assert inside(use).split() == ["ConnectionRefusedError", "OSError", "ConnectionRefusedError", "own"]
    listener.close()
    abstract.close()


@pytest.mark.parametrize(("what", "script", "says"), [
    ("a file", "head -c 40M /dev/zero > big; stat -c %s big", str(32 << 20)),
    ("all files", "for i in 1 2 3 4; do head -c 30M /dev/zero > f$i; done; du -sm . | cut -f1", None),
    ("home and /tmp too", "for d in ~ /tmp .; do for i in 1 2; do head -c 30M /dev/zero > $d/f$i; done; done; "
     "du -smc ~ /tmp . | tail -1 | cut -f1", None),
    ("shared memory", "head -c 30M /dev/zero > /dev/shm/f; stat -c %s /dev/shm/f", str(8 << 20))])
def test_what_is_written_is_bounded(inside: Any, what: str, script: str, says: str | None) -> None:
    async def use(box: Any) -> str:
        return (await sh(box, f"({script}) 2>/dev/null")).stdout.strip()

    found = inside(use)
    assert found == says if says else 30 <= int(found) <= LIMITS.scratch_mb


def test_inodes_are_bounded(inside: Any) -> None:
    code = ("import os\nn = 0\ntry:\n    while n < 10**6:\n        open(f'i{n}', 'x').close(); n += 1\n"
            "except OSError as e:\n    print(e.errno, n < 100_000)")

    async def use(box: Any) -> str:
        return (await box.exec(["python3", "-c", code], timeout_s=120)).stdout

    assert inside(use) == "28 True\n"


def test_open_files_are_bounded(inside: Any) -> None:
    async def use(box: Any) -> str:
        return (await box.exec(["python3", "-c", "import os\ntry:\n    while True: n = os.open('/', 0)\n"
                                "except OSError: print(n)"], timeout_s=QUICK_S)).stdout

    assert inside(use) == f"{LIMITS.open_files - 1}\n"


def needs(kind: str) -> None:
    group = make_cgroup(LIMITS)
    group.remove()
    if kind not in group.holds and not (kind == "pids" and ROOT):
        pytest.skip(f"no cgroup may bound {kind} here")


def test_a_fork_bomb_hurts_itself_only(inside: Any) -> None:
    needs("pids")

    async def use(box: Any) -> None:
        bomb = asyncio.ensure_future(sh(box, "f() { f | f & }; f; sleep 100", 3.0))
        await asyncio.sleep(1.5)
        assert (await asyncio.to_thread(subprocess.run, ["true"])).returncode == 0
        await bomb
        assert (await sh(box, "echo alive")).stdout == "alive\n"

    inside(use)
    asyncio.run(nothing_left())


def test_memory_is_bounded(inside: Any) -> None:
    needs("memory")
    code = "x = []\nwhile True: x.append(bytearray(1 << 24)); print(len(x), flush=True)"

    async def use(box: Any) -> Any:
        return await box.exec(["python3", "-c", code], timeout_s=QUICK_S)

    result = inside(use)
    assert result.exit_code not in (0, 124)
    assert int(result.stdout.split()[-1]) * 16 <= LIMITS.memory_mb


def test_mounts_are_read_only_and_sockets_can_be_talked_to(source: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "f").write_text("lent\n")
    path = tmp_path / "s.sock"
    code = ("import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/grpo/p.sock'); "
            "s.send(b'me\\n'); print(s.recv(99).decode(), end='')")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"heard " + await reader.readline())
        await writer.drain()
        writer.close()

    async def play() -> None:
        async with await asyncio.start_unix_server(answer, path):
            spec = SandboxSpec(source=source, mounts={"/opt/lib": str(tmp_path / "lib")},
                               sockets={"/run/grpo/p.sock": str(path)})
            box = await backend("bwrap").open(spec, LIMITS)
            assert (await box.exec(["python3", "-c", code], timeout_s=QUICK_S)).stdout == "heard me\n"
            found = await sh(box, "cat /opt/lib/f; echo x > /opt/lib/f || echo no; rm -f /opt/lib/f || echo no")
            assert found.stdout == "lent\nno\nno\n"
            await box.close()

    asyncio.run(play())
    assert (tmp_path / "lib" / "f").read_text() == "lent\n"


def test_what_is_not_there_cannot_be_mounted(inside: Any) -> None:
    async def use(box: Any) -> None:
        raise AssertionError("opened")

    with pytest.raises(PlanError, match="/nowhere/at/all"):
        inside(use, mounts={"/opt/x": "/nowhere/at/all"})
    with pytest.raises(PlanError, match="no plain absolute path"):
        inside(use, mounts={"../x": "/usr"})


def test_a_program_streams_and_is_killed_with_its_tree(inside: Any) -> None:
    async def use(box: Any) -> None:
        program = await box.spawn(["sh", "-c", "read line; echo got $line $NAME; sleep 303 & wait"], stdin=b"this\n",
                                  env={"NAME": "value"})
        assert await program.stdout.readline() == b"got this value\n"
        await program.kill()
        assert await program.wait() != 0
        assert await program.stdout.read() == b""
        done = await box.spawn(["sh", "-c", "exit 5"], env={})
        assert await done.wait() == 5

    inside(use)
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 303" not in commands


def test_a_process_of_the_host_enters_and_is_like_any_other_inside(inside: Any) -> None:
    async def use(box: Any) -> None:
        entry = await box.entry()
        assert entry == await box.entry()
        script = ("id -u; pwd; ls /root 2>&1 | wc -l; cat pkg/code.py; echo made > made; ls /proc/self/fd | wc -l; "
                  "exit 7")
        entered = await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(INSIDE / "enter.py"), json.dumps(asdict(entry)), "sh", "-c", script,
            stdout=asyncio.subprocess.PIPE)
        out, _ = await entered.communicate()
        assert (entered.returncode, out.decode()) == (7, "1000\n/testbed\n1\nx = 1\n4\n")
        assert await box.read("made") == "made\n"
        daemon = await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(INSIDE / "enter.py"), json.dumps(asdict(entry)), "sh", "-c",
            "grep -h '' /proc/self/status | grep -E '^(CapEff|NoNewPrivs)'; sleep 304", stdout=asyncio.subprocess.PIPE)
        assert daemon.stdout is not None
        assert await daemon.stdout.readline() == b"CapEff:\t0000000000000000\n"
        assert await daemon.stdout.readline() == b"NoNewPrivs:\t1\n"
        await box.close()
        async with asyncio.timeout(QUICK_S):
            assert await daemon.wait() != 0

    inside(use)


def test_a_closed_sandbox_is_closed(inside: Any) -> None:
    async def use(box: Any) -> None:
        running = asyncio.ensure_future(sh(box, "sleep 305"))
        await asyncio.sleep(0.5)
        await box.close()
        await box.close()
        await asyncio.wait([running])
        with pytest.raises(SandboxError, match="closed"):
            await sh(box, "true")

    inside(use)
    asyncio.run(nothing_left())


def test_cancelling_leaves_nothing(source: Path) -> None:
    async def play() -> None:
        opening = [asyncio.ensure_future(backend("bwrap").open(SandboxSpec(source=source), LIMITS)) for _ in range(8)]
        for index, task in enumerate(opening):
            await asyncio.sleep(0.01 * index)
            task.cancel()
        for box in await asyncio.gather(*opening, return_exceptions=True):
            if not isinstance(box, BaseException):
                await box.close()
        box = await backend("bwrap").open(SandboxSpec(source=source), LIMITS)
        running = [asyncio.ensure_future(sh(box, "sleep 306")) for _ in range(4)]
        for index, task in enumerate(running):
            await asyncio.sleep(0.03 * index)
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert (await sh(box, "echo fine")).stdout == "fine\n"
        await box.close()
        await nothing_left()

    asyncio.run(play())


def test_whoever_is_killed_leaves_nothing_that_lives(source: Path, tmp_path: Path) -> None:
    program = tmp_path / "owner.py"
    program.write_text(
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from grpo_bench_sandbox import Limits, SandboxSpec, backend\n"
        "async def main():\n"
        f"    box = await backend('bwrap').open(SandboxSpec(source=Path({str(source)!r})), Limits())\n"
        "    await box.entry()\n"
        "    program = await box.spawn(['sh', '-c', 'echo up; setsid sleep 307 & sleep 307'], env={})\n"
        "    print((await program.stdout.readline()).decode(), end='', flush=True)\n"
        "    await asyncio.sleep(300)\n"
        "asyncio.run(main())\n")
    owner = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None and owner.stdout.readline() == "up\n"
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()

    async def swept() -> None:
        async with asyncio.timeout(30):
            while any(item.startswith("/proc/") for item in left_behind(owner.pid)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        box = await backend("bwrap").open(SandboxSpec(source=source), LIMITS)
        await box.close()
        assert left_behind(owner.pid) == []

    asyncio.run(swept())


def test_many_side_by_side(source: Path) -> None:
    async def one(number: int) -> str:
        box = await backend("bwrap").open(SandboxSpec(source=source), LIMITS)
        try:
            await sh(box, f"echo {number} > mine; sleep 0.2", 120)
            return (await sh(box, "cat mine", 120)).stdout + await box.diff()
        finally:
            await box.close()

    async def play() -> list[str]:
        gate = asyncio.Semaphore(16)

        async def gated(number: int) -> str:
            async with gate:
                return await one(number)

        return await asyncio.gather(*(gated(number) for number in range(64)))

    found = asyncio.run(play())
    assert [text.splitlines()[0] for text in found] == [str(number) for number in range(64)]
    assert all(f"+{number}" in text for number, text in enumerate(found))
    asyncio.run(nothing_left())


def test_a_place_inside_cannot_be_two_things(inside: Any) -> None:
    async def use(box: Any) -> None:
        raise AssertionError("opened")

    with pytest.raises(PlanError, match="cannot be both"):
        inside(use, mounts={"/opt/x": "/usr"}, image=Image(binds={"/opt/x": "/tmp"}))


def test_a_program_nobody_reads_is_killed_all_the_same(inside: Any) -> None:
    async def use(box: Any) -> None:
        program = await box.spawn(["sh", "-c", "yes; sleep 308"], env={})
        await asyncio.sleep(0.5)
        async with asyncio.timeout(QUICK_S):
            await program.kill()
        assert await program.wait() != 0

    inside(use)
