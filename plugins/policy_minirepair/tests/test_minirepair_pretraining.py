import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from grpo_bench_env_minirepair.tasks import FAMILIES
from grpo_bench_model_qwen3 import Qwen3Config
from grpo_bench_policy_minirepair import BASE, BASE_QWEN35
from grpo_bench_policy_minirepair.learner import Qwen3Learner, load_qwen3
from grpo_bench_policy_minirepair.muon import Optimizer, orthogonalise
from grpo_bench_policy_minirepair.pretrain import Probe, Row, Run, batches, loss_of, new_model, rate
from tokenizers import Tokenizer

TOKENS = Tokenizer.from_file(str(BASE / "tokenizer.json"))
RUN = Run(out=Path("unused"), seed=0, workers=2, steps=1, problems=2, experts=4, width=32)


def small_model(seed=0, experts=4):
    model = Qwen3Learner(Qwen3Config(vocab_size=TOKENS.get_vocab_size(), hidden_size=64, num_hidden_layers=2,
                                     head_dim=16, num_experts=experts, moe_intermediate_size=32, intermediate_size=64))
    model.initialize(torch.Generator().manual_seed(seed))
    return model


def first(rank, seed=0, count=3, **changes):
    run = Run(**{**RUN.__dict__, "seed": seed, **changes})
    return list(itertools.islice(batches(run, rank, TOKENS), count))


def test_batches_depend_on_seed_and_rank_only():
    assert first(0) == first(0)
    assert first(0) != first(1)
    assert first(0) != first(0, seed=1)


def test_workers_draw_different_problems():
    stretch = 16 * len(FAMILIES) // RUN.problems
    mine, theirs = ({tuple(row.ids) for batch in first(rank, count=stretch // 8) for row in batch} for rank in (0, 1))
    assert len(mine & theirs) < 0.02 * len(mine)


def test_demonstrations_alone_are_the_same_problems():
    alone = first(0, count=1, problems=8, agent_only=True)[0]
    among = first(0, count=1, problems=8)[0]
    assert len(alone) == len(among) / 3
    assert alone[0].ids == among[0].ids


def test_rows_weigh_every_token():
    for row in (row for batch in first(0) for row in batch):
        assert len(row.ids) == len(row.weights) < 512
        assert set(row.weights) <= {0.3, 1.0, 3.0}
        assert max(row.ids) < TOKENS.get_vocab_size()


def test_loss_is_the_weighted_mean_over_rows():
    model, r = small_model(), random.Random(0)
    rows = [Row([r.randrange(700) for _ in range(n)], [r.random() for _ in range(n)]) for n in (3, 7, 5)]
    total = weight = 0.0
    for row in rows:
        ids = np.array(row.ids, np.int32)
        logp = model.log_probabilities(ids, np.array([0, len(ids)]), np.arange(1, len(ids)))
        total -= float((logp.detach() * torch.tensor(row.weights[1:])).sum())
        weight += sum(row.weights[1:])
    assert float(loss_of(model, rows).detach()) == pytest.approx(total / weight, abs=1e-5)


@pytest.mark.parametrize("experts", [0, 4])
def test_a_few_steps_lower_the_loss(experts):
    model, rows = small_model(experts=experts), first(0)[0]
    optimizer = Optimizer(model, 0.02, 3e-3, 0, 1)
    losses = []
    for _ in range(8):
        loss = loss_of(model, rows)
        loss.backward()
        optimizer.step(1.0)
        model.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


def test_rates_rise_stay_and_fall_unless_told_not_to():
    falling, flat = (Run(**{**RUN.__dict__, "steps": 200, "flat": flat}) for flat in (False, True))
    assert [round(rate(falling, step), 3) for step in (1, 15, 30, 100, 160, 200)] == [0.033, 0.5, 1, 1, 0.5, 0.02]
    assert [round(rate(flat, step), 3) for step in (1, 15, 30, 100, 160, 200)] == [0.033, 0.5, 1, 1, 1, 1]


@pytest.mark.parametrize(("family", "folder"), [("qwen3", BASE), ("qwen35", BASE_QWEN35)])
def test_a_run_begins_where_another_ended(tmp_path, family, folder):
    new_model(Run(**{**RUN.__dict__, "family": family, "start": folder}), TOKENS).save(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 32, 8), (2, 8, 32)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape):
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape, generator=torch.Generator().manual_seed(0))))
    assert values.min() > 0.3
    assert values.max() < 1.4


def test_base_loads_knows_repairs_and_seldom_makes_them():
    facts = Probe(TOKENS, 2 * len(FAMILIES)).measure(load_qwen3(BASE))
    assert facts["p_text"] > 0.8
    assert facts["p_line"] > 0.25
    assert 0.01 < facts["p_edit"] < 0.3


def test_transformers_computes_the_same_from_the_base():
    transformers = pytest.importorskip("transformers")
    row = first(0)[0][0]
    ids = np.array(row.ids, np.int32)
    with torch.no_grad():
        ours = load_qwen3(BASE).log_probabilities(ids, np.array([0, len(ids)]), np.arange(1, len(ids)))
        theirs = transformers.AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
        table = theirs(input_ids=torch.tensor([row.ids])).logits[0].log_softmax(-1)
    picked = table[:-1].gather(1, torch.tensor(row.ids[1:])[:, None])[:, 0]
    assert float((picked - ours).abs().max()) < 1e-3
