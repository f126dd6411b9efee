"""The Qwen3.5-MoE that is pretrained: its layers against their definitions, its folder, what the shipped one knows."""

import json
import random
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from grpo_bench_env_minirepair.tasks import FAMILIES
from grpo_bench_policy_minirepair import BASE, BASE_QWEN35
from grpo_bench_policy_minirepair.delta import CHUNK, causal_convolution, cut, gated_delta_rule
from grpo_bench_policy_minirepair.muon import Optimizer
from grpo_bench_policy_minirepair.pretrain import Probe, Run, batches, loss_of
from grpo_bench_policy_minirepair.qwen35 import Qwen35, load_qwen35
from grpo_bench_policy_minirepair.qwen35_config import Qwen35Config
from safetensors.torch import load_file
from tokenizers import Tokenizer

TOKENS = Tokenizer.from_file(str(BASE_QWEN35 / "tokenizer.json"))
LENGTHS = (1, CHUNK, 2 * CHUNK + 5, 3, CHUNK + 1)
OFFSETS = np.cumsum([0, *LENGTHS])
ROWS = [slice(a, b) for a, b in pairwise(OFFSETS)]


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def small_model(heads=2):
    config = Qwen35Config(vocab_size=TOKENS.get_vocab_size(), eos_token_id=2, pad_token_id=0, hidden_size=32,
                          num_attention_heads=2, num_key_value_heads=1, head_dim=16, rotary=8, linear_head_dim=16,
                          linear_num_value_heads=heads, num_experts=4, moe_intermediate_size=16)
    model = Qwen35(config)
    model.initialize(torch.Generator().manual_seed(0))
    return model


def some_rows(*lengths):
    r = random.Random(0)
    return [np.array([r.randrange(TOKENS.get_vocab_size()) for _ in range(n)], np.int32) for n in lengths]


def scores(model, rows):
    """Log-probabilities of every row's tokens but the first."""
    offsets = np.cumsum([0, *map(len, rows)])
    at = np.setdiff1d(np.arange(offsets[-1]), offsets[:-1])
    logp = model.log_probabilities(np.concatenate(rows), offsets, at)
    return logp.split([len(row) - 1 for row in rows])


def token_by_token(q, k, v, g, beta):
    """The gated delta rule of one row, as it is defined."""
    serves, memory, answers = v.shape[1] // k.shape[1], 0.0, []
    for t in range(len(v)):
        query, key = q[t].repeat_interleave(serves, 0), k[t].repeat_interleave(serves, 0)
        memory = memory * g[t].exp()[:, None, None]
        recalled = (key[:, :, None] * memory).sum(1)
        memory = memory + key[:, :, None] * ((v[t] - recalled) * beta[t][:, None])[:, None]
        answers.append((query[:, :, None] * memory).sum(1))
    return torch.stack(answers)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_chunks_compute_the_delta_rule(heads):
    n, keys = int(OFFSETS[-1]), max(1, heads // 2)
    q, k, v = drawn(n, keys, 8), torch.nn.functional.normalize(drawn(n, keys, 8, seed=1), dim=-1), drawn(n, heads, 4)
    g, beta = -drawn(n, heads, seed=2).abs(), drawn(n, heads, seed=3).sigmoid()
    inputs = [x.float().requires_grad_() for x in (q, k, v, g, beta)]
    ours = gated_delta_rule(*inputs, chunks=cut(OFFSETS))
    exact = [x.requires_grad_() for x in (q, k, v, g, beta)]
    expected = torch.cat([token_by_token(*(x[row] for x in exact)) for row in ROWS])
    assert torch.allclose(ours.double(), expected, atol=1e-4)
    weights = drawn(*expected.shape, seed=4)
    for mine, theirs in zip(torch.autograd.grad((ours * weights.float()).sum(), inputs),
                            torch.autograd.grad((expected * weights).sum(), exact), strict=True):
        assert torch.allclose(mine.double(), theirs, atol=1e-3)


def test_convolution_stays_within_rows():
    x, taps = drawn(int(OFFSETS[-1]), 5).requires_grad_(), drawn(4, 5, seed=1).requires_grad_()
    places = torch.cat([torch.arange(n) for n in LENGTHS])
    early = [(places < back).nonzero()[:, 0] for back in (1, 2, 3)]
    ours = causal_convolution(x, taps, early)
    padded = [torch.nn.functional.pad(x[row], (0, 0, 3, 0)) for row in ROWS]
    sums = torch.cat([torch.stack([part[i:i + len(part) - 3] * taps[i] for i in range(4)]).sum(0) for part in padded])
    expected = torch.nn.functional.silu(sums)
    assert torch.allclose(ours, expected, atol=1e-12)
    weights = drawn(*expected.shape, seed=2)
    for mine, theirs in zip(torch.autograd.grad((ours * weights).sum(), (x, taps)),
                            torch.autograd.grad((expected * weights).sum(), (x, taps)), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12)


def test_rows_do_not_see_each_other():
    model, rows = small_model(), some_rows(70, 2, 33, 5)
    with torch.no_grad():
        for row, together in zip(rows, scores(model, rows), strict=True):
            assert torch.allclose(scores(model, [row])[0], together, atol=1e-5)


def test_a_token_depends_on_those_before_only():
    model, (row,) = small_model(), some_rows(50)
    changed = row.copy()
    changed[40:] = row[30:40]
    with torch.no_grad():
        (before,), (after,) = scores(model, [row]), scores(model, [changed])
    assert torch.allclose(before[:39], after[:39], atol=1e-6)
    assert not torch.allclose(before[39:], after[39:], atol=1e-2)


def test_muon_and_adam_share_the_weights():
    model = small_model()
    run = Run(out=Path("unused"), seed=0, workers=1, steps=1, problems=4, experts=4, width=16, agent_only=True)
    rows, optimizer = next(batches(run, 0, TOKENS)), Optimizer(model, 0.02, 3e-3, 0, 1)
    begun, losses = {name: p.detach().clone() for name, p in model.named_parameters()}, []
    for _ in range(8):
        loss = loss_of(model, rows)
        loss.backward()
        optimizer.step(1.0)
        model.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]
    assert all(not torch.equal(begun[name], p) for name, p in model.named_parameters())


@pytest.mark.parametrize("heads", [1, 2])
def test_a_folder_gives_back_the_model(tmp_path, heads):
    model, rows = small_model(heads), some_rows(40)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) * 0.1).copy_(p.bfloat16())
        model.save(tmp_path)
        again = load_qwen35(tmp_path)
        assert again.config == model.config
        assert torch.equal(scores(again, rows)[0], scores(model, rows)[0])


def test_shipped_folder_is_what_the_script_writes(tmp_path):
    load_qwen35(BASE_QWEN35).save(tmp_path)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == (BASE_QWEN35 / name).read_bytes()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (BASE_QWEN35 / name).read_bytes() == (BASE / name).read_bytes()
    stored = load_file(BASE_QWEN35 / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    assert 1_000_000 < sum(tensor.numel() for tensor in stored.values()) < 2_000_000


def test_shipped_base_makes_some_repairs():
    assert 0.03 < Probe(TOKENS, 2 * len(FAMILIES)).measure(load_qwen35(BASE_QWEN35))["p_edit"] < 0.5


IN_TRANSFORMERS = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
for row in json.load(sys.stdin):
    table = model(input_ids=torch.tensor([row])).logits[0].log_softmax(-1)
    print(json.dumps(table[:-1].gather(1, torch.tensor(row[1:])[:, None])[:, 0].tolist()))
"""


@pytest.mark.real("megatron")
def test_transformers_computes_the_same_from_the_shipped_base(environment_python):
    rows = some_rows(5, CHUNK, 130)
    answer = subprocess.run([environment_python("megatron"), "-c", IN_TRANSFORMERS, BASE_QWEN35], check=True,
                            capture_output=True, input=json.dumps([row.tolist() for row in rows]), text=True)
    with torch.no_grad():
        ours = scores(load_qwen35(BASE_QWEN35), rows)
    for line, mine in zip(answer.stdout.splitlines(), ours, strict=True):
        assert np.allclose(json.loads(line), mine.numpy(), atol=1e-3)
