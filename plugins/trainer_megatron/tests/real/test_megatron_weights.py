"""Weights that leave and come back: export, checkpoints, other layouts, the cache. Each group of ranks takes long to
start, so a test asks as much as it can of one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from grpo_bench.contract import (
    DeadlineExceeded, Floats, LimitSettings, LossSettings, PluginError, Purpose, Role, TrainBatch, Trainer, Transfer,
    UpdateStats,
)
from grpo_bench.steps import probe_batch
from grpo_bench.testing import tiny
from grpo_bench.testing.batches import make_batch, sequences
from grpo_bench.testing.transfers import exchanged, stored, transfer_of
from grpo_bench.testing.world import World, configured, descriptor_of
from grpo_bench_model_qwen3 import Qwen3, Qwen3Config, load, log_probabilities, pack, save

pytestmark = pytest.mark.real("megatron")

CLOSE = 1e-4
"""By how much log-probabilities and norms may differ between layouts, after an update or two."""


@pytest.fixture
def world(tmp_path: Path, environment_python: Callable[[str], str]) -> World:
    return World(tmp_path, "local", 600.0, env=environment_python("megatron"))


@asynccontextmanager
async def started(world: World, checkpoint: Path, **settings: Any) -> AsyncIterator[Trainer]:
    """A trainer with a cache of the world's own."""
    descriptor, _ = descriptor_of(Role.TRAINER, "megatron")
    config = configured(descriptor, {"cache": str(world.folder / "cache"), "learning_rate": 1e-3, **settings})
    shared = {"loss": LossSettings(), "limits": LimitSettings(), "sampling": world.sampling(frozenset()),
              "transport": "safetensors"}
    shared["sampling"][Purpose.TRAIN] = replace(shared["sampling"][Purpose.TRAIN], temperature=1.0)
    async with world.fabric() as fabric:
        trainer: Trainer = world.make(descriptor, config, fabric, shared, checkpoint)
        try:
            await trainer.start()
            yield trainer
        finally:
            await trainer.close()


def moe_policy(folder: Path, *, tied: bool = False) -> Path:
    """Two layers of eight experts over the kit's vocabulary, whose odd size no two ranks can share without padding."""
    tiny.make_policy(folder)
    model = Qwen3(Qwen3Config(
        vocab_size=tiny.VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, num_experts=8, moe_intermediate_size=32, tie_word_embeddings=tied, initializer_range=0.1))
    model.initialize(torch.Generator().manual_seed(5))
    (folder / "model.safetensors").unlink()
    save(model, folder, "float32")
    return folder


def delta_policy(folder: Path) -> Path:
    """A layer with a gated delta net and one with gated attention, each with eight experts and a shared one."""
    tiny.make_policy(folder)
    width, random = 32, np.random.RandomState(7)
    config = {
        "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "dtype": "float32",
        "vocab_size": tiny.VOCABULARY, "hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
        "num_experts": 8, "num_experts_per_tok": 2, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16,
        "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 256, "tie_word_embeddings": False, "hidden_act": "silu",
        "full_attention_interval": 2, "layer_types": ["linear_attention", "full_attention"], "pad_token_id": 0,
        "eos_token_id": tiny.END,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (tiny.VOCABULARY, width),
                                          "model.norm.weight": (width,), "lm_head.weight": (tiny.VOCABULARY, width)}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + f"{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
        mlp = {"gate.weight": (8, width), "shared_expert_gate.weight": (1, width)}
        for expert in ["shared_expert", *(f"experts.{number}" for number in range(8))]:
            mlp |= {f"{expert}.gate_proj.weight": (16, width), f"{expert}.up_proj.weight": (16, width),
                    f"{expert}.down_proj.weight": (width, 16)}
        shapes |= {f"{prefix}mlp.{name}": shape for name, shape in mlp.items()}
    delta = {"A_log": (4,), "dt_bias": (4,), "conv1d.weight": (128, 1, 4), "norm.weight": (16,),
             "out_proj.weight": (width, 64), "in_proj_qkv.weight": (128, width), "in_proj_z.weight": (64, width),
             "in_proj_b.weight": (4, width), "in_proj_a.weight": (4, width)}
    attention = {"q_proj.weight": (128, width), "k_proj.weight": (32, width), "v_proj.weight": (32, width),
                 "o_proj.weight": (width, 64), "q_norm.weight": (16,), "k_norm.weight": (16,)}
    shapes |= {f"model.layers.0.linear_attn.{name}": shape for name, shape in delta.items()}
    shapes |= {f"model.layers.1.self_attn.{name}": shape for name, shape in attention.items()}
    tensors = {name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    tensors["model.layers.0.linear_attn.norm.weight"] += 1.0
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


async def probe(trainer: Trainer) -> Floats:
    batch = probe_batch(sequences())
    return np.asarray(await trainer.log_probabilities(batch, "current"))[batch.token_mask]


async def update(trainer: Trainer, step: int) -> UpdateStats:
    batch: TrainBatch = make_batch(step)
    values = np.where(batch.token_mask, await trainer.log_probabilities(batch, "current"), 0).astype(np.float32)
    return await trainer.update(replace(batch, gen_log_probabilities=values, prev_log_probabilities=values))


async def sent_bytes(trainer: Trainer, world: World, chunk_bytes: int = 4096) -> dict[str, bytes]:
    """What a transfer brings, by name; in the order that was announced."""
    specs = trainer.tensors()
    got, count = await exchanged(trainer, transfer_of(world, specs, version=1, chunk_bytes=chunk_bytes))
    assert tuple(got) == specs and count == sum(map(len, got.values()))
    return {spec.name: data for spec, data in got.items()}


async def cancelled(trainer: Trainer, transfer: Transfer) -> None:
    """Begin a transfer that nobody takes, and give it up, as the core does where the generator fails."""
    sending = asyncio.create_task(trainer.send(transfer))
    await asyncio.to_thread(_wait_for, Path(transfer.rendezvous), "*.safetensors")
    sending.cancel()
    await asyncio.wait([sending])


async def broadcast_bytes(trainer: Trainer, world: World) -> list[dict[str, bytes]]:
    """What two engines of one process each receive by collectives."""
    transfer = replace(transfer_of(world, trainer.tensors(), version=1, deadline_s=60.0), transport="broadcast",
                       receivers=2)
    listeners = asyncio.gather(*(asyncio.to_thread(_listen, transfer, rank) for rank in (1, 2)))
    count, got = await asyncio.gather(trainer.send(transfer), listeners)
    assert count == sum(map(len, got[0].values()))
    return got


def _listen(transfer: Transfer, rank: int) -> dict[str, bytes]:
    host, _, port = _wait_for(Path(transfer.rendezvous), "store").read_text().rpartition(":")
    limit = timedelta(seconds=transfer.deadline_s)
    distributed: Any = torch.distributed
    store = distributed.TCPStore(host, int(port), 3, is_master=False, timeout=limit, wait_for_workers=False)
    store.set(f"members/{rank}", "3")
    group = distributed.ProcessGroupGloo(distributed.PrefixStore("group", store), rank, 3, limit)
    options = distributed.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    got = {}
    for spec in transfer.tensors:
        tensor = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
        group.broadcast([tensor], options).wait()
        got[spec.name] = tensor.numpy().tobytes()
    store.set(f"done/{rank}", "1")
    return got


def _wait_for(folder: Path, pattern: str) -> Path:
    waiting = threading.Event()
    while not (found := list(folder.glob(pattern))):
        waiting.wait(0.01)
    return found[0]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {spec.name: data for spec, data in stored(folder).items()}


async def follow(trainer: Trainer, folder: Path, *, saved: str, steps: tuple[int, ...]) -> list[float]:
    """Load a checkpoint, see that the weights are those that were saved, and go on."""
    await trainer.load(folder)
    assert await trainer.weights_sha256() == saved
    return [(await update(trainer, step)).grad_norm for step in steps]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_weights_are_exported_saved_and_taken_up_by_other_layouts(world: World) -> None:
    """One rank; then two with half of the experts each, twice, which goes on bit for bit; then two that share every
    layer."""
    policy = moe_policy(world.folder / "moe")

    async def work() -> None:
        alone, saved = world.new_folder(), world.new_folder()
        async with started(world, policy) as trainer:
            await update(trainer, 1)
            await trainer.save(alone, "full")
            first, second = await trainer.weights_sha256(), (await update(trainer, 2)).grad_norm
        async with started(world, policy, expert_parallel=2) as trainer:
            assert await sent_bytes(trainer, world) == bytes_of(policy)
            before = await trainer.weights_sha256()
            nobody = transfer_of(world, trainer.tensors(), version=1, chunk_bytes=4096, deadline_s=1.0)
            with pytest.raises(DeadlineExceeded):
                await trainer.send(nobody)
            await cancelled(trainer, replace(nobody, rendezvous=str(world.new_folder()), deadline_s=500.0))
            assert await asyncio.wait_for(trainer.weights_sha256(), 200.0) == before
            assert await follow(trainer, alone, saved=first, steps=(2,)) == pytest.approx([second], rel=CLOSE)
            await trainer.save(saved, "full")
            hashed, learned = await trainer.weights_sha256(), await sent_bytes(trainer, world, 10**6)
            assert bytes_of(saved) == learned != bytes_of(policy)
            norms = [(await update(trainer, step)).grad_norm for step in (3, 4)]
            ended, answers = await trainer.weights_sha256(), await probe(trainer)
            assert await follow(trainer, saved, saved=hashed, steps=(3, 4)) == norms
            assert await trainer.weights_sha256() == ended
        async with started(world, policy, expert_parallel=2) as trainer:
            assert await follow(trainer, saved, saved=hashed, steps=(3, 4)) == norms
            assert await trainer.weights_sha256() == ended
            with pytest.raises(PluginError, match="no checkpoint of this trainer"):
                await trainer.load(world.new_folder())
        async with started(world, policy, tensor_parallel=2) as trainer:
            assert await sent_bytes(trainer, world) == bytes_of(policy)
            assert await follow(trainer, saved, saved=hashed, steps=(3, 4)) == pytest.approx(norms, rel=CLOSE)
            np.testing.assert_allclose(await probe(trainer), answers, atol=CLOSE)

    run(work())


def test_pipeline_stages_export_a_tied_policy_that_others_can_load(world: World) -> None:
    """The output matrix is the embedding: it is neither sent nor saved twice. What is saved is an HF folder."""
    policy = moe_policy(world.folder / "moe", tied=True)

    async def work() -> None:
        weights = world.new_folder()
        async with started(world, policy, pipeline_parallel=2) as trainer:
            assert await sent_bytes(trainer, world) == bytes_of(policy)
            assert await broadcast_bytes(trainer, world) == [bytes_of(policy)] * 2
            await update(trainer, 1)
            await trainer.save(weights, "weights")
            assert bytes_of(weights) == await sent_bytes(trainer, world)
            mine = await probe(trainer)
        names = {file.name for file in policy.iterdir()}
        assert {file.name for file in weights.iterdir()} == names
        assert json.loads((weights / "config.json").read_text())["torch_dtype"] == "float32"
        np.testing.assert_allclose(_asked(load(weights)), mine, atol=CLOSE)

    run(work())


def test_a_gated_delta_net_is_exported_and_resumed(world: World) -> None:
    policy = delta_policy(world.folder / "delta")

    async def work() -> None:
        saved = world.new_folder()
        async with started(world, policy, expert_parallel=2, packing=False) as trainer:
            assert await sent_bytes(trainer, world) == bytes_of(policy)
            await update(trainer, 1)
            await trainer.save(saved, "full")
            hashed = await trainer.weights_sha256()
            norm = (await update(trainer, 2)).grad_norm
            assert await follow(trainer, saved, saved=hashed, steps=(2,)) == [norm]
            assert bytes_of(saved).keys() == bytes_of(policy).keys()

    run(work())


def test_bfloat16_with_recomputed_activations_goes_on(world: World) -> None:
    """The optimizer's own weights are float32: they are stored as well, so that nothing is lost to rounding."""
    policy = moe_policy(world.folder / "moe")
    rounded = {name: torch.frombuffer(bytearray(data), dtype=torch.float32).bfloat16()
               for name, data in bytes_of(policy).items()}

    async def work() -> None:
        saved = world.new_folder()
        async with started(world, policy, precision="bfloat16", recompute="full") as trainer:
            got = await sent_bytes(trainer, world)
            assert {spec.dtype for spec in trainer.tensors()} == {"bfloat16"}
            assert got == {name: weight.view(torch.uint8).numpy().tobytes() for name, weight in rounded.items()}
            await update(trainer, 1)
            await trainer.save(saved, "full")
            hashed, norm = await trainer.weights_sha256(), (await update(trainer, 2)).grad_norm
            assert await follow(trainer, saved, saved=hashed, steps=(2,)) == [norm]
            assert json.loads((saved / "config.json").read_text())["torch_dtype"] == "bfloat16"

    run(work())


def test_a_checkpoint_is_converted_once_and_by_the_same_stack(world: World) -> None:
    """Two trainers that start at once on an empty cache; then one that finds what another stack had made."""
    policy = moe_policy(world.folder / "moe")

    async def hashed() -> str:
        async with started(world, policy) as trainer:
            return await trainer.weights_sha256()

    async def work() -> None:
        first, second = await asyncio.gather(hashed(), hashed())
        assert first == second
        made = [entry for entry in (world.folder / "cache").iterdir() if entry.is_dir()]
        assert len(made) == 1 and made[0].name.endswith("-float32")
        note = json.loads((made[0] / "fingerprint.json").read_text())
        note["versions"]["megatron-core"] = "0.1.0"
        (made[0] / "fingerprint.json").write_text(json.dumps(note))
        with pytest.raises(PluginError, match=r"made with versions megatron-core 0\.1\.0.* this run has megatron-core"):
            await hashed()

    run(work())


def test_damaged_files_are_named_and_no_rank_waits(world: World) -> None:
    """torch says of a file that it cannot read by an exception which is no Exception."""
    policy = moe_policy(world.folder / "moe")

    async def work() -> None:
        saved = world.new_folder()
        async with started(world, policy, workers=2, expert_parallel=2) as trainer:
            await trainer.save(saved, "full")
            largest = max((saved / "megatron").glob("*.distcp"), key=lambda file: file.stat().st_size)
            largest.write_bytes(largest.read_bytes()[:1000])
            with pytest.raises(PluginError, match=f"{saved / 'megatron'} cannot be read"):
                await trainer.load(saved)

    run(work())


def _asked(model: Qwen3) -> Floats:
    """The probe's log-probabilities, from the model itself."""
    batch = probe_batch(sequences())
    packed = pack(batch.ids, batch.offsets, share_prefixes=False)
    with torch.no_grad():
        return log_probabilities(model, packed, batch.ids, np.flatnonzero(batch.token_mask), 1.0).numpy()
