"""The model against transformers' classes, and its own ways of computing against each other."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_bench_model_qwen3 import (
    Cache, Chunk, Qwen3, Qwen3Config, assign, extend, hf_views, hidden_states, load, log_probabilities, pack,
    rows_are_independent, save,
)

KINDS = {
    "dense": {}, "dense-grouped": {"num_key_value_heads": 2}, "dense-untied": {"tie_word_embeddings": False},
    "moe": {"num_experts": 4, "moe_intermediate_size": 40},
    "moe-raw": {"num_experts": 4, "moe_intermediate_size": 24, "num_experts_per_tok": 3, "norm_topk_prob": False},
}


@pytest.fixture(scope="module", params=list(KINDS), ids=list(KINDS))
def model(request) -> Qwen3:
    torch.set_num_threads(1)
    config = Qwen3Config(vocab_size=101, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, head_dim=16,
                         intermediate_size=80, max_position_embeddings=256, **KINDS[request.param])
    return random_model(config)


def random_model(config: Qwen3Config) -> Qwen3:
    model = Qwen3(config)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + (parameter.ndim == 1))
    return model


@pytest.fixture(scope="module")
def rows() -> list[np.ndarray]:
    """Rows of different lengths, the last two beginning like the second, one of them ending inside it."""
    rng = np.random.default_rng(0)
    first = [rng.integers(0, 101, length) for length in (5, 40, 17)]
    return [*first, np.concatenate((first[1][:25], first[2])), first[1][:30]]


def flat(rows):
    return np.concatenate(rows), np.cumsum([0] + [len(row) for row in rows])


def theirs(model, folder):
    """The same weights in transformers' class."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    save(model, folder, "float32")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def test_logits_and_gradients_are_those_of_transformers(model, rows, tmp_path):
    other = theirs(model, tmp_path)
    assert type(other).__name__ == json.loads((tmp_path / "config.json").read_text())["architectures"][0]
    ids, offsets = flat(rows)
    packed = pack(ids, offsets)
    ours = model.logits(hidden_states(model, packed))[torch.from_numpy(packed.node)]
    expected = torch.cat([other(torch.from_numpy(row)[None]).logits[0] for row in rows])
    assert torch.allclose(ours, expected, atol=1e-5)

    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    model.zero_grad()
    (ours * weight).sum().backward()
    (expected * weight).sum().backward()
    found = hf_views(model, gradient_of)
    for name, gradient in gradients_of(other).items():
        assert torch.allclose(found[name], gradient, atol=1e-5 * float(gradient.abs().max())), name


def gradient_of(parameter):
    assert parameter.grad is not None
    return parameter.grad


def gradients_of(other):
    """By published names; transformers holds experts stacked, with gate and up together."""
    result = {}
    for name, parameter in other.named_parameters():
        stem, _, kind = name.rpartition(".")
        if kind not in ("gate_up_proj", "down_proj") or not stem.endswith("experts"):
            result[name] = parameter.grad
            continue
        for expert, gradient in enumerate(parameter.grad):
            gate_up = kind == "gate_up_proj"
            parts = zip(("gate_proj", "up_proj"), gradient.chunk(2)) if gate_up else [("down_proj", gradient)]
            result |= {f"{stem}.{expert}.{part}.weight": value for part, value in parts}
    return result


def test_packed_rows_do_not_leak_into_each_other(model, rows):
    ids, offsets = flat(rows)
    at = np.setdiff1d(np.arange(len(ids)), offsets)
    alone = np.concatenate([scores(model, [row], np.arange(1, len(row)))[0] for row in rows])
    together, shared = scores(model, rows, at, share_prefixes=False)[0], scores(model, rows, at)[0]
    assert together == pytest.approx(alone, abs=1e-5)
    assert shared == pytest.approx(alone, abs=1e-5)
    changed = [rows[0], (rows[1] + 1) % 101, *rows[2:]]
    row = np.repeat(np.arange(len(rows)), np.diff(offsets))[at]
    assert scores(model, changed, at, share_prefixes=False)[0][row != 1] == pytest.approx(together[row != 1], abs=1e-6)
    assert len(at) == len(alone)


def test_sharing_prefixes_changes_no_gradient(model, rows):
    at = np.setdiff1d(np.arange(len(flat(rows)[0])), flat(rows)[1])
    _, packed = scores(model, rows, at, share_prefixes=False)
    _, shared = scores(model, rows, at)
    scale = float(packed.abs().max())
    assert torch.allclose(shared, packed, atol=1e-5 * scale)


def scores(model, rows, at, **options):
    """Log-probabilities and the gradient of a weighted sum of them."""
    ids, offsets = flat(rows)
    model.zero_grad()
    values = log_probabilities(model, pack(ids, offsets, **options), ids, at, 0.8)
    (values * torch.linspace(-1, 1, len(values))).sum().backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    return values.detach().numpy(), gradient


class Elsewhere(TorchDispatchMode):
    """Fails where a tensor is made on the CPU; the experts' token counts, which Python reads, are made up."""

    def __init__(self, counts):
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.bincount.default:
            return self.counts
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.lift_fresh.default:  # an array of numpy's, on its way to the device
            return result
        made = [one for one in (result if isinstance(result, (tuple, list)) else (result,)) if torch.is_tensor(one)]
        assert all(one.device.type == "meta" for one in made), func
        return result


def test_training_computes_where_the_model_is(model, rows):
    ids, offsets = flat(rows)
    at = np.setdiff1d(np.arange(len(ids)), offsets)
    there = copy.deepcopy(model).to("meta")
    packed = pack(ids, offsets, device="meta")
    chosen, experts = len(packed.ids) * model.config.num_experts_per_tok, max(model.config.num_experts, 1)
    counts = torch.tensor([chosen - (experts - 1) * 9] + [9] * (experts - 1))
    with Elsewhere(counts):
        log_probabilities(there, packed, ids, at, 0.8).sum().backward()
    assert all(gradient_of(parameter).device.type == "meta" for parameter in there.parameters())


def test_training_computes_in_the_precision_of_the_weights(model, rows):
    at = np.setdiff1d(np.arange(len(flat(rows)[0])), flat(rows)[1])
    values, gradient = scores(model, rows, at)
    exact_values, exact_gradient = scores(copy.deepcopy(model).double(), rows, at)
    assert (exact_values.dtype, exact_gradient.dtype) == (np.float64, torch.float64)
    assert values == pytest.approx(exact_values, abs=1e-4)
    assert torch.allclose(gradient.double(), exact_gradient, atol=1e-5 * float(exact_gradient.abs().max()))


def test_a_common_beginning_is_computed_once(rows):
    ids, offsets = flat(rows)
    assert len(pack(ids, offsets).ids) == len(ids) - 25 - 30
    assert len(pack(ids, offsets, share_prefixes=False).ids) == len(ids)


def test_cached_computation_is_the_full_forward_whatever_runs_beside_it(model):
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, 101, length) for length in (3, 150, 64, 20)]
    ids, offsets = flat(rows)
    packed = pack(ids, offsets)
    with torch.inference_mode():
        full = hidden_states(model, packed)[torch.from_numpy(packed.node)].split([len(row) for row in rows])
    cache = Cache(model.config, 40, 200)
    slots, done, parts = [33, 2, 7, 8], [0] * 4, [[] for _ in rows]
    while any(done[index] < len(row) for index, row in enumerate(rows)):
        index_of, chunks = [], []
        for index, row in enumerate(rows):
            size = int(rng.choice([1, 1, 30]))
            if done[index] < len(row) and rng.random() < 0.7:
                chunks.append(Chunk(slots[index], done[index], row[done[index]:done[index] + size].tolist()))
                index_of.append(index)
        for index, chunk, states in zip(index_of, chunks, extend(model, cache, chunks) if chunks else [], strict=True):
            parts[index].append(states)
            done[index] = chunk.end
    for index in range(len(rows)):
        assert torch.allclose(torch.cat(parts[index]), full[index], atol=1e-5)
    assert rows_are_independent(model.config)


def test_a_lone_slot_and_one_among_many_compute_the_same(model):
    rows = [np.random.default_rng(index).integers(0, 101, 40).tolist() for index in range(32)]

    def play(slots):
        cache = Cache(model.config, 64, 48)
        extend(model, cache, [Chunk(slot, 0, rows[slot][:39]) for slot in range(32)])
        return extend(model, cache, [Chunk(slot, 39, rows[slot][39:]) for slot in slots])

    together = play(range(32))  # in place
    for slots in ([0, 17, 31], [5, 30]):  # copied, since most of the block is idle
        for slot, states in zip(slots, play(slots), strict=True):
            assert torch.equal(states, together[slot])


def test_a_copied_prefix_is_as_good_as_a_computed_one(model):
    ids = np.random.default_rng(2).integers(0, 101, 50).tolist()
    cache = Cache(model.config, 4, 64)
    extend(model, cache, [Chunk(0, 0, ids[:40])])
    cache.copy(0, 3, 30)
    (copied,), (computed,) = extend(model, cache, [Chunk(3, 30, ids[30:])]), extend(model, cache, [Chunk(1, 0, ids)])
    assert torch.equal(copied, computed[30:])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_models_load_again(model, tmp_path, dtype):
    source = tmp_path / "source"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    save(model, tmp_path / "saved", dtype, source=source)
    assert (tmp_path / "saved" / "tokenizer.json").read_text() == "{}"
    again = load(tmp_path / "saved")
    assert again.config == model.config
    kept = getattr(torch, dtype)
    for name, view in hf_views(again).items():
        assert torch.equal(view, hf_views(model)[name].to(kept).float()), name


def test_weights_that_transformers_saves_load(model, rows, tmp_path):
    theirs(model, tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    again = load(tmp_path / "theirs")
    assert all(torch.equal(view, hf_views(model)[name]) for name, view in hf_views(again).items())


def test_weights_that_do_not_fit_are_refused(model):
    tensors = {name: view.clone() for name, view in hf_views(model).items()}
    with pytest.raises(ValueError, match="missing"):
        assign(model, dict(list(tensors.items())[1:]))
    with pytest.raises(ValueError, match="no weights of this model"):
        assign(model, tensors | {"else": torch.zeros(1)})
    with pytest.raises(ValueError, match="has shape"):
        assign(model, tensors | {"model.norm.weight": torch.zeros(1)})


@pytest.mark.parametrize(("change", "message"), [
    ({"model_type": "llama"}, "neither"), ({"hidden_act": "gelu"}, "hidden_act"),
    ({"rope_scaling": {"type": "yarn"}}, "rope"), ({"mlp_only_layers": [0]}, "mix"),
    ({"use_sliding_window": True}, "sliding"),
])
def test_what_cannot_be_computed_is_refused(change, message):
    content = Qwen3Config(vocab_size=10, num_experts=2).to_hf("float32")
    assert Qwen3Config.from_hf(content) == Qwen3Config(vocab_size=10, num_experts=2)
    with pytest.raises(ValueError, match=message):
        Qwen3Config.from_hf({**content, **change})


@pytest.mark.parametrize(("change", "message"), [
    ({"num_key_value_heads": 3}, "not a multiple"), ({"num_experts": 2, "num_experts_per_tok": 3}, "does not fit"),
    ({"head_dim": 5}, "odd"),
])
def test_sizes_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Qwen3Config(vocab_size=10, **change)
