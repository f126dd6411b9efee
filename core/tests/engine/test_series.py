"""The weights that are to be evaluated: what is kept beside them, and how they take the trainer's place."""

import asyncio
import json
from dataclasses import replace
from shutil import copytree, rmtree

import numpy as np
import pytest
from safetensors.numpy import save_file

from grpo_bench.contract import Event, GrpoBenchError, Kind, RefitError, RunFolderError, TensorSpec, Transfer
from grpo_bench.engine.checkpoints import CheckpointStore
from grpo_bench.engine.series import FILE, Weights, check_saved, name_of, read_weights, series_of, state_of
from grpo_bench.engine.stored import StoredTrainer
from grpo_bench.steps import Probe, answers, probe_batch, refit
from grpo_bench.steps.seals import seal_of
from grpo_bench.steps.transport import receive_tensors

AT = "2026-01-01T00:00:00.000000+00:00"
TENSORS = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones(4, np.float32)}
SPECS = tuple(TensorSpec(name, tensor.shape, "float32") for name, tensor in TENSORS.items())
SEQUENCES = [np.array([3, 1, 2], np.int32), np.array([5, 4], np.int32)]
OURS = np.array([0, -0.1, -0.2, 0, -0.3], np.float32)


def asked(*, growth=None, kept=0):
    """A probe after a refit at which both sides said the same."""
    probe = Probe(1e-4, growth, kept=SEQUENCES[:kept], sampled=SEQUENCES[kept:])
    probe.judge(1, answers(SEQUENCES, OURS, np.split(OURS, [3])))
    return probe


def write(folder, step, *, probe=None, comparable=True, run="r"):
    store = CheckpointStore(folder, keep=1)
    written = store.begin(name_of(step))
    (written / "trainer").mkdir()
    save_file(TENSORS, written / "trainer" / "model.safetensors")
    state = state_of(step, AT, SPECS, probe or asked(), comparable=comparable)
    return Weights(step, store.commit(written, store.seal(written), {"run": run, **state}, file=FILE), AT)


def history(*steps, updated_at=AT):
    saved = [Event(seq, AT, 0.0, Kind.CHECKPOINT, step, {"folder": name_of(step), "updated_at": updated_at})
             for seq, step in enumerate(steps, 1)]
    return [Event(0, AT, 0.0, Kind.RUN_STARTED, None, {"run": "r"}), *saved]


def sealed(folder, events):
    """The same, each with the seal of what lies there."""
    return [replace(event, data={**event.data, "seal": seal_of(file)}) if event.kind == Kind.CHECKPOINT and (
        file := folder / event.data["folder"] / FILE).exists() else event for event in events]


def series(folder, events, steps, sound=None):
    events = sealed(folder, events)
    return series_of(events, steps, folder, sound=steps if sound is None else sound, hint="mend it")


def test_a_whole_series_is_found_in_the_order_of_its_steps(tmp_path):
    written = [write(tmp_path, step) for step in (2, 3)]
    CheckpointStore(tmp_path, keep=1).prune()
    assert series(tmp_path, history(2, 3), [2, 3]) == written


def test_what_is_not_in_the_journal_is_a_gap_and_so_is_what_is_not_on_the_disk(tmp_path):
    write(tmp_path, 2)
    write(tmp_path, 4)
    with pytest.raises(RunFolderError) as raised:
        series(tmp_path, history(2, 3), [2, 3, 4])
    for part in ("weights-00003 is missing", "weights-00004 is not in the journal", "mend it"):
        assert part in str(raised.value)


def test_many_faults_are_named_and_the_others_counted(tmp_path):
    with pytest.raises(RunFolderError, match="and 2 more"):
        series(tmp_path, history(), list(range(1, 11)))


def test_only_what_is_left_to_do_has_to_be_sound(tmp_path):
    write(tmp_path, 3)
    assert [weights.step for weights in series(tmp_path, history(2, 3), [2, 3], sound=[3])] == [2, 3]


@pytest.mark.parametrize(("events", "run"), [(history(2), "other"), (history(2, updated_at="2027"), "r")])
def test_weights_that_the_journal_does_not_mean_are_named(tmp_path, events, run):
    write(tmp_path, 2, run=run)
    with pytest.raises(RunFolderError, match="holds the weights of run"):
        series(tmp_path, events, [2])


def test_weights_of_another_step_that_were_given_its_name_are_found(tmp_path):
    """All that a folder says of itself can be changed: the journal has a seal of it."""
    write(tmp_path, 2)
    write(tmp_path, 3, comparable=False)
    events = sealed(tmp_path, history(2, 3))
    rmtree(tmp_path / name_of(2))
    copytree(tmp_path / name_of(3), tmp_path / name_of(2))
    file = tmp_path / name_of(2) / FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), "step": 2}))
    with pytest.raises(RunFolderError, match=r"weights-00002/weights.json is not what was written"):
        series_of(events, [2, 3], tmp_path, sound=[2, 3], hint="mend it")


def test_an_event_that_was_taken_back_counts_no_more(tmp_path):
    write(tmp_path, 2)
    events = history(2)
    events.append(Event(2, AT, 0.0, Kind.RESUMED, None, {"from_step": 1, "from_seq": 1, "attempt": 2, "forced": []}))
    with pytest.raises(RunFolderError, match="not in the journal"):
        series(tmp_path, events, [2])


def test_the_probe_is_kept_as_it_was_asked_and_answered(tmp_path):
    names, record = read_weights(write(tmp_path, 2, probe=asked(growth=1.5, kept=1)))
    assert names == ("b", "a")
    assert (record.kept, record.first) == (1, 0.0)
    assert all(np.array_equal(one, other) for one, other in zip(record.sequences, SEQUENCES, strict=True))
    np.testing.assert_array_equal(record.answers, OURS[[1, 2, 4]].astype(np.float64))
    _, incomparable = read_weights(write(tmp_path, 3, comparable=False))
    assert incomparable.answers is None


def test_a_trainer_that_does_not_save_what_it_sends_is_found_when_it_saves(tmp_path):
    save_file({"a": TENSORS["a"]}, tmp_path / "model.safetensors")
    with pytest.raises(GrpoBenchError, match="saved no tensor b"):
        check_saved(tmp_path, SPECS)


class Generator:
    """Takes what is sent and says about a probe what it is told to."""

    def __init__(self, says):
        self.says, self.taken = says, {}

    async def receive(self, transfer):
        async for spec, data in receive_tensors(transfer, 0):
            self.taken[spec.name] = np.frombuffer(data, np.float32).reshape(spec.shape)

    async def probe(self, sequences):
        assert all(np.array_equal(one, other) for one, other in zip(sequences, SEQUENCES, strict=True))
        return np.split(self.says, [3])


class Clock:
    def monotonic(self):
        return 0.0


def passed_on(folder, weights, says, probe):
    stored = StoredTrainer("safetensors")
    stored.open(weights, probe)
    rendezvous = folder / "rendezvous"
    rendezvous.mkdir()
    transfer = Transfer(weights.step, "safetensors", str(rendezvous), stored.tensors(), 1024, 10.0)
    generator = Generator(says)
    stats = asyncio.run(refit(stored, generator, transfer, probe, Clock()))  # type: ignore[arg-type]
    return stats, generator.taken


def test_stored_weights_arrive_byte_for_byte_and_pass_the_probe(tmp_path):
    stats, taken = passed_on(tmp_path, write(tmp_path, 2), OURS, Probe(1e-4))
    assert list(taken) == ["b", "a"]
    assert all(np.array_equal(taken[name], tensor) for name, tensor in TENSORS.items())
    assert (stats.version, stats.bytes, stats.probe_difference) == (2, 40, 0.0)


def test_a_generator_that_says_something_else_is_refused(tmp_path):
    with pytest.raises(RefitError, match=r"differ from the trainer's by 0\.1"):
        passed_on(tmp_path, write(tmp_path, 2), OURS - np.float32(0.1), Probe(1e-4))


def test_with_growth_it_is_held_against_the_first_refit_of_the_training(tmp_path):
    weights = write(tmp_path, 2, probe=asked(growth=1.5, kept=1))
    with pytest.raises(RefitError, match="on average after the refit to version 2, and by 0 at the first"):
        passed_on(tmp_path, weights, OURS - np.float32(0.1), Probe(None, 1.5))


def test_stored_weights_answer_for_their_own_probe_alone(tmp_path):
    stored = StoredTrainer("safetensors")
    stored.open(write(tmp_path, 2), Probe(1e-4))
    with pytest.raises(RefitError, match="their own refit only"):
        asyncio.run(stored.log_probabilities(probe_batch(SEQUENCES[:1]), "current"))


def test_a_folder_that_lost_a_tensor_is_named_when_it_is_opened(tmp_path):
    weights = write(tmp_path, 2)
    save_file({"a": TENSORS["a"]}, weights.folder / "trainer" / "model.safetensors")
    with pytest.raises(RefitError, match="holds no tensor b"):
        StoredTrainer("safetensors").open(weights, Probe(1e-4))


def test_a_key_that_weights_json_lacks_is_named(tmp_path):
    weights = write(tmp_path, 2)
    state = json.loads((weights.folder / FILE).read_text())
    state.pop("tensors")
    (weights.folder / FILE).write_text(json.dumps(state))
    with pytest.raises(RunFolderError, match="it lacks tensors"):
        read_weights(weights)
