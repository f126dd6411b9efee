"""What could not run, found before anything starts. A check raises a PlanError: what, and what to do. What only the
machine or its libraries lack is Missing, all of it at once."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from grpo_bench.contract import PlanError, Site

from .config import MegatronTrainerConfig
from .fields import DTYPES
from .memory import Memory, size
from .model import Shape

OWN = {
    "tensor_model_parallel_size": "tensor_parallel", "pipeline_model_parallel_size": "pipeline_parallel",
    "virtual_pipeline_model_parallel_size": "virtual_pipeline", "context_parallel_size": "context_parallel",
    "expert_model_parallel_size": "expert_parallel", "expert_tensor_parallel_size": "expert_tensor_parallel",
    "sequence_parallel": "sequence_parallel", "params_dtype": "precision", "bf16": "precision",
    "moe_token_dispatcher_type": "dispatcher", "moe_grouped_gemm": "grouped_gemm", "lr": "learning_rate",
    "adam_beta1": "betas", "adam_beta2": "betas", "adam_eps": "eps", "weight_decay": "weight_decay",
    "clip_grad": "clip_norm", "use_precision_aware_optimizer": "precision_aware_optimizer",
    "deterministic_mode": "deterministic", "recompute_granularity": "recompute",
}
"""Fields that have a key of their own."""
FIXED = {
    "average_in_collective": "sums of gradients stay sums: the loss is divided by the counts of the whole batch",
    "use_distributed_optimizer": "checkpoints are those of the distributed optimizer",
    "optimizer": "Adam is the only optimizer here", "min_lr": "the learning rate is constant",
    "calculate_per_token_loss": "the loss is divided by the counts of the whole batch",
    "optimizer_cpu_offload": "checkpoints hold Adam's state as the ranks' devices have it",
    "use_megatron_fsdp": "weights are exported from Megatron's own layers",
}
"""Fields that this trainer needs as they are, and why."""
POLICY = frozenset({
    "activation_func", "add_bias_linear", "add_qkv_bias", "attention_output_gate", "experimental_attention_variant",
    "ffn_hidden_size", "gated_linear_unit", "hidden_size", "kv_channels", "layernorm_epsilon",
    "layernorm_zero_centered_gamma", "linear_attention_freq", "linear_conv_kernel_dim", "linear_key_head_dim",
    "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim", "make_vocab_size_divisible_by",
    "moe_ffn_hidden_size", "moe_layer_freq", "moe_router_pre_softmax", "moe_router_score_function",
    "moe_router_topk", "moe_shared_expert_intermediate_size", "mtp_num_layers", "normalization",
    "num_attention_heads", "num_layers", "num_moe_experts", "num_query_groups", "position_embedding_type",
    "qk_layernorm", "rotary_base", "rotary_percent", "share_embeddings_and_output_weights", "vocab_size",
})
"""Fields that the policy's checkpoint decides."""
_DROPPED = ("attention_dropout", "hidden_dropout")
_BRINGS = {"hybridep": "deep_ep", "deepep": "deep_ep"}


def check_fields(config: MegatronTrainerConfig, inventory: Mapping[str, Any]) -> None:
    """Every field of the tables is one of Megatron's, and has no key of its own."""
    version = inventory["versions"].get("megatron-core", "?")
    for table in ("model", "optimizer", "ddp"):
        known = inventory["fields"][table]
        for name in getattr(config, table):
            if name in OWN:
                raise PlanError(f"trainer.{table}.{name} is set by trainer.{OWN[name]}", hint="leave it out here")
            if name in FIXED:
                raise PlanError(f"trainer.{table}.{name} cannot be set: {FIXED[name]}", hint="leave it out")
            if table == "model" and name in POLICY:
                raise PlanError(f"trainer.model.{name} cannot be set: the policy's checkpoint decides it",
                                hint="leave it out; see policy.checkpoint")
            if name in _DROPPED:
                raise PlanError(f"trainer.{table}.{name} cannot be set: what is trained is the policy that was "
                                "sampled, without dropout", hint="leave it out")
            if name not in known:
                near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
                raise PlanError(f"trainer.{table}: Megatron {version} has no field {name!r}",
                                hint=f"nearest: {', '.join(near)}" if near else f"see Megatron's own list for {table}")
            if wanted := _mismatch(getattr(config, table)[name], known[name].get("type", "")):
                raise PlanError(f"trainer.{table}.{name} should be {wanted}, got {getattr(config, table)[name]!r}")


def _mismatch(value: Any, annotation: str) -> str:
    """What the value should be, by the text of its field's annotation, where that is plain; empty if it fits."""
    plain = annotation.removeprefix("Optional[").removesuffix("]") if annotation.startswith("Optional[") else annotation
    if plain.startswith("Literal["):
        try:
            choices = ast.literal_eval(f"({plain.removeprefix('Literal[').removesuffix(']')},)")
        except (SyntaxError, ValueError):
            return ""
        return "" if value in choices else f"one of {', '.join(map(repr, choices))}"
    if plain == "torch.dtype":
        return "" if value in DTYPES else f"one of {', '.join(DTYPES)}"
    kinds = {"bool": (bool,), "int": (int,), "float": (int, float), "str": (str,)}.get(plain)
    if kinds is None or (isinstance(value, kinds) and (plain == "bool" or not isinstance(value, bool))):
        return ""
    return f"of type {plain}"


def check_model(shape: Shape, inventory: Mapping[str, Any]) -> None:
    if shape.architecture not in inventory["architectures"]:
        version = inventory["versions"].get("megatron-bridge", "?")
        raise PlanError(f"Megatron Bridge {version} cannot convert a policy of architecture {shape.architecture}",
                        hint="see policy.checkpoint")


def check_layout(config: MegatronTrainerConfig, shape: Shape) -> None:
    """Ranks, heads, layers and experts can be divided as the layout wants."""
    tp, pp, etp = config.tensor_parallel, config.pipeline_parallel, config.expert_tensor_parallel
    dense, experts = tp * pp * config.context_parallel, config.expert_parallel * etp * pp
    for ranks, words in ((dense, "tensor x pipeline x context parallel"),
                         (experts, "expert x expert tensor x pipeline parallel")):
        _divides(config.workers, ranks, f"trainer.workers = {config.workers}", words,
                 f"give a multiple of {config.model_ranks}, or leave workers out")
    _divides(shape.heads, tp, f"the policy's {shape.heads} attention heads", "tensor_parallel")
    if shape.kv_heads % tp and tp % shape.kv_heads:
        raise PlanError(f"the policy's {shape.kv_heads} key-value heads are neither a multiple nor a divisor of "
                        f"tensor_parallel = {tp}", hint="choose another trainer.tensor_parallel")
    for heads in shape.delta_heads:
        _divides(heads, tp, f"the policy's {heads} heads of linear attention", "tensor_parallel")
    _divides(shape.layers, pp * config.virtual_pipeline, f"the policy's {shape.layers} layers",
             "pipeline_parallel x virtual_pipeline")
    if shape.experts:
        _divides(shape.experts, config.expert_parallel, f"the policy's {shape.experts} experts", "expert_parallel")
        _divides(shape.expert_size, etp, f"the width {shape.expert_size} of an expert", "expert_tensor_parallel")
        if tp > 1 and not config.sequence_parallel_on:
            raise PlanError(f"tensor_parallel = {tp} of a policy with experts needs sequence parallelism",
                            hint="set trainer.sequence_parallel = \"auto\"")
    elif config.expert_parallel > 1 or etp > 1:
        raise PlanError("expert_parallel and expert_tensor_parallel do nothing with a policy that has no experts",
                        hint="leave them out")
    if config.sequence_parallel_on and tp == 1:
        raise PlanError("sequence_parallel does nothing with tensor_parallel = 1", hint="leave it out")
    if config.dispatcher == "allgather" and pp > 1:
        raise PlanError("dispatcher \"allgather\" cannot pass sequences of varying length between pipeline stages",
                        hint="set trainer.dispatcher = \"alltoall\"")


def lacking(config: MegatronTrainerConfig, shape: Shape | None, site: Site) -> Iterator[str]:
    """What is asked of GPUs and of libraries and is not there. ``shape`` None: the policy is not known. Without an
    inventory of the ranks' environment only GPUs are counted, those of the hosts that the hardware placed them on."""
    inventory, hosts = site.inventory, max(1, len(set(site.placement.nodes)))
    device = inventory.get("device")
    cuda = device is None or device["type"] == "cuda"
    gpus = _planned_gpus(site) or (len(device["names"]) if device and cuda else 0 if device else
                                   site.machine.get("gpus", 0))
    if ((device and cuda) or _asks_for_gpus(config)) and config.workers > gpus * hosts:
        yield _too_few(config.workers, gpus, hosts)
    if inventory:
        yield from _engine_lacks(config, inventory["features"], cuda)
        yield from _kernels_lack(config, shape, inventory["features"], cuda)


def _planned_gpus(site: Site) -> int:
    """GPUs of one of the hosts that the hardware placed the ranks on; 0 where they are on this one."""
    return site.machine.get("gpus", 0) if site.placement.nodes else 0


def _gpu_settings(config: MegatronTrainerConfig) -> list[str]:
    """Settings that need Transformer Engine on a GPU."""
    return [name for name, asked in (
        ("transformer_engine", config.transformer_engine is True), ("attention", config.attention != "auto"),
        ("grouped_gemm", config.grouped_gemm is True), ("fusions", config.fusions is True),
        ("precision_aware_optimizer", config.precision_aware_optimizer),
        ("context_parallel", config.context_parallel > 1)) if asked]


def _asks_for_gpus(config: MegatronTrainerConfig) -> bool:
    return bool(_gpu_settings(config)) or config.virtual_pipeline > 1 or config.dispatcher == "flex"


def _too_few(ranks: int, gpus: int, nodes: int) -> str:
    return (f"{ranks} rank{'s' * (ranks > 1)} need{'s' * (ranks == 1)} a GPU each; here {nodes} "
            f"machine{'s have' if nodes > 1 else ' has'} {gpus or 'none'} (run where they are, or set fewer "
            "trainer.workers)")


def _engine_lacks(config: MegatronTrainerConfig, features: Mapping[str, bool], cuda: bool) -> Iterator[str]:
    wanted = _gpu_settings(config)
    if wanted and not (cuda and features["transformer_engine"]):
        names = ", ".join(f"trainer.{name}" for name in wanted)
        yield (f"{names} need{'s' * (len(wanted) == 1)} Transformer Engine on a GPU, but the environment has no "
               f"{'Transformer Engine' if cuda else 'CUDA device'} (leave it out, or name an environment that has it "
               "in trainer.env)")
    elif config.fusions is True and not features["apex"]:
        yield ("trainer.fusions = true sums gradients by a kernel of Apex, and the environment has no module "
               "fused_weight_gradient_mlp_cuda (set trainer.fusions = \"auto\", which does without it)")


def _kernels_lack(config: MegatronTrainerConfig, shape: Shape | None, features: Mapping[str, bool],
                  cuda: bool) -> Iterator[str]:
    if config.virtual_pipeline > 1 and not cuda:
        yield ("trainer.virtual_pipeline needs GPUs: over gloo its stages wait for each other for ever (set "
               "trainer.virtual_pipeline = 1)")
    if config.dispatcher == "flex" and not (cuda and features[_BRINGS[config.flex_backend]]):
        lacks = f"no module {_BRINGS[config.flex_backend]}" if cuda else "no CUDA device"
        yield (f"trainer.dispatcher = \"flex\" with {config.flex_backend} needs it on a GPU, but the environment has "
               f"{lacks} (set trainer.dispatcher = \"alltoall\")")
    if shape and shape.delta_net and config.packing and not (cuda and features["flash_linear_attention"]):
        lacks = "flash-linear-attention" if cuda else "a CUDA device"
        yield (f"rows of a policy with a gated delta net can be packed only by kernels that need {lacks} (set "
               "trainer.packing = false)")


def check_waits(config: MegatronTrainerConfig, site: Site) -> None:
    """Ranks wait for rank 0 while the generator takes weights: NCCL must not give up before the refit does."""
    if config.workers > 1 and config.collective_s <= site.limits.refit_s:
        raise PlanError(f"trainer.collective_s = {config.collective_s:g} is not above limits.refit_s = "
                        f"{site.limits.refit_s:g}: ranks would give up on a transfer that is under way",
                        hint="raise trainer.collective_s or lower limits.refit_s")


def memory_lacking(config: MegatronTrainerConfig, memory: Memory, site: Site) -> Iterator[str]:
    """Where a rank does not fit its GPU, on a CPU all ranks of a machine together; PlanError where the GPU is the one
    that the hardware plans with, since it fits nowhere then."""
    planned = site.machine.get("gpu_memory_bytes", 0) if site.placement.nodes else 0
    device = site.inventory.get("device") or {"type": "cuda", "memory": ()}
    room = planned or min(device["memory"], default=None)
    if room is None:
        return
    on_gpu, hosts = bool(planned) or device["type"] == "cuda", max(1, len(set(site.placement.nodes)))
    need = memory.total if on_gpu else memory.total * -(-config.workers // hosts)
    if need <= room:
        return
    parts = ", ".join(f"{name} {count}" for name, count in memory.shown().items() if name != "at most")
    short = (f"a {'rank' if on_gpu else 'machine'} needs {size(need)} and has {size(room)}: {parts}"
             f"{'' if on_gpu else ' for each rank'}")
    instead = "spread the policy over more ranks, set trainer.recompute, or lower trainer.batch_tokens"
    if planned:
        raise PlanError(short, hint=instead)
    yield f"{short} ({instead})"


def _divides(number: int, by: int, what: str, words: str, hint: str = "") -> None:
    if number % by:
        raise PlanError(f"{what} cannot be divided by {words} = {by}",
                        hint=hint or f"choose another trainer.{words.split(' ')[0]}")
