from __future__ import annotations

import hashlib
import resource
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import Event, GrpoBenchError, Kind, RunFolderError
from grpo_bench.observers import Journal, journal_sha256, read_events
from hypothesis import given
from hypothesis import strategies as st


def event(seq: int, kind: Kind = Kind.GROUP, step: int | None = None, **data: Any) -> Event:
    return Event(seq, "2026-01-01T00:00:00.000000+00:00", seq * 0.5, kind.value, step, data)


def write(folder: Path, events: list[Event]) -> Path:
    journal = Journal(folder)
    for item in events:
        journal.write(item)
    journal.close()
    return journal.path


def test_events_come_back_equal(tmp_path: Path) -> None:
    events = [event(0, text="a\nb ü"), event(1, number=float("inf"), pair=(1, 2)),
              event(2, Kind.STEP, 3, nested={"x": [None]})]
    write(tmp_path, events)
    assert list(read_events(tmp_path)) == events


def test_an_event_can_be_read_before_the_journal_is_closed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(event(0))
    assert [item.seq for item in read_events(journal.path)] == [0]
    journal.close()


@given(cut=st.integers(0, 10_000))
def test_whatever_a_dying_writer_left_is_a_beginning(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("run")
    events = [event(seq, text="x" * seq) for seq in range(6)]
    path = write(folder, events)
    whole = path.read_bytes()
    path.write_bytes(whole[:cut % (len(whole) + 1)])
    read = list(read_events(folder))
    assert read == events[:len(read)]
    journal = Journal(folder)
    assert journal.next_seq == len(read)
    for item in events[len(read):]:
        journal.write(item)
    journal.close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize(("line", "words"), [
    (b"not json\n", "not JSON"),
    (b"{}\n", "not an event"),
    (b'{"seq":7,"at":"","elapsed_s":0,"kind":"step","step":1,"data":{}}\n', "event 7 stands where event 1 belongs"),
    (b'{"seq":1,"at":"","elapsed_s":0,"kind":"step","step":1,"data":{"$type":"Nothing"}}\n', "no type of the contract"),
])
def test_damage_is_named_by_line(tmp_path: Path, line: bytes, words: str) -> None:
    path = write(tmp_path, [event(seq) for seq in range(3)])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + line + lines[2])
    with pytest.raises(RunFolderError, match=f"line 2: .*{words}"):
        list(read_events(tmp_path))


def test_the_hash_of_a_journal_is_that_of_its_file(tmp_path: Path) -> None:
    path = write(tmp_path, [event(0)])
    assert journal_sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(RunFolderError, match="cannot read"):
        journal_sha256(tmp_path / "nowhere")


def test_a_folder_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot read"):
        list(read_events(tmp_path / "nowhere"))
    with pytest.raises(RunFolderError, match="cannot open"):
        Journal(tmp_path / "nowhere")


def test_an_event_out_of_order_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(ValueError, match="event 4 follows"):
        journal.write(event(4))
    journal.close()


def test_when_the_disk_refuses_the_record_ends_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(event(0))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.path.stat().st_size + 1000, before[1]))
    try:
        with pytest.raises(GrpoBenchError, match=r"cannot write .*events\.jsonl.*make room"):
            journal.write(event(1, text="x" * 5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    journal.write(event(2))
    journal.close()
    assert list(read_events(tmp_path)) == [event(0)]
    assert journal.path.read_bytes().endswith(b"\n")
