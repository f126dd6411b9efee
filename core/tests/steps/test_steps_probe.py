"""What a probe's answers show: weights that arrived, weights that did not, and a generator that kept its old ones."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_bench.contract import RefitError
from grpo_bench.steps import Answers, Probe, answers, followed

KEPT = [np.arange(48, dtype=np.int32) for _ in range(16)]
TOKENS = 16 * 47


def random(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def said(trainer: np.ndarray, generator: np.ndarray) -> Answers:
    return Answers(trainer, generator, np.arange(16, dtype=np.int64) * 47)


class Pair:
    """A trainer and a generator whose rounding is off by ``noise`` on average, ``fresh`` of it new at each refit."""

    def __init__(self, seed: int, noise: float = 0.15, fresh: float = 0.05) -> None:
        self.random, self.fresh = random(seed), fresh
        self.trainer = -self.random.exponential(6.0, TOKENS)
        self.off = self.random.laplace(0, noise, TOKENS)
        self.generator = self.trainer + self.off

    def update(self, change: float, arrives: bool = True) -> Answers:
        self.trainer = self.trainer + self.random.normal(0, change, TOKENS)
        if arrives:
            self.generator = self.trainer + self.off
        self.generator = self.generator + self.random.laplace(0, self.fresh, TOKENS)
        return self.now()

    def now(self) -> Answers:
        return said(self.trainer, self.generator)


def started(pair: Pair, growth: float = 1.5) -> Probe:
    probe = Probe(None, growth, kept=KEPT)
    probe.judge(0, pair.now())
    return probe


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("change", [0.05, 0.3])
def test_a_noisy_generator_that_follows_is_let_through_and_one_that_keeps_old_weights_is_not(seed, change):
    pair = Pair(seed)
    probe = started(pair)
    verdict = probe.judge(1, pair.update(change))
    assert verdict.followed is not None
    assert abs(verdict.followed.share - 1) <= 5 * verdict.followed.error
    with pytest.raises(RefitError, match=r"did not follow the trainer to version 2|by .* on average"):
        probe.judge(2, pair.update(change, arrives=False))


def test_a_generator_that_answers_bit_for_bit_as_before_did_not_follow_however_little_the_trainer_moved():
    pair = Pair(0, noise=0.3, fresh=0.0)
    probe = started(pair)
    with pytest.raises(RefitError, match=r"did not follow the trainer to version 1: .* 0% of that is seen") as caught:
        probe.judge(1, pair.update(1e-3, arrives=False))
    assert "the refit left its old weights in place" in caught.value.hint


def test_noise_that_hides_the_trainers_change_accuses_nobody():
    pair = Pair(1, fresh=0.05)
    probe = started(pair)
    verdict = probe.judge(1, pair.update(1e-3, arrives=False))
    assert verdict.followed is not None and not verdict.followed.sure


def test_a_trainer_that_stayed_leaves_nothing_to_follow():
    pair = Pair(2, fresh=0.0)
    probe = started(pair)
    assert probe.judge(1, pair.update(0.0)).followed is None
    assert followed(pair.now(), pair.update(1e-6)) is None


def test_the_distance_may_grow_by_its_factor_and_no_more():
    pair = Pair(3, noise=0.2)
    probe = started(pair)
    assert probe.first is not None and probe.first == pytest.approx(pair.now().distance)
    fine = said(pair.trainer, pair.trainer + 1.4 * pair.off)
    assert probe.judge(1, fine).distance == pytest.approx(1.4 * probe.first)
    with pytest.raises(RefitError, match=r"on average after the refit to version 2, and by .* at the first refit"):
        probe.judge(2, said(pair.trainer, pair.trainer + 1.6 * pair.off))
    restored = Probe(None, 1.5, kept=KEPT, first=probe.first)
    with pytest.raises(RefitError, match=r"refit\.probe_growth = 1\.5 times is the limit"):
        restored.judge(3, said(pair.trainer, pair.trainer + 1.6 * pair.off))
    assert Probe(None, 1.7, kept=KEPT, first=probe.first).judge(3, said(pair.trainer, pair.trainer + 1.6 * pair.off))


def test_one_token_far_off_does_not_decide_and_no_number_does():
    pair = Pair(4)
    probe = started(pair)
    one = pair.now()
    one.generator[100] += 3.0
    assert probe.judge(1, one).difference > 2.5
    one.generator[100] = np.nan
    for start in (probe, Probe(None, 1.5, kept=KEPT)):
        with pytest.raises(RefitError, match="by nan on average"):
            start.judge(2, one)


def test_no_number_for_a_sampled_sequence_is_an_error_too():
    trainer = np.zeros(TOKENS + 4)
    generator = trainer.copy()
    generator[TOKENS + 2] = np.nan
    both = Answers(trainer, generator, np.arange(17, dtype=np.int64) * 47)
    with pytest.raises(RefitError, match=r"is NaN after the refit to version 1 .*token 3 of sequence 16"):
        Probe(None, 1.5, kept=KEPT, sampled=[np.arange(5, dtype=np.int32)]).judge(1, both)


def test_sides_that_agree_in_float32_may_differ_by_its_rounding():
    trainer = -random(5).exponential(3.0, TOKENS)
    probe = Probe(None, 1.5, kept=KEPT)
    assert probe.judge(0, said(trainer, trainer)).distance == 0.0
    assert probe.judge(1, said(trainer, trainer + 3e-6)).distance == pytest.approx(3e-6)


def test_an_error_shows_the_place_and_keeps_both_vectors():
    trainer = np.round(-random(6).exponential(3.0, TOKENS), 3)
    generator = trainer.copy()
    generator[47 + 10] -= 0.5
    with pytest.raises(RefitError) as caught:
        Probe(0.1, sampled=KEPT).judge(7, said(trainer, generator))
    error = caught.value
    assert "differ from the trainer's by 0.5, more than 0.1, after the refit to version 7" in error.message
    assert "most at token 11 of sequence 1: around it the trainer has [" in error.hint
    assert "\n" not in str(error) and "all are in engine.log; the weights did not arrive as sent" in error.hint
    (note,) = error.__notes__
    assert len(note.splitlines()) == 32 and note.startswith("trainer, sequence 0: [")
    assert all(f"{value:.4g}" in note for value in (*trainer, generator[57]))


def test_kept_sequences_are_asked_about_only_where_growth_is_bounded():
    sampled = [np.arange(5, dtype=np.int32)]
    assert [len(ids) for ids in Probe(1e-4, kept=KEPT, sampled=sampled).sequences] == [5]
    assert [len(ids) for ids in Probe(1e-4, 1.5, kept=KEPT, sampled=sampled).sequences] == [48] * 16 + [5]
    assert [len(ids) for ids in Probe(1e-4, kept=KEPT).sequences] == [48] * 16
    assert Probe(1e-4).sequences == []


def test_answers_leave_out_the_first_token_of_each_sequence():
    sequences = [np.arange(3, dtype=np.int32), np.arange(2, dtype=np.int32)]
    trainer = np.array([0, 1, 2, 0, 4], np.float32)
    found = answers(sequences, trainer, [np.array([9, 1, 2], np.float32), np.array([9, 5], np.float32)])
    assert found.trainer.tolist() == [1, 2, 4] and found.generator.tolist() == [1, 2, 5]
    assert found.starts.tolist() == [0, 2]
    assert (found.difference, found.distance) == (1.0, pytest.approx(1 / 3))
    assert found.first(1).trainer.tolist() == [1, 2]
    with pytest.raises(RefitError, match="5 log-probabilities from the trainer and 3 from the generator"):
        answers(sequences, trainer, [np.zeros(3, np.float32)])
