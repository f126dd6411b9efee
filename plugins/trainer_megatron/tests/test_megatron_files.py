"""What lies on disks and travels, as far as it takes no Megatron: heads, folders, windows, fingerprints, fields."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo_bench.contract import DeadlineExceeded, InputError, PluginError, RefitError, TensorSpec, Transfer
from grpo_bench.steps import seals
from grpo_bench_trainer_megatron import (
    MegatronTrainerConfig, broadcast, cache, cache_note, checkpoints, hf_folder, ranks, sending,
)
from grpo_bench_trainer_megatron.controller import local_numbers
from grpo_bench_trainer_megatron.fields import Features, ddp_fields, model_fields, optimizer_fields, typed
from grpo_bench_trainer_megatron.headers import tensors_of
from grpo_bench_trainer_megatron.inventory import architectures, fields_of

distributed: Any = torch.distributed


def specs(*sizes: int) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(f"w{number}", (size,), "float32") for number, size in enumerate(sizes))


def test_heads_tell_what_a_folder_holds(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3, dtype=torch.bfloat16)}, tmp_path / "model-1.safetensors", {"format": "pt"})
    save_file({"b": torch.zeros(4)}, tmp_path / "model-2.safetensors")
    assert tensors_of(tmp_path) == (TensorSpec("a", (2, 3), "bfloat16"), TensorSpec("b", (4,), "float32"))
    for content in (b"", b"\xff" * 16, (10).to_bytes(8, "little") + b"[1, 2, 3] "):
        (tmp_path / "model-2.safetensors").write_bytes(content)
        with pytest.raises(InputError, match=r"model-2\.safetensors is no safetensors file"):
            tensors_of(tmp_path)


def test_a_folder_is_written_in_shards_with_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_folder, "SHARD_BYTES", 40)
    source, folder = tmp_path / "source", tmp_path / "folder"
    source.mkdir()
    folder.mkdir()
    (source / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16", "text_config": {"dtype": "bfloat16"}}))
    for name in ("tokenizer.json", "old.safetensors", "model.safetensors.index.json"):
        (source / name).write_text("{}")
    wanted = specs(4, 6, 20, 1)
    writer = hf_folder.HfFolder(folder, source, wanted)
    for number, spec in enumerate(wanted):
        writer.add(spec.name, torch.full(spec.shape, float(number)))
    writer.close()
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {"w0": "model-00001-of-00003.safetensors", "w1": "model-00001-of-00003.safetensors",
                                   "w2": "model-00002-of-00003.safetensors", "w3": "model-00003-of-00003.safetensors"}
    assert index["metadata"]["total_size"] == 31 * 4
    assert {file.name for file in folder.iterdir()} == {*index["weight_map"].values(), "tokenizer.json", "config.json",
                                                        "model.safetensors.index.json"}
    assert torch.equal(load_file(folder / "model-00002-of-00003.safetensors")["w2"], torch.full((20,), 2.0))
    config = json.loads((folder / "config.json").read_text())
    assert config == {"torch_dtype": "float32", "text_config": {"dtype": "float32"}}


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_write_the_folder_that_one_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    monkeypatch.setattr(hf_folder, "SHARD_BYTES", 40)
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "tokenizer.json").write_text("{}")
    wanted = specs(4, 6, 20, 1, 9, 10, 3)
    folders = {}
    for count in (1, ranks):
        folder = tmp_path / str(count)
        folder.mkdir()
        writers = [hf_folder.HfFolder(folder, source, wanted, rank, count) for rank in range(count)]
        for number, spec in enumerate(wanted):
            for writer in writers:
                writer.add(spec.name, torch.full(spec.shape, float(number)))
        for writer in writers:
            writer.close()
        folders[count] = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert len(folders[1]) == 5 + 3 and folders[ranks] == folders[1]


def test_a_shard_that_cannot_be_written_is_the_error_of_its_rank(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    writer = hf_folder.HfFolder(tmp_path / "nowhere", tmp_path, specs(2))
    writer.add("w0", torch.zeros(2))
    with pytest.raises(Exception, match="No such file"):
        writer.close()


@dataclass
class Ranks:
    """Rank 0's stream of weights, and what it told the other ranks."""

    specs: tuple[TensorSpec, ...]
    read: int = 0
    told: list[tuple[bool, int]] = field(default_factory=list)

    def stream(self) -> Iterator[tuple[str, torch.Tensor]]:
        for spec in self.specs:
            self.read += 1
            yield spec.name, torch.zeros(spec.shape)

    def tell(self, go_on: bool) -> None:
        self.told.append((go_on, self.read))


def test_ranks_go_on_window_by_window() -> None:
    """The others are told before a window's first weight is read. A transfer that fails reads its window to the end."""
    ranks = Ranks(specs(2, 2, 2, 9, 1))
    windows = sending._windows(ranks.specs, 16)
    assert windows == [2, 1, 1, 1]
    whole = sending._Pulled(ranks.stream(), windows, ranks.tell)
    for spec in ranks.specs:
        whole.take(spec)
    whole.end()
    assert ranks.told == [(True, 0), (True, 2), (True, 3), (True, 4)]
    failed = Ranks(ranks.specs)
    pulled = sending._Pulled(failed.stream(), windows, failed.tell)
    pulled.take(failed.specs[0])
    pulled.end()
    assert failed.told == [(True, 0), (False, 2)]
    with pytest.raises(RefitError, match="the model gave w0 where w1 was announced"):
        sending._Pulled(Ranks(ranks.specs).stream(), windows, failed.tell).take(ranks.specs[1])


def test_weights_that_cannot_be_read_are_the_error_that_comes_out() -> None:
    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        yield "w0", torch.zeros(2)
        raise RuntimeError("out of memory")

    told: list[bool] = []
    pulled = sending._Pulled(stream(), [3, 1], told.append)
    pulled.take(specs(2)[0])
    with pytest.raises(RuntimeError, match="out of memory"):
        pulled.take(specs(2, 2)[1])
    pulled.end()
    assert told == [True, False]


def test_a_transfer_that_is_given_up_before_it_begins_is_not_sent(tmp_path: Path) -> None:
    given_up, ranks = threading.Event(), Ranks(specs(2, 2))
    given_up.set()
    transfer = Transfer(1, "safetensors", str(tmp_path), ranks.specs, 8, 60.0, 1)
    with pytest.raises(RefitError, match="version 1 was cancelled"):
        asyncio.run(sending._through_files(transfer, sending._Pulled(ranks.stream(), [1, 1], ranks.tell), given_up))
    assert not ranks.read


def test_a_checkpoint_that_another_layout_cannot_read_names_both(tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: Any) -> None:
        raise ValueError("no such shard")

    monkeypatch.setattr(checkpoints, "read", unreadable)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    provider = SimpleNamespace(**{**dict.fromkeys(checkpoints._LAYOUT), "expert_model_parallel_size": 2})
    policy = SimpleNamespace(provider=provider, chunks=[], optimizer=None)
    note = {"step": 3, "layout": checkpoints.layout_of(provider), "versions": {}}
    (tmp_path / checkpoints.NOTE).write_text(json.dumps(note))
    with pytest.raises(ValueError, match="no such shard"):
        checkpoints.load(policy, tmp_path)
    note["layout"] = {**note["layout"], "ranks": 1, "expert_model_parallel_size": 1}
    (tmp_path / checkpoints.NOTE).write_text(json.dumps(note))
    with pytest.raises(PluginError, match="was written with ranks 1 and cannot be read with ranks 2, "
                                          "expert_model_parallel_size 2: no such shard"):
        checkpoints.load(policy, tmp_path)


def test_what_bridge_exports_is_what_the_checkpoint_has() -> None:
    stored = (*specs(2, 3), TensorSpec("lm_head.weight", (2,), "bfloat16"), TensorSpec("mtp.w", (1,), "bfloat16"))
    sending._compare(specs(2, 3), stored, True)
    with pytest.raises(PluginError, match=r"does not export lm_head\.weight"):
        sending._compare(specs(2, 3), stored, False)
    with pytest.raises(PluginError, match=r"exports w1 as \(4,\), the policy's checkpoint has it as \(3,\)"):
        sending._compare(specs(2, 4), stored, True)
    with pytest.raises(PluginError, match="exports w2, which the policy's checkpoint does not have"):
        sending._compare(specs(2, 3, 4), stored, True)


def test_a_converted_checkpoint_is_taken_from_the_same_stack_only(tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    stack = {"megatron-core": "0.19.2", "torch": "2.13.0"}
    monkeypatch.setattr(seals, "WHOLE", 100)
    folder = tmp_path / "snapshots" / ("0" * 39 + "a")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    save_file({"w": torch.zeros(200_000)}, folder / "model.safetensors")
    mine = cache_note.fingerprint(folder, "float32", stack)
    assert mine["revision"] == folder.name and cache_note.revision(tmp_path) == "unknown"
    save_file({"w": torch.ones(200_000)}, folder / "model.safetensors")
    other = cache_note.fingerprint(folder, "float32", stack)
    assert other["model"] != mine["model"]
    place = tmp_path / "place"
    (place / cache_note.WEIGHTS).mkdir(parents=True)
    (place / cache_note.WEIGHTS / "part").write_bytes(b"converted")
    cache_note.seal(place, mine)
    assert cache_note.refused(place, mine) is None
    newer = {**mine, "versions": {"megatron-core": "0.20.0", "torch": "2.13.0"}}
    assert "made with versions megatron-core 0.19.2, torch 2.13.0, this run has megatron-core 0.20.0" in str(
        cache_note.refused(place, newer))
    (place / cache_note.WEIGHTS / "part").write_bytes(b"convertet")
    assert "is damaged: its files are not those that were written" in str(cache_note.refused(place, mine))
    (place / cache_note.NOTE).unlink()
    assert "no readable fingerprint.json" in str(cache_note.refused(place, mine))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_note.folder_of("auto") == tmp_path / "grpo-bench" / "megatron"
    assert cache_note.folder_of("/else") == Path("/else")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer: list[Any] = [None]
    with cache._held(tmp_path / "file" / "cache", True, answer) as lock:
        assert lock is None
    assert "cannot be written" in str(answer[0])


def test_fields_are_read_from_source(tmp_path: Path) -> None:
    source = tmp_path / "bridge" / "models"
    source.mkdir(parents=True)
    file = source / "some_bridge.py"
    file.write_text('_NAME = "NamedForCausalLM"\n@Bridge.register_bridge(source=_NAME)\nclass A:\n    """Text."""\n'
                    '    lr: Optional[float] = None\n    kind: Kind = Kind.auto\n    most: float = float("inf")\n'
                    '    on: bool = True\n@Bridge.register_bridge(\n    source="TextForCausalLM")\nclass B: ...\n')
    assert dict(fields_of(file, "A")) == {
        "lr": {"type": "Optional[float]", "default": None}, "kind": {"type": "Kind", "default": "Kind.auto"},
        "most": {"type": "float", "default": "float('inf')"}, "on": {"type": "bool", "default": True}}
    assert sorted(architectures([tmp_path])) == ["NamedForCausalLM", "TextForCausalLM"]


def test_tables_win_over_keys() -> None:
    config = MegatronTrainerConfig(clip_norm=None, recompute="full", model={"moe_router_fusion": True, "new": 1},
                                   optimizer={"exp_avg_dtype": "bfloat16"}, ddp={"bucket_size": 5})
    model = model_fields(config, Features())
    assert model["moe_router_fusion"] is True and model["new"] == 1 and model["apply_rope_fusion"] is False
    assert model["recompute_method"] == "uniform" and model["use_cpu_initialization"] is True
    engine = model_fields(config, Features(cuda=True, transformer_engine=True))
    assert engine["moe_grouped_gemm"] is engine["moe_permute_fusion"] is True
    assert engine["gradient_accumulation_fusion"] is False  # without Apex Megatron's output layer refuses it
    assert model_fields(config, Features(True, True, True))["gradient_accumulation_fusion"] is True
    assert optimizer_fields(config)["clip_grad"] == 0.0 and ddp_fields(config)["bucket_size"] == 5


@dataclass
class Sums:
    """A configuration object as Megatron's are."""

    lr: float | None = None
    params_dtype: torch.dtype = torch.float32
    main_dtype: Any = None


def test_dtypes_are_text_until_they_are_given_to_megatron() -> None:
    made = typed(Sums, {"lr": 1.0, "params_dtype": "bfloat16", "main_dtype": "float32"})
    assert made == Sums(1.0, torch.bfloat16, torch.float32)


def test_weights_are_broadcast_to_all_members(tmp_path: Path) -> None:
    wanted = (TensorSpec("a", (3, 2), "float32"), TensorSpec("b", (5,), "bfloat16"))
    weights = [torch.arange(6.0).view(3, 2), torch.arange(5).to(torch.bfloat16)]
    transfer = Transfer(1, broadcast.NAME, str(tmp_path), wanted, 2**20, 30.0, 2)

    def send() -> int:
        sender = broadcast.Sender(transfer, "127.0.0.1", lambda: False)
        count = sum(map(sender.put, weights))
        sender.finish()
        sender.close()
        return count

    with ThreadPoolExecutor(3) as pool:
        sent, *received = pool.submit(send), pool.submit(_receive, transfer, 1), pool.submit(_receive, transfer, 2)
        assert sent.result() == 6 * 4 + 5 * 2
        for got in received:
            assert all(map(torch.equal, got.result(), weights))


def _receive(transfer: Transfer, rank: int) -> list[torch.Tensor]:
    file, waiting = Path(transfer.rendezvous) / broadcast.FILE, threading.Event()
    while not file.exists():
        waiting.wait(0.01)
    host, _, port = file.read_text().rpartition(":")
    limit = timedelta(seconds=transfer.deadline_s)
    store = distributed.TCPStore(host, int(port), 3, is_master=False, timeout=limit, wait_for_workers=False)
    store.set(f"members/{rank}", "3")
    group = distributed.ProcessGroupGloo(distributed.PrefixStore("group", store), rank, 3, limit)
    options = distributed.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    got = [torch.empty(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in transfer.tensors]
    for tensor in got:
        group.broadcast([tensor], options).wait()
    store.set(f"done/{rank}", "1")
    return got


def test_a_store_is_named_by_the_address_that_others_use(tmp_path: Path) -> None:
    store, address = ranks.open_store(1, "127.0.0.2", 5.0)
    assert address == f"127.0.0.2:{store.port}"
    transfer = Transfer(1, broadcast.NAME, str(tmp_path), specs(1), 2**20, 1.0, 1)
    with pytest.raises(DeadlineExceeded):
        broadcast.Sender(transfer, "127.0.0.2", lambda: False)
    assert (tmp_path / broadcast.FILE).read_text().startswith("127.0.0.2:")


def test_ranks_of_a_host_are_counted() -> None:
    assert local_numbers((), 4) == (0, 1, 2, 3)
    assert local_numbers(("a", "a", "b", "a", "b"), 5) == (0, 1, 0, 2, 1)


def test_a_cache_that_a_rank_does_not_see_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gathered(seen: list[Any], mine: Any, group: Any) -> None:
        seen[:] = [mine, (False, "n7")]

    monkeypatch.setattr(cache, "_SHOWN_S", 0.2)
    monkeypatch.setattr(distributed, "get_world_size", lambda group: 2)
    monkeypatch.setattr(distributed, "all_gather_object", gathered)
    with pytest.raises(PluginError, match=f"rank 1 on n7 does not see {tmp_path}.*cache must be a folder that all"):
        cache._check_shared(tmp_path, tmp_path / "home", None)
    assert not cache._sees(tmp_path / "x")


def test_a_broadcast_that_nobody_joins_ends(tmp_path: Path) -> None:
    transfer = Transfer(1, broadcast.NAME, str(tmp_path), specs(1), 2**20, 1.0, 1)
    with pytest.raises(DeadlineExceeded, match="members/1 did not come for weight version 1"):
        broadcast.Sender(transfer, "127.0.0.1", lambda: False)
    with pytest.raises(RefitError, match="cancelled"):
        broadcast.Sender(transfer, "127.0.0.1", lambda: True)
