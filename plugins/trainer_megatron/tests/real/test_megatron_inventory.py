"""The inventory of the real environment knows every field that the settings can set."""

from __future__ import annotations

import pytest

from grpo_bench.registry.envs import locate
from grpo_bench_trainer_megatron import MegatronTrainerConfig, plugin
from grpo_bench_trainer_megatron.checks import FIXED, OWN
from grpo_bench_trainer_megatron.fields import Features, ddp_fields, model_fields, optimizer_fields

pytestmark = pytest.mark.real("megatron")


def test_settings_are_fields_of_the_installed_megatron() -> None:
    assert plugin.env is not None
    found = locate(plugin.env).inventory
    assert {"python", "megatron-core", "megatron-bridge", "torch", "transformers"} <= found["versions"].keys()
    assert {"Qwen3MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3_5MoeForCausalLM"} <= set(found["architectures"])
    assert found["fields"]["optimizer"]["adam_beta2"] == {"type": "float", "default": 0.999}
    for settings in ({"dispatcher": "flex", "recompute": "full"}, {"recompute": "selective"}):
        config = MegatronTrainerConfig.model_validate(settings)
        assert model_fields(config, Features()).keys() <= found["fields"]["model"].keys()
        assert optimizer_fields(config).keys() <= found["fields"]["optimizer"].keys()
        assert ddp_fields(config).keys() <= found["fields"]["ddp"].keys()
    known = set().union(*found["fields"].values())
    assert OWN.keys() | FIXED.keys() <= known
