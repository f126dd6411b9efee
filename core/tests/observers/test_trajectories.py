from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpo_bench.contract import (
    Cause, End, Event, Failure, FinishReason, Group, Kind, Position, Purpose, RunFacts, RunFolderError, TokenSequence,
    Trajectory, Turn, ValidationReport,
)
from grpo_bench.contract.codec import to_jsonable
from grpo_bench.observers import read_trajectories
from grpo_bench.observers.trajectories import TrajectoryWriter
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays


def rollout(name: str, values: Any = (-0.1, -2.5), **changed: Any) -> Trajectory:
    turn = Turn(np.arange(5, dtype=np.int32), np.arange(len(values), dtype=np.int32), np.array(values, np.float32),
                ((len(values), 3),), FinishReason.STOP, 0.25, 0.125)
    fields: dict[str, Any] = {
        "rollout_id": name, "group_id": 7, "task_id": "t-1", "purpose": Purpose.TRAIN,
        "sequences": (TokenSequence((turn, turn)), TokenSequence((turn,))), "end": End.COMPLETED, "reward": 1.0,
        "durations": {"generate": 0.5}, "counters": {"split_sequences": 1}}
    return Trajectory(**fields | changed)


def group(*rollouts: Trajectory, target: int = 4) -> Group:
    return Group(7, "t-1", Position(0, 3), target, rollouts)


def same(left: list[Trajectory], right: list[Trajectory]) -> bool:
    return to_jsonable(left) == to_jsonable(right)


def test_rollouts_come_back_as_they_were(tmp_path: Path) -> None:
    failed = rollout("b", sequences=(), end=End.FAILED, reward=None, masked=True,
                     failure=Failure(Cause.SCORE, "no verdict", "Traceback ..."))
    TrajectoryWriter(tmp_path).group_finished(group(rollout("a"), failed))
    assert same(read_trajectories(tmp_path / "trajectories" / "step-00005.jsonl"), [rollout("a"), failed])


@given(arrays.arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32)))
def test_log_probabilities_keep_every_bit(tmp_path_factory: pytest.TempPathFactory, values: Any) -> None:
    folder = tmp_path_factory.mktemp("run")
    TrajectoryWriter(folder).group_finished(group(rollout("a", values)))
    (read,) = read_trajectories(folder / "trajectories" / "step-00005.jsonl")
    np.testing.assert_array_equal(read.sequences[0].turns[0].log_probabilities, values)


def test_validations_have_files_of_their_own(tmp_path: Path) -> None:
    report = ValidationReport(5, 5, 1, 2, 1, {"accuracy": 0.5}, 0.1, 1.0)
    TrajectoryWriter(tmp_path).validated(report, [group(rollout("v5.0.0")), group(rollout("v5.1.0"))])
    read = read_trajectories(tmp_path / "trajectories" / "validation-00005.jsonl")
    assert [item.rollout_id for item in read] == ["v5.0.0", "v5.1.0"]


def test_a_line_that_a_dying_writer_left_torn_spoils_no_other(tmp_path: Path) -> None:
    TrajectoryWriter(tmp_path).group_finished(group(rollout("a"), rollout("b")))
    path = tmp_path / "trajectories" / "step-00005.jsonl"
    path.write_bytes(path.read_bytes() + b'{"rollout_id": "torn')
    TrajectoryWriter(tmp_path).group_finished(group(rollout("c")))
    assert [item.rollout_id for item in read_trajectories(path)] == ["a", "b", "c"]


def test_a_resumption_forgets_what_its_checkpoint_does_not_hold(tmp_path: Path) -> None:
    def event(seq: int, kind: Kind, step: int | None = None, **data: Any) -> Event:
        return Event(seq, "", 0.0, kind, step, data)

    writer = TrajectoryWriter(tmp_path)
    for number, target in ((0, 0), (1, 1), (2, 1), (3, 2)):
        finished = rollout(f"t{number}", group_id=number)
        writer.group_finished(Group(number, "t-1", Position(0, 0), target, (finished,)))
    for step in (1, 2):
        writer.validated(ValidationReport(step, step, 1, 1, 1, {}, 0.1, 1.0), [group(rollout(f"v{step}.0.0"))])
    history = [event(0, Kind.RUN_STARTED), event(1, Kind.GROUP, 1, group_id=0), event(2, Kind.GROUP, 1, group_id=1),
               event(3, Kind.CHECKPOINT, 1), event(4, Kind.GROUP, 2, group_id=2), event(5, Kind.GROUP, 2, group_id=3)]
    again = TrajectoryWriter(tmp_path)
    again.run_started(RunFacts("r", tmp_path, {}, False, history))
    again.event(event(6, Kind.RESUMED, from_step=1, from_seq=4, attempt=2, forced=[]))
    found = {path.name: [item.rollout_id for item in read_trajectories(path)]
             for path in sorted((tmp_path / "trajectories").iterdir())}
    assert found == {"step-00001.jsonl": ["t0"], "step-00002.jsonl": ["t1"], "validation-00001.jsonl": ["v1.0.0"]}


def test_an_evaluation_replaces_its_own_rollouts_and_touches_no_others(tmp_path: Path, evaluated_again: Any) -> None:
    TrajectoryWriter(tmp_path).group_finished(group(rollout("t0"), target=4))
    trained = (tmp_path / "trajectories" / "step-00005.jsonl").stat()
    report = ValidationReport(3, 3, 1, 1, 1, {}, 0.1, 1.0)
    TrajectoryWriter(tmp_path).validated(report, [group(rollout("v3.0.0")), group(rollout("v3.1.0"))])
    resumed = next(event for event in evaluated_again.events if event.kind == Kind.RESUMED)
    before = evaluated_again.events[:evaluated_again.events.index(resumed)]
    again = TrajectoryWriter(tmp_path)
    again.run_started(RunFacts("r", tmp_path, {}, False, before))
    again.event(resumed)
    again.validated(report, [group(rollout("v3.0.0"))])
    again.sync()
    found = {path.name: [item.rollout_id for item in read_trajectories(path)]
             for path in sorted((tmp_path / "trajectories").iterdir())}
    assert found == {"step-00005.jsonl": ["t0"], "validation-00003.jsonl": ["v3.0.0"]}
    assert (tmp_path / "trajectories" / "step-00005.jsonl").stat() == trained


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"step-00001\.jsonl"):
        read_trajectories(tmp_path / "step-00001.jsonl")
