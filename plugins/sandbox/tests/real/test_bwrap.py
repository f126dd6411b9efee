"""Sandboxes of bubblewrap for real: what commands see and leave, and how programs and processes come in."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import PlanError
from grpo_bench_sandbox import Image, SandboxSpec, backend
from grpo_bench_sandbox.holding import INSIDE

from .boxes import LIMITS, QUICK_S, ROOT, sh

pytestmark = pytest.mark.real("bwrap")


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


@pytest.mark.parametrize("folder", ["/tmp", "/home/agent", "/testbed", "/opt"])
def test_a_mount_may_lie_deep_in_any_folder(inside: Any, tmp_path: Path, folder: str) -> None:
    """As where an environment of workers lies in the host's /tmp, and is shown in the same place."""
    (lent := tmp_path / "lent").mkdir()
    (lent / "f").write_text("lent\n")
    where = f"{folder}/user/.cache/envs/one"

    async def use(box: Any) -> None:
        for _ in range(2):
            assert (await sh(box, f"cat {where}/f; touch {where}/g || echo no")).stdout == "lent\nno\n"
        assert await box.entry() is not None

    inside(use, mounts={where: str(lent)})


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


def test_a_place_inside_cannot_be_two_things(inside: Any) -> None:
    async def use(box: Any) -> None:
        raise AssertionError("opened")

    with pytest.raises(PlanError, match="cannot be both"):
        inside(use, mounts={"/opt/x": "/usr"}, image=Image(binds={"/opt/x": "/tmp"}))
