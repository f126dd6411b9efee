"""What can stand where a registry file should be, and how it is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grpo_bench.contract import RegistryError
from grpo_bench.registry import resolve
from grpo_bench.registry.disabled import disabled_plugins
from grpo_bench.registry.places import MAX_BYTES
from grpo_bench.registry.source import read_sources

HEAD = "[profiles.a]\nextends = 'laptop'\n"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def circle(path: Path) -> None:
    path.symlink_to(path.name)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def unreadable(path: Path) -> None:
    path.symlink_to("/proc/self/mem")


@pytest.mark.parametrize(("make", "message"), [
    (pipe, "it is no regular file"), (endless, "it is no regular file"), (circle, "Too many levels of symbolic links"),
    (huge, f"it is larger than {MAX_BYTES} bytes"), (unreadable, "Input/output error"), (Path.mkdir, "Is a directory"),
])
@pytest.mark.parametrize("layer", ["local", "user", "named"])
def test_what_is_no_file_is_refused_unread(workshop, make, message: str, layer: str) -> None:
    file = {"local": Path("registry.toml"), "user": Path("config/grpo-bench/registry.toml"), "named": Path("x")}[layer]
    file.parent.mkdir(parents=True, exist_ok=True)
    make(file)
    with pytest.raises(RegistryError, match=f"{file}: cannot be read: {message}"):
        read_sources(file if layer == "named" else None)


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000, "a\0b", "nowhere/at all"])
def test_a_name_that_no_file_can_have(workshop, name: str) -> None:
    with pytest.raises(RegistryError, match="cannot be read"):
        read_sources(Path(name))


@pytest.mark.parametrize("folder", ["x" * 300, "x/" * 3000, "/dev/null", "relative", "~", "a\nb", "/proc/self/mem"])
def test_a_users_folder_that_cannot_be(workshop, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", folder)
    assert [source.layer for source in read_sources()] == ["packaged"]


def test_a_working_directory_that_is_gone(workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = workshop.folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(RegistryError, match="the working directory cannot be read"):
        resolve("laptop")


@pytest.mark.parametrize("mangle", [
    lambda text: b"\xef\xbb\xbf" + text.encode(), lambda text: text.replace("\n", "\r\n").encode(),
    lambda text: text.rstrip("\n").encode(),
])
def test_marks_and_line_ends_of_other_systems(workshop, mangle) -> None:
    (workshop.folder / "registry.toml").write_bytes(mangle(HEAD + "seed = 7\n"))
    assert resolve("a").profile.seed == 7


@pytest.mark.parametrize(("content", "message"), [
    (b"x = '\0'", ":3: no valid TOML: Found invalid character '.x00'"),
    (b"x = 1\ry = 2", ":3: no valid TOML"), (b"x = [1,\n2\n", ":4: no valid TOML: .*end of document"),
    (b"seed = 1\nseed = 2", ":4: no valid TOML: Cannot overwrite a value"),
    (b"seed = " + b"9" * 5000, ":3: no valid TOML: a number of thousands of digits"),
    (b".".join([b"a"] * 40000) + b" = 1", ":3: a key of more than 64 parts"),
    (b"x = {" + b".".join([b"'a'"] * 40000) + b" = 1}", ":3: a key of more than 64 parts"),
    (b"seed = 1e400", r"profiles.a.seed: should be a finite number, got inf .*:3"),
    (b"seed = 0x" + b"f" * 9000, r"profiles.a.seed: should be an integer of at most 64 bits .*:3"),
    (b"# \xc3\x28", ":3: no UTF-8 text"),
    (b"# \xff\xfe" + "[profiles.a]".encode("utf-16-le"), ":3: no UTF-8 text"),
    (b"'\\u0000' = 1", r'profiles.a."'),
    (b"k" * 9000 + b" = 1", "profiles.a.\"k{200}\\.\\.\\.\": unknown key .*:3"),
])
def test_odd_text_has_its_line(workshop, content: bytes, message: str) -> None:
    file = workshop.folder / "odd.toml"
    file.write_bytes(HEAD.encode() + content)
    with pytest.raises(RegistryError, match=message):
        resolve("a", registry=file)


def test_a_file_full_of_unknown_keys_is_a_short_message(workshop) -> None:
    workshop.write(HEAD + "".join(f"a{number} = 1\n" for number in range(5000)))
    with pytest.raises(RegistryError) as caught:
        resolve("a")
    lines = str(caught.value).splitlines()
    assert (len(lines), lines[-1]) == (21, "and 4980 more")


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 9000, "\udc80", "../base", "base "])
def test_names_of_profiles_that_cannot_be(bench, name: str) -> None:
    with pytest.raises(RegistryError, match="no such profile") as caught:
        resolve(name)
    assert len(str(caught.value)) < 2000
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [pipe, endless, circle, huge, unreadable, Path.mkdir])
def test_listing_plugins_passes_over_what_is_no_file(workshop, make) -> None:
    make(Path("registry.toml"))
    assert "environment:none" not in disabled_plugins()


def test_listing_plugins_does_not_wait_for_an_endless_key(workshop) -> None:
    workshop.write("disabled = ['environment:none']\n" + ".".join(["a"] * 40000) + " = 1\n")
    assert "environment:none" not in disabled_plugins()
    workshop.write("disabled = ['environment:none']\n")
    assert "environment:none" in disabled_plugins()
