"""Hashes of files, and the cache that keeps them."""

import errno
import hashlib
import json
import multiprocessing
import os
import threading
from pathlib import Path

import pytest
from grpo_bench.contract import GrpoBenchError
from grpo_bench.preflight import digests, digests_cache, file_digests

OLD = (1_000_000_000, 1_000_000_000)


def made(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    os.utime(path, OLD)
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def cache_file(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "digests.json"


def entries(cache_file: Path) -> dict[str, dict[str, object]]:
    return json.loads(cache_file.read_text())


def test_files_are_hashed_by_any_algorithm(tmp_path, cache_file):
    contents = {made(tmp_path / f"f{size}", b"x" * size): b"x" * size for size in (0, 1, digests.CHUNK, 9_000_000)}
    hashed = file_digests(cache_file=cache_file)
    assert hashed(list(contents)) == {file: sha256(content) for file, content in contents.items()}
    assert hashed(list(contents), "md5") == {file: hashlib.md5(content).hexdigest()
                                             for file, content in contents.items()}
    one = entries(cache_file)[str(tmp_path / "f1")]
    assert one == {"size": 1, "mtime_ns": 10**18, "sha256": sha256(b"x"), "md5": hashlib.md5(b"x").hexdigest()}


def test_a_known_file_is_not_read_again_and_a_changed_one_is(tmp_path, cache_file, monkeypatch):
    file = made(tmp_path / "f", b"one")
    file_digests(cache_file=cache_file)([file])
    with monkeypatch.context() as patched:
        patched.setattr(digests._Reading, "hash", lambda *_: pytest.fail("was read"))
        assert file_digests(cache_file=cache_file)([file]) == {file: sha256(b"one")}
    file.write_bytes(b"two")
    os.utime(file, (2e9, 1_500_000_000))
    assert file_digests(cache_file=cache_file)([file]) == {file: sha256(b"two")}
    assert entries(cache_file)[str(file)]["mtime_ns"] == 15 * 10**17
    assert file_digests(cache_file=cache_file)([file], "md5") == {file: hashlib.md5(b"two").hexdigest()}


def test_without_a_cache_every_file_is_read_and_nothing_written(tmp_path, cache_file, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = made(tmp_path / "f", b"one")
    hashed = file_digests(cached=False)
    assert hashed([file]) == {file: sha256(b"one")}
    file.write_bytes(b"two")
    os.utime(file, OLD)
    assert hashed([file]) == {file: sha256(b"two")}
    assert not (tmp_path / "cache").exists()


def test_a_link_has_the_hash_of_what_it_leads_to(tmp_path, cache_file):
    one, two, link = made(tmp_path / "1", b"one"), made(tmp_path / "2", b"two"), tmp_path / "link"
    link.symlink_to(one)
    hashed = file_digests(cache_file=cache_file)
    assert hashed([link]) == {link: sha256(b"one")}
    link.unlink()
    link.symlink_to(two)
    assert hashed([link]) == {link: sha256(b"two")}


def test_a_file_that_changed_a_moment_ago_is_not_kept(tmp_path, cache_file):
    file = tmp_path / "f"
    file.write_bytes(b"one")
    assert file_digests(cache_file=cache_file)([file]) == {file: sha256(b"one")}
    assert not cache_file.exists()


def test_a_file_that_changes_while_it_is_hashed_is_an_error(tmp_path, cache_file, monkeypatch):
    file = made(tmp_path / "f", b"x" * 100)
    monkeypatch.setattr(digests, "CHUNK", 10)
    real = hashlib.new

    def and_grow(*arguments, **options):
        with file.open("ab") as other:
            other.write(b"more")
        return real(*arguments, **options)

    monkeypatch.setattr(hashlib, "new", and_grow)
    with pytest.raises(OSError, match="changed while it was hashed") as raised:
        file_digests(cache_file=cache_file)([file])
    assert raised.value.filename == str(file)
    assert not cache_file.exists()


def test_what_is_done_is_kept_where_another_file_fails(tmp_path, cache_file, monkeypatch):
    good, bad = made(tmp_path / "good", b"x" * 10), made(tmp_path / "bad", b"x")
    real, hashed = digests._Reading.hash, threading.Event()

    def hash_good_first(self, stamp):
        if stamp.path == str(bad):
            hashed.wait(60)
            raise OSError(errno.EIO, "Input/output error", stamp.path)
        try:
            return real(self, stamp)
        finally:
            hashed.set()

    monkeypatch.setattr(digests._Reading, "hash", hash_good_first)
    with pytest.raises(OSError, match="Input/output error"):
        file_digests(cache_file=cache_file)([good, bad])
    assert list(entries(cache_file)) == [str(good)]


def test_a_file_that_is_not_there_is_an_error(tmp_path, cache_file):
    with pytest.raises(FileNotFoundError):
        file_digests(cache_file=cache_file)([tmp_path / "none"])


def test_what_is_no_file_is_an_error_and_not_waited_for(tmp_path, cache_file):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="it is no file"):
            file_digests(cache_file=cache_file)([path], "sha256")


def test_an_unknown_algorithm_is_an_error(tmp_path, cache_file):
    with pytest.raises(ValueError, match="unsupported hash type crc"):
        file_digests(cache_file=cache_file)([made(tmp_path / "f", b"x")], "crc")


def test_stopping_ends_it_and_keeps_what_is_done(tmp_path, cache_file, monkeypatch):
    """As an interrupt does it, which comes to another thread than those that read."""
    small, large = made(tmp_path / "small", b"x"), made(tmp_path / "large", b"x" * 1000)
    monkeypatch.setattr(digests, "CHUNK", 1)
    reading, stopped = threading.Event(), threading.Event()
    real = digests._Reading.hash

    def slowly(self, stamp):
        if stamp.path == str(small):
            try:
                return real(self, stamp)
            finally:
                reading.set()
        stopped.wait(60)
        return real(self, stamp)

    monkeypatch.setattr(digests._Reading, "hash", slowly)
    hashing = file_digests(cache_file=cache_file)
    raised: list[OSError] = []

    def run():
        try:
            hashing([small, large])
        except OSError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    reading.wait(60)
    hashing.stop()
    stopped.set()
    thread.join(60)
    assert [error.errno for error in raised] == [errno.ECANCELED]
    assert list(entries(cache_file)) == [str(small)]


def test_progress_is_said_while_files_are_read(tmp_path, monkeypatch):
    files = [made(tmp_path / f"f{number}", b"x" * 2_000_000) for number in range(5)]
    said: list[str] = []
    monkeypatch.setattr(digests, "THREADS", 1)
    file_digests(said.append, cached=False)(files)
    assert said
    assert all(line.startswith("hashing: ") and "of 5 files" in line for line in said)


def _hash_some(folder: str, cache_file: str, first: int, start) -> None:
    start.wait(60)
    hashed = file_digests(cache_file=Path(cache_file))
    for number in range(first, first + 10):
        hashed([Path(folder, f"f{number}")])


def test_processes_that_write_at_once_lose_nothing(tmp_path, cache_file):
    files = [made(tmp_path / f"f{number}", str(number).encode()) for number in range(30)]
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Event()
    workers = [spawn.Process(target=_hash_some, args=(str(tmp_path), str(cache_file), first, start))
               for first in (0, 10, 20)]
    for worker in workers:
        worker.start()
    start.set()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert entries(cache_file).keys() == {str(file) for file in files}


def test_the_cache_holds_a_bounded_number_of_files(tmp_path, cache_file, monkeypatch):
    monkeypatch.setattr(digests_cache, "MAX_ENTRIES", 3)
    files = [made(tmp_path / f"f{number}", b"x") for number in range(5)]
    hashed = file_digests(cache_file=cache_file)
    for file in files:
        hashed([file])
    assert list(entries(cache_file)) == [str(file) for file in files[2:]]


@pytest.mark.parametrize("content", ["", "no json", "[]", '{"%s": 3}', '{"%s": {"size": 1, "mtime_ns": 1}}'])
def test_a_cache_that_cannot_be_read_is_begun_anew(tmp_path, cache_file, content):
    file = made(tmp_path / "f", b"one")
    cache_file.parent.mkdir()
    cache_file.write_text(content.replace("%s", str(file)))
    assert file_digests(cache_file=cache_file)([file]) == {file: sha256(b"one")}
    assert entries(cache_file)[str(file)]["sha256"] == sha256(b"one")


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path):
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(GrpoBenchError, match="cannot write") as raised:
        file_digests(cache_file=tmp_path / "cache" / "digests.json")([made(tmp_path / "f", b"x")])
    assert "XDG_CACHE_HOME" in raised.value.hint
