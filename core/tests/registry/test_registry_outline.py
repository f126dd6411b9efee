"""What a plan knows of a policy that is not there, from a file beside the profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.contract import RegistryError
from grpo_bench.registry import make_plan, resolve, survey
from grpo_bench.registry.outline import read_outline

CONFIG = {"architectures": ["Small"], "text_config": {
    "num_hidden_layers": 3, "max_position_embeddings": 256, "layer_types": ["wide", "narrow", "wide"]}}
TENSORS = {"once": {"head": [7, 4]}, "layers": {"l.*.norm": [4]}, "wide": {"l.*.up.*": [8, 4]},
           "narrow": {"l.*.up": [2, 4]}}
AWAY = ("policy.checkpoint=away", "policy.config=outline.json")


def write(folder: Path, config: Any = CONFIG, tensors: Any = TENSORS) -> Path:
    file = folder / "outline.json"
    file.write_text(json.dumps({"config": config, "tensors": tensors}))
    return file


def test_layers_are_spelt_out_by_their_kind(tmp_path: Path) -> None:
    outline = read_outline(write(tmp_path))
    assert outline.config == CONFIG
    assert outline.tensors == {
        "head": (7, 4), "l.0.norm": (4,), "l.0.up.0": (8, 4), "l.1.norm": (4,), "l.1.up": (2, 4), "l.2.norm": (4,),
        "l.2.up.2": (8, 4)}


def test_without_kinds_all_layers_are_alike(tmp_path: Path) -> None:
    outline = read_outline(write(tmp_path, {"num_hidden_layers": 2}, {"layers": {"l.*": [3]}}))
    assert outline.tensors == {"l.0": (3,), "l.1": (3,)}


@pytest.mark.parametrize(("config", "tensors", "words"), [
    ({}, {}, "config gives no num_hidden_layers"),
    ({"num_hidden_layers": 2, "layer_types": ["a"]}, {}, "config.layer_types are 1 and num_hidden_layers 2"),
    ({"num_hidden_layers": 1}, {"wide": {}}, "tensors.wide: no layer is of that kind"),
    ({"num_hidden_layers": 1}, {"once": {"head": [0]}}, "tensors.once.head.0: Input should be greater than"),
    ([], {}, "config: Input should be an object"),
])
def test_a_file_that_says_too_little_is_refused_in_the_profiles_terms(bench, config: Any, tensors: Any,
                                                                      words: str) -> None:
    write(bench.folder, config, tensors)
    with pytest.raises(RegistryError, match=rf"--set policy.config: .*outline.json: {words}"):
        survey(resolve("base", overrides=AWAY))


def test_a_plan_goes_by_it_only_where_the_checkpoint_is_not_there(bench) -> None:
    write(bench.folder)
    away = survey(resolve("base", overrides=AWAY)).checkpoint
    assert (away.vocab_size, away.config, len(away.tensors)) == (0, CONFIG, 7)
    here = make_plan(resolve("base", overrides=AWAY[1:]))
    assert (here.checkpoint.vocab_size, here.checkpoint.tensors) == (77, {})
    assert here.resolved["policy"]["config"] == str(bench.folder / "outline.json")


def test_its_context_is_checked_like_the_checkpoints_own(bench) -> None:
    write(bench.folder)
    with pytest.raises(RegistryError, match=r"300 tokens are more than the 256 that outline.json can take"):
        survey(resolve("base", overrides=(*AWAY, "policy.max_context=300")))


def test_a_file_that_is_not_there_is_named(bench) -> None:
    with pytest.raises(RegistryError, match=r"nowhere\.json: No such file"):
        survey(resolve("base", overrides=("policy.checkpoint=away", "policy.config=package:grpo_bench/nowhere.json")))
