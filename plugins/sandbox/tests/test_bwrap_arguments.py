"""What bubblewrap is told, without running it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpo_bench.contract import PlanError
from grpo_bench_sandbox import Image, Limits, SandboxSpec
from grpo_bench_sandbox.bwrap import anchors, arguments, environment, foreign, visible


def told(spec: SandboxSpec, **more: Any) -> list[str]:
    holder: Any = SimpleNamespace(mount=Path("/hold"), places={host: f"/hold/at/{number}" for number, host in
                                                               enumerate(visible(spec).values())})
    return arguments(spec, Limits(shm_mb=3), holder, env={"NAME": "value"}, **more)


def mounts(options: list[str]) -> dict[str, tuple[str, str]]:
    """Kind and source of every mount, by its place inside, in order."""
    return {options[at + 2]: (option, options[at + 1]) for at, option in enumerate(options)
            if option in ("--bind", "--ro-bind")}


def test_nothing_of_the_host_can_be_written_and_nothing_is_shared() -> None:
    options = told(SandboxSpec(source=Path("/task"), mounts={"/opt/agent": "/usr/lib"},
                               sockets={"/run/s": "/etc/hosts"}))
    assert {"--unshare-all", "--disable-userns", "--new-session", "--die-with-parent", "--clearenv"} <= set(options)
    assert ("--cap-drop", "ALL") in pairwise(options) and ("--size", str(3 << 20)) in pairwise(options)
    assert "--share-net" not in options and "--dev-bind" not in options
    found = mounts(options)
    assert {inside for inside, (kind, _) in found.items() if kind == "--bind"} == {"/tmp", "/home/agent", "/testbed"}
    assert all(source.startswith("/hold/") for kind, source in found.values() if kind == "--bind")
    assert found["/opt/agent"] == ("--ro-bind", "/hold/at/0") and found["/run/s"] == ("--ro-bind", "/hold/at/1")
    assert options.index("--remount-ro") > max(options.index(inside) for inside in found)


def test_only_a_diff_sees_what_it_is_made_from() -> None:
    spec = SandboxSpec(source=Path("/task"))
    assert "/run/pristine" not in told(spec)
    assert mounts(told(spec, pristine=True))["/run/pristine"] == ("--bind", "/hold/pristine")


def test_what_lies_in_another_mount_comes_after_it() -> None:
    order = list(mounts(told(SandboxSpec(mounts={"/opt/a/b/c": "/usr/lib", "/opt/a": "/usr/share"}))))
    assert order.index("/opt/a") < order.index("/opt/a/b/c")


def test_folders_above_a_mount_that_commands_may_write_are_mounts_themselves() -> None:
    image = Image("folder", Path("/rootfs"))
    shown = {"/opt/a/b": "/usr", "/opt/a/b/c/d": "/etc", "/dev/x/y": "/usr"}
    assert anchors(SandboxSpec(image=image, mounts=shown)) == {
        "/opt": "root/opt", "/run": "root/run", "/testbed": "root/testbed", "/opt/a": "root/opt/a"}
    assert anchors(SandboxSpec(source=Path("/task"), mounts={
        "/testbed/.venv": "/usr", "/testbed/a/b/c": "/usr", "/opt/x/y": "/usr", "/tmp/t/u": "/usr"})) == {
        "/tmp/t": "tmp/t", "/testbed/a": "work/a", "/testbed/a/b": "work/a/b"}
    options = told(SandboxSpec(source=Path("/task"), mounts={"/testbed/a/b": "/usr"}))
    assert list(mounts(options)).index("/testbed/a") < list(mounts(options)).index("/testbed/a/b")
    assert mounts(options)["/testbed/a"] == ("--bind", "/hold/work/a")


def test_packages_of_the_hosts_interpreters_are_hidden_and_environments_are_not(tmp_path: Path) -> None:
    for name in ("python", "venv"):
        (tmp_path / name / "lib/python3.12/site-packages").mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    shown = {"/opt/python": str(tmp_path / "python"), "/testbed/.venv": str(tmp_path / "venv")}
    hidden = [path for path in foreign(shown) if not path.startswith("/usr")]
    assert hidden == ["/opt/python/lib/python3.12/site-packages"]
    assert mounts(told(SandboxSpec(mounts=shown)))[hidden[0]] == ("--ro-bind", "/hold/empty")


def test_a_command_has_only_the_variables_it_is_given() -> None:
    spec = SandboxSpec(env={"LANG": "C", "OWN": "1"})
    found = environment(spec)
    assert found["LANG"] == "C" and found["OWN"] == "1" and found["HOME"] == "/home/agent"
    options = told(spec)
    assert {options[at + 1] for at, option in enumerate(options) if option == "--setenv"} == {*found, "NAME"}


@pytest.mark.parametrize("inside", ["opt", "/opt/../etc", "/opt/", "//opt"])
def test_a_place_inside_has_one_plain_name(inside: str) -> None:
    with pytest.raises(PlanError, match="no plain absolute path"):
        visible(SandboxSpec(mounts={inside: "/usr"}))


def test_a_place_inside_is_one_thing() -> None:
    assert visible(SandboxSpec(image=Image(binds={"/x": "/usr"}), mounts={"/x": "/usr"})) == {"/x": "/usr"}
    with pytest.raises(PlanError, match="cannot be both /usr and /etc"):
        visible(SandboxSpec(image=Image(binds={"/x": "/usr"}), mounts={"/x": "/etc"}))
