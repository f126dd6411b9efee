"""Fetching from servers that break off, know no ranges, or send something else."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpo_bench_rules_mlperf.artifacts_transfer import (
    ATTEMPTS, FetchError, Hopeless, Stopped, Transfer, read_small, size_of,
)

from .serving import Shelf, serving

CONTENT = bytes(range(256)) * 400


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    with serving() as shelf:
        shelf.files["/f"] = CONTENT
        yield shelf


class Counted:
    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self, count: int) -> None:
        self.bytes += count


def get(uri: str, target: Path, content: bytes = CONTENT, *, stop: threading.Event | None = None) -> int:
    """Fetch to ``target``; returns the bytes that were counted."""
    counted = Counted()
    md5 = hashlib.md5(content).hexdigest()
    Transfer(uri, target, md5, stop=stop or threading.Event(), count=counted, delay_s=0).run()
    return counted.bytes


def test_a_file_arrives_whole_and_leaves_nothing_else(shelf: Shelf, tmp_path: Path) -> None:
    assert get(f"{shelf.base}/f", tmp_path / "f") == len(CONTENT)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"f": CONTENT}
    shelf.files["/empty"] = b""
    get(f"{shelf.base}/empty", tmp_path / "empty", b"")
    assert (tmp_path / "empty").read_bytes() == b""


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("lengths", [True, False])
def test_what_is_there_of_a_file_is_gone_on_with(shelf: Shelf, tmp_path: Path, ranges: bool, lengths: bool) -> None:
    shelf.ranges, shelf.lengths = ranges, lengths
    (tmp_path / "f.part").write_bytes(CONTENT[:1000])
    assert get(f"{shelf.base}/f", tmp_path / "f") == len(CONTENT)
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert shelf.got("/f") == ["bytes=1000-"]


def test_a_connection_that_breaks_is_taken_up_where_it_broke(shelf: Shelf, tmp_path: Path) -> None:
    shelf.cuts["/f"] = [0] * (ATTEMPTS - 2) + [500, *[0] * (ATTEMPTS - 2), 700]
    assert get(f"{shelf.base}/f", tmp_path / "f") == len(CONTENT)
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert shelf.got("/f")[-1] == "bytes=1200-"


def test_a_server_without_ranges_sends_it_all_again(shelf: Shelf, tmp_path: Path) -> None:
    shelf.ranges, shelf.cuts["/f"] = False, [500, 700]
    assert get(f"{shelf.base}/f", tmp_path / "f") == len(CONTENT)
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_a_server_that_gets_no_further_is_given_up_and_what_came_is_kept(shelf: Shelf, tmp_path: Path) -> None:
    shelf.cuts["/f"] = [500] + [0] * ATTEMPTS
    with pytest.raises(FetchError, match=rf"/f: the connection ended early, {ATTEMPTS} times in a row"):
        get(f"{shelf.base}/f", tmp_path / "f")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"f.part": CONTENT[:500]}
    get(f"{shelf.base}/f", tmp_path / "f")
    assert shelf.got("/f")[-1] == "bytes=500-"


@pytest.mark.parametrize("codes", [[503, 429, 500], [408]])
def test_answers_that_pass_are_waited_out(shelf: Shelf, tmp_path: Path, codes: list[int]) -> None:
    shelf.errors["/f"] = [*codes]
    get(f"{shelf.base}/f", tmp_path / "f")
    assert len(shelf.got("/f")) == len(codes) + 1


@pytest.mark.parametrize("code", [403, 404, 410])
def test_answers_that_stay_end_it_at_once(shelf: Shelf, tmp_path: Path, code: int) -> None:
    shelf.errors["/f"] = [code]
    with pytest.raises(FetchError, match=rf"/f: the server answered {code}"):
        get(f"{shelf.base}/f", tmp_path / "f")
    assert len(shelf.got("/f")) == 1 and not (tmp_path / "f").exists()


def test_nobody_listening_is_said(shelf: Shelf, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=f"{ATTEMPTS} times in a row"):
        get("http://127.0.0.1:1/f", tmp_path / "f")


def test_another_content_is_fetched_once_more_and_then_refused(shelf: Shelf, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=f"has MD5 {hashlib.md5(CONTENT).hexdigest()} and should have .*, twice"):
        get(f"{shelf.base}/f", tmp_path / "f", b"something else")
    assert len(shelf.got("/f")) == 2 and not (tmp_path / "f").exists()
    assert (tmp_path / "f.part").read_bytes() == b""


@pytest.mark.parametrize("begun", [b"X" * 1000, b"X" * len(CONTENT), b"X" * (len(CONTENT) + 5)])
@pytest.mark.parametrize("source", ["http", "file"])
def test_a_beginning_of_something_else_is_thrown_away(shelf: Shelf, tmp_path: Path, begun: bytes, source: str) -> None:
    (tmp_path / "there").write_bytes(CONTENT)
    (tmp_path / "f.part").write_bytes(begun)
    uri = f"{shelf.base}/f" if source == "http" else (tmp_path / "there").as_uri()
    assert get(uri, tmp_path / "f") == len(CONTENT)
    assert (tmp_path / "f").read_bytes() == CONTENT


@pytest.mark.parametrize("source", ["http", "file"])
def test_a_file_that_lacked_only_its_name_gets_it(shelf: Shelf, tmp_path: Path, source: str) -> None:
    (tmp_path / "there").write_bytes(CONTENT)
    (tmp_path / "f.part").write_bytes(CONTENT)
    uri = f"{shelf.base}/f" if source == "http" else (tmp_path / "there").as_uri()
    assert get(uri, tmp_path / "f") == len(CONTENT)
    assert (tmp_path / "f").read_bytes() == CONTENT and not (tmp_path / "f.part").exists()


def test_a_full_disk_ends_everything_and_keeps_what_came(shelf: Shelf, tmp_path: Path, monkeypatch) -> None:
    real = os.fdopen

    def fdopen(handle: int, *args: object, **options: object) -> object:
        opened = real(handle, *args, **options)  # pyright: ignore[reportCallIssue, reportArgumentType]
        return _Full(opened)

    monkeypatch.setattr(os, "fdopen", fdopen)
    with pytest.raises(Hopeless, match=r"cannot write .*f.part: No space left on device") as caught:
        get(f"{shelf.base}/f", tmp_path / "f")
    assert "make room" in caught.value.hint
    monkeypatch.undo()
    monkeypatch.setenv("no_proxy", "*")
    assert (tmp_path / "f.part").exists() and not (tmp_path / "f").exists()
    get(f"{shelf.base}/f", tmp_path / "f")


class _Full:
    """A file on a disk that has no room."""

    def __init__(self, file) -> None:
        self._file = file

    def __enter__(self) -> _Full:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def test_a_link_in_the_place_of_the_unfinished_file_is_not_followed(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"mine")
    (tmp_path / "f.part").symlink_to(tmp_path / "other")
    with pytest.raises(FetchError, match=r"cannot write .*f.part"):
        get(f"{shelf.base}/f", tmp_path / "f")
    assert (tmp_path / "other").read_bytes() == b"mine"


def test_two_processes_do_not_write_one_file(shelf: Shelf, tmp_path: Path) -> None:
    shelf.held = "/f"
    first = threading.Thread(target=get, args=(f"{shelf.base}/f", tmp_path / "f"))
    first.start()
    assert shelf.reached.wait(30)
    shelf.held = ""
    with pytest.raises(FetchError, match="another process is fetching it"):
        get(f"{shelf.base}/f", tmp_path / "f")
    shelf.go.set()
    first.join()
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_who_is_told_to_stop_keeps_what_came(shelf: Shelf, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        get(f"{shelf.base}/f", tmp_path / "f", stop=stop)
    assert not (tmp_path / "f").exists()


def test_redirections_are_followed_but_not_to_files(shelf: Shelf, tmp_path: Path) -> None:
    shelf.moved = {"/here": f"{shelf.base}/f", "/local": f"file://{tmp_path}/secret"}
    (tmp_path / "secret").write_bytes(CONTENT)
    get(f"{shelf.base}/here", tmp_path / "f")
    with pytest.raises(FetchError):
        get(f"{shelf.base}/local", tmp_path / "g")
    assert not (tmp_path / "g").exists()


def test_files_of_this_machine_are_copied(tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(CONTENT)
    get((tmp_path / "a b").as_uri(), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT
    with pytest.raises(FetchError, match="No such file"):
        get(f"file://{tmp_path}/nothing", tmp_path / "g")
    with pytest.raises(FetchError, match="three slashes"):
        get("file://host/data/x", tmp_path / "g")


def test_small_documents_are_read_whole_or_not_at_all(shelf: Shelf) -> None:
    shelf.cuts["/f"] = [10, 20]
    assert read_small(f"{shelf.base}/f", len(CONTENT), delay_s=0) == CONTENT
    with pytest.raises(FetchError, match="is larger than 1,000 bytes"):
        read_small(f"{shelf.base}/f", 1000, delay_s=0)
    shelf.cuts["/f"] = [10] * ATTEMPTS
    with pytest.raises(FetchError, match=f"the connection ended early, {ATTEMPTS} times in a row"):
        read_small(f"{shelf.base}/f", len(CONTENT), delay_s=0)


def test_sizes_are_asked_for_without_the_content(shelf: Shelf, tmp_path: Path) -> None:
    shelf.moved["/here"] = f"{shelf.base}/f"
    assert (size_of(f"{shelf.base}/f"), size_of(f"{shelf.base}/here")) == (len(CONTENT), len(CONTENT))
    assert (size_of(f"{shelf.base}/none"), size_of("http://127.0.0.1:1/f")) == (None, None)
    shelf.lengths = False
    assert size_of(f"{shelf.base}/f") is None
    (tmp_path / "f").write_bytes(b"123")
    assert size_of((tmp_path / "f").as_uri()) == 3
