"""Qwen3.5-MoE, whose gated delta net cannot pack on a CPU, against transformers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.real("megatron")
BOUND = 1e-4
PROGRAM = Path(__file__).with_name("qwen35_by_transformers.py")


def test_log_probabilities_before_and_after_an_update_are_those_of_transformers(bench, tmp_path):
    def by_transformers(folder):
        asked = [folder, tmp_path / "asked.npz", tmp_path / "values.npy"]
        subprocess.run([bench.python, "-W", "ignore", PROGRAM, *asked], check=True)
        return np.where(batch.token_mask, np.load(tmp_path / "values.npy"), 0)

    async def play(trainer):
        before = await trainer.log_probabilities(batch, "current")
        stats = await trainer.update(bench.off_policy(batch, before))
        (tmp_path / "saved").mkdir()
        await trainer.save(tmp_path / "saved", "weights")
        return before, stats, await trainer.log_probabilities(batch, "current")

    batch = bench.batches(0, rows=4)
    np.savez(tmp_path / "asked.npz", ids=batch.ids, offsets=batch.offsets, temperature=bench.temperature)
    expected = by_transformers(tmp_path / "policy")
    before, stats, after = bench.megatron(play, checkpoint=tmp_path / "policy", packing=False, batch_tokens=100)
    np.testing.assert_allclose(before, expected, atol=BOUND, rtol=0)
    np.testing.assert_allclose(after, by_transformers(tmp_path / "saved"), atol=BOUND, rtol=0)
    assert stats.grad_norm > 0
    assert np.abs(after - before).max() > 10 * BOUND
