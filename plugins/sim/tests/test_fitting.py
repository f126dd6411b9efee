"""Laws out of samples."""

from random import Random
from statistics import fmean

import pytest
from grpo_bench_sim.fitting import linear, quantiles
from grpo_bench_sim.laws import Quantiles
from hypothesis import given
from hypothesis import strategies as st

TIMES = st.floats(0, 1e4, allow_nan=False).map(lambda value: round(value, 3))


@given(st.floats(0, 100), st.floats(0.01, 10), st.floats(0.001, 1),
       st.lists(st.tuples(st.integers(1, 500), st.integers(1, 10_000)), min_size=6, max_size=20, unique=True))
def test_times_that_grow_with_the_work_are_found_again(fixed, per_row, per_token, sizes):
    rows, tokens = zip(*sizes)
    seconds = [fixed + per_row * row + per_token * token for row, token in sizes]
    law = linear(rows, tokens, seconds)
    assert [law.fixed + law.per_row * row + law.per_token * token for row, token in sizes] == pytest.approx(
        seconds, rel=1e-3)


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 10_000), TIMES), min_size=1, max_size=20))
def test_no_coefficient_is_negative(samples):
    law = linear(*zip(*samples))
    assert min(law.fixed, law.per_row, law.per_token, law.sigma) >= 0


def test_what_grows_with_less_work_is_taken_to_be_constant():
    law = linear([256] * 5, [100, 200, 300, 400, 500], [5.0, 4.0, 3.0, 2.0, 1.0])
    assert (law.per_row, law.per_token) == (0, 0) and law.fixed > 0


@pytest.mark.parametrize(("rows", "tokens", "seconds"), [
    ([8, 16, 32], [10, 20, 40], [1.0, 2.0, 4.0]),
    ([8] * 6, [1000, 1001, 1002, 1000, 1001, 1002], [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]),
    ([8] * 6, [0] * 6, [2.0] * 6)], ids=["few", "alike", "nothing sampled"])
def test_too_few_samples_or_alike_ones_give_their_mean(rows, tokens, seconds):
    law = linear(rows, tokens, seconds)
    assert (law.per_row, law.per_token) == (0, 0)
    random = Random(0)
    assert fmean(law.draw(random, rows[0], tokens[0]) for _ in range(4000)) == pytest.approx(fmean(seconds), rel=0.05)


@given(st.lists(TIMES, min_size=1, max_size=200), st.integers(2, 50))
def test_quantiles_are_few_and_keep_the_extremes(values, most):
    law = quantiles(values, most)
    assert len(law.values) == min(most, len(values)) and law.count == len(values)
    assert set(law.values) <= set(values)
    assert (law.values[0], law.values[-1]) == (min(values), max(values))


@given(st.lists(TIMES, min_size=2, max_size=50), st.integers(0, 2**32))
def test_a_draw_is_at_most_a_gap_beyond_what_was_seen(values, seed):
    law = quantiles(values, 100)
    least, greatest = law.values[0], law.values[-1]
    drawn = law.draw(Random(seed))
    assert max(0, least - (law.values[1] - least)) <= drawn <= greatest + (greatest - law.values[-2]) + 1e-9


@pytest.mark.parametrize("most", [1000, 40])
def test_as_many_draws_have_the_mean_and_the_maximum_of_the_values(most):
    random = Random(1)
    values = [random.expovariate(0.1) for _ in range(200)]
    law = quantiles(values, most)
    samples = [[law.draw(random) for _ in values] for _ in range(400)]
    assert fmean(map(fmean, samples)) == pytest.approx(fmean(values), rel=0.05)
    assert fmean(map(max, samples)) == pytest.approx(max(values), rel=0.1)


@pytest.mark.parametrize("wrong", [{"values": [2, 1], "count": 2}, {"values": [1, 2, 3], "count": 2},
                                   {"values": [], "count": 1}])
def test_quantiles_out_of_order_or_of_fewer_values_are_refused(wrong):
    with pytest.raises(ValueError, match=r"quantiles|values"):
        Quantiles.model_validate(wrong)
