# pyright: reportMissingImports=false
"""Checkpoints a trainer goes on from, in Megatron's torch_dist form.

``full`` is an HF folder and, in its subfolder ``megatron``, every weight and Adam's state of it, each one whole
whatever ranks held its parts, and in ``trainer.json`` how many updates there were and what wrote it. Groups of
parameters are not stored: they follow from the settings. So a checkpoint can be read by another layout than wrote it,
with the same values; at the same layout the run goes on bit for bit.

Adam's state is reached through Megatron's distributed optimizer, one for the dense weights and one for the experts. Its
own reading of checkpoints expects Transformer Engine's Adam; torch's keeps the number of updates with each parameter,
so that number is taken out before and put back after, one tensor each: torch updates it in place.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from grpo_bench.contract import PluginError

from .cache_note import STACK
from .sending import Exporter

FOLDER, NOTE = "megatron", "trainer.json"
_FORM = "fully_reshardable"
_LAYOUT = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
           "expert_model_parallel_size", "expert_tensor_parallel_size", "context_parallel_size")


def save(policy: Any, exporter: Exporter, folder: Path, what: Literal["full", "weights"]) -> None:
    """Write into an existing folder that all ranks see; called on all ranks."""
    exporter.save_hf(folder)
    if what == "full":
        step = steps_of(policy.optimizer)
        if dist.get_rank() == 0:
            (folder / FOLDER).mkdir()
            note = {"step": step, "layout": layout_of(policy.provider), "versions": versions()}
            (folder / NOTE).write_text(json.dumps(note, indent=2) + "\n", "utf-8")
        dist.barrier()
        write(folder / FOLDER, policy.chunks, policy.optimizer, step)


def load(policy: Any, folder: Path) -> int:
    """Take weights and Adam's state; called on all ranks. Returns how many updates there were."""
    note = _note(folder)
    try:
        read(folder / FOLDER, policy.chunks, policy.optimizer, note["step"])
    except Exception as error:
        here, there = layout_of(policy.provider), note["layout"]
        if here == there:
            raise
        raise PluginError(f"{folder} was written with {words(there)} and cannot be read with {words(here)}: {error}",
                          hint="resume with the layout it was written with") from error
    return note["step"]


def layout_of(provider: Any) -> dict[str, int]:
    """What decides which rank holds what, by Megatron's names."""
    return {"ranks": dist.get_world_size(), **{name: getattr(provider, name) or 1 for name in _LAYOUT}}


def words(layout: Mapping[str, int]) -> str:
    """A layout in words, as far as it is not that of one rank."""
    return ", ".join(f"{name} {size}" for name, size in layout.items() if size > 1 or name == "ranks")


def steps_of(optimizer: Any) -> int:
    """How many updates an optimizer has made."""
    counts = [state["step"] for one in _optimizers(optimizer) for state in one.optimizer.state.values()
              if "step" in state]
    counts += [group["step"] for one in _optimizers(optimizer) for group in one.optimizer.param_groups
               if "step" in group]
    return int(max(counts, default=0))


def versions() -> dict[str, str]:
    """What converted or wrote a checkpoint."""
    from importlib.metadata import version

    return {name: version(name) for name in STACK}


def write(folder: Path, chunks: Sequence[Any], optimizer: Any = None, step: int = 0) -> None:
    """Weights, and Adam's state where there is one, into an empty folder; called on all ranks."""
    from megatron.core import dist_checkpointing

    _prepare()
    weights = _weights(chunks)
    state: dict[str, Any] = {"weights": weights}
    optimizers = _optimizers(optimizer)
    for one in optimizers:
        if not one.optimizer.state:
            _begin(one, step)
    if optimizers:
        state["optimizer"] = {str(number): _sharded(one, weights, loading=False)
                              for number, one in enumerate(optimizers)}
    dist_checkpointing.save(state, str(folder))


@torch.no_grad()
def read(folder: Path, chunks: Sequence[Any], optimizer: Any = None, step: int = 0) -> None:
    """The inverse of :func:`write`, in place; called on all ranks. Without ``optimizer`` the weights alone."""
    from megatron.core import dist_checkpointing

    _prepare()
    weights = _weights(chunks)
    state: dict[str, Any] = {"weights": weights}
    optimizers = _optimizers(optimizer)
    for one in optimizers:
        _begin(one, step)
        _take_steps(one)
    if optimizers:
        state["optimizer"] = {str(number): _sharded(one, weights, loading=True)
                              for number, one in enumerate(optimizers)}
    try:
        loaded = dist_checkpointing.load(state, str(folder))
    except CheckpointException as error:  # to Python no Exception
        why = "; ".join(f"{type(cause).__name__}: {cause}".splitlines()[0] for cause, _ in error.failures.values())
        raise PluginError(f"{folder} cannot be read: {why or error}", hint="if it is damaged, remove it") from error
    for number, chunk in enumerate(_unwrapped(chunks)):
        chunk.load_state_dict(loaded["weights"][str(number)])
    for number, one in enumerate(optimizers):
        one.load_parameter_state_from_fully_reshardable(loaded["optimizer"][str(number)])
        _set_steps(one, step)


def _weights(chunks: Sequence[Any]) -> dict[str, Any]:
    return {str(number): chunk.sharded_state_dict() for number, chunk in enumerate(_unwrapped(chunks))}


def _unwrapped(chunks: Sequence[Any]) -> list[Any]:
    from megatron.core.utils import unwrap_model

    return unwrap_model(list(chunks))


def _sharded(optimizer: Any, weights: Mapping[str, Any], *, loading: bool) -> Any:
    return optimizer.sharded_param_state_fully_reshardable(weights, loading,
                                                           {"distrib_optim_sharding_type": _FORM})


def _optimizers(optimizer: Any) -> list[Any]:
    """The distributed optimizers of a chain that have parameters on this rank; none of none."""
    if optimizer is None:
        return []
    return [one for one in getattr(optimizer, "chained_optimizers", [optimizer]) if not one.is_stub_optimizer]


def _begin(optimizer: Any, step: int) -> None:
    """Give parameters that have none yet a state to be read or written."""
    optimizer.init_state_fn(optimizer.optimizer, optimizer.config)
    _set_steps(optimizer, step)


def _take_steps(optimizer: Any) -> None:
    for state in optimizer.optimizer.state.values():
        state.pop("step", None)


def _set_steps(optimizer: Any, step: int) -> None:
    if isinstance(optimizer.optimizer, torch.optim.Adam):
        for state in optimizer.optimizer.state.values():
            state["step"] = torch.tensor(float(step))
    else:
        for group in optimizer.optimizer.param_groups:
            group["step"] = step


def _prepare() -> None:
    """Megatron hands results of writing threads over through a queue of a manager process; one of this process does."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    if filesystem_async._results_queue is None:
        filesystem_async._results_queue = queue.Queue()


def _note(folder: Path) -> Mapping[str, Any]:
    try:
        return json.loads((folder / NOTE).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise PluginError(f"{folder} is no checkpoint of this trainer: {error}",
                          hint="load takes a folder that save wrote with 'full'") from None
