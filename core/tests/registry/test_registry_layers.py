"""Layers, extends, --set, and what becomes of another plugin's keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_bench.contract import RegistryError
from grpo_bench.registry import resolve
from grpo_bench.registry.overrides import parse_overrides
from grpo_bench.registry.places import packaged_file
from grpo_bench.registry.source import read_sources


def test_later_layers_win_and_each_value_knows_its_place(bench) -> None:
    bench.write("[profiles.base.grpo]\nmax_steps = 99\nprompts_per_step = 3\n", "config/grpo-bench/registry.toml")
    resolved = resolve("base", overrides=["grpo.prompts_per_step=7"])
    grpo = resolved.profile.grpo
    assert (grpo.prompts_per_step, grpo.max_steps) == (7, 10)
    origins = {item.key: item.origin for item in resolved.explained}
    assert origins["grpo.prompts_per_step"].layer == "--set"
    assert (origins["grpo.max_steps"].layer, origins["grpo.max_steps"].line) == ("local", bench.line("max_steps"))
    assert origins["grpo.loss.clip_min"].layer == "default"


def test_the_users_layer_lies_over_the_packaged_one(workshop) -> None:
    file = workshop.write("[profiles.laptop.grpo]\nmax_steps = 3\n", "config/grpo-bench/registry.toml")
    resolved = resolve("laptop")
    assert resolved.profile.grpo.max_steps == 3
    origin = resolved.merged.origin(("grpo", "max_steps"))
    assert (origin.layer, origin.file, origin.line) == ("user", file, 2)
    assert resolved.merged.origin(("trainer", "use")).file == packaged_file()


def test_a_named_registry_takes_the_place_of_the_working_directorys(bench) -> None:
    other = bench.write("[profiles.other]\nextends = 'laptop'\n", "elsewhere/mine.toml")
    assert resolve("other", registry=other).name == "other"
    with pytest.raises(RegistryError, match="base: no such profile"):
        resolve("base", registry=other)
    with pytest.raises(RegistryError, match="No such file"):
        resolve("base", registry=Path("missing.toml"))


def test_the_packaged_file_named_as_local_is_one_layer() -> None:
    assert [source.layer for source in read_sources(cwd=packaged_file().parent)] == ["packaged"]


def test_two_lines_swap_a_part_and_drop_the_other_plugins_keys(bench) -> None:
    bench.write(bench.folder.joinpath("registry.toml").read_text()
                + "[profiles.my]\nextends = 'base'\n[profiles.my.trainer]\nuse = 'quick'\nspeed = 2\n")
    resolved = resolve("my")
    assert (resolved.profile.trainer.use, resolved.profile.trainer.options) == ("quick", {"speed": 2})
    (dropped,) = resolved.dropped
    assert (dropped.section, dropped.keys) == ("trainer", ("learning_rate",))
    assert (dropped.plugin, dropped.chosen) == ("steady", "quick")
    assert dropped.origin.line == bench.line("use = 'quick'")


def test_naming_the_same_plugin_again_keeps_its_keys(bench) -> None:
    resolved = resolve("base", overrides=["trainer.use=steady", "trainer.warmup=3"])
    assert resolved.profile.trainer.options == {"learning_rate": 0.5, "warmup": 3}
    assert resolved.dropped == ()


def test_all_overrides_are_one_layer_whatever_their_order(bench) -> None:
    resolved = resolve("base", overrides=["trainer.speed=2", "trainer.use=quick"])
    assert resolved.profile.trainer.options == {"speed": 2}


def test_validation_samples_as_training_does_unless_told_otherwise(bench) -> None:
    resolved = resolve("base", overrides=["sampling.temperature=0.7", "validation.sampling.top_p=0.9"])
    sampling = resolved.profile.validation.sampling
    assert sampling is not None
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.7, 0.9, 16)
    notes = {item.key: str(item.origin) for item in resolved.explained}
    assert notes["validation.sampling.max_tokens"].endswith("(as in training)")


@pytest.mark.parametrize(("text", "message"), [
    ("[profiles.a]\nextends='a'\n", r"profiles.a.extends: goes in a circle: a -> a .*registry.toml:2"),
    ("[profiles.a]\nextends='b'\n[profiles.b]\nextends='a'\n", r"profiles.b.extends: goes in a circle: a -> b -> a"),
    ("[profiles.a]\nextends='labtop'\n", r"no such profile 'labtop'; did you mean 'laptop'\?"),
    ("[profiles.a]\nextends=['laptop']\n", r"profiles.a.extends: should be a profile's name, got \['laptop'\]"),
])
def test_extends_that_leads_nowhere(workshop, text: str, message: str) -> None:
    workshop.write(text)
    with pytest.raises(RegistryError, match=message):
        resolve("a")


@pytest.mark.parametrize(("text", "message"), [
    ("schema = 2\n", "schema: this file is of schema 2, this grpo-bench reads up to 1"),
    ("schema = true\n", "schema: should be 1, got True"),
    ("\nprofile = 1\n", r"profile: unknown key; did you mean 'profiles'\? .*:2\]"),
    ("profiles = 3\n", "profiles: should be a table of profiles"),
    ("[profiles]\nx = 1\n", r"profiles.x: should be a table, got 1 .*:2\]"),
    ("[profiles.'../up']\n", "a profile's name is made of letters"),
    ("[profiles.a]\n\nseed = nan\n", r"profiles.a.seed: should be a finite number, got nan .*:3\]"),
    ("[profiles.a]\nb = [1, -inf]\n", r"profiles.a.b\[1\]: should be a finite number, got -inf"),
    ("[profiles.a]\nseed = 99999999999999999999\n", "profiles.a.seed: should be an integer of at most 64 bits"),
    ("[profiles.a]\nseed = 2020-01-01\n", "profiles.a.seed: dates and times are no values here"),
    ("[profiles.a]\nx = " + "[" * 30 + "]" * 30, "nested deeper than 16 levels"),
    ("x = " + "[" * 3000 + "]" * 3000, "nested too deeply"),
    ("[profiles.a\n", r"registry.toml:1: no valid TOML"),
    ("[profiles.a]\nx = 1\nx = 2\n", r"registry.toml:3: no valid TOML: Cannot overwrite a value"),
])
def test_files_that_cannot_be_a_registry(workshop, text: str, message: str) -> None:
    workshop.write(text)
    with pytest.raises(RegistryError, match=message):
        resolve("a")


def test_binary_junk_and_folders_are_no_registry(workshop) -> None:
    file = workshop.folder / "junk.toml"
    file.write_bytes(b"# fine\n\xff\x00\x80")
    with pytest.raises(RegistryError, match=r"junk.toml:2: no UTF-8 text"):
        resolve("laptop", registry=file)
    with pytest.raises(RegistryError, match="cannot be read: Is a directory"):
        resolve("laptop", registry=workshop.folder)


@pytest.mark.parametrize(("argument", "value"), [
    ("a.b=1", {"a": {"b": 1}}), ("a.b=0.5", {"a": {"b": 0.5}}), ("a=true", {"a": True}), ("a=torch", {"a": "torch"}),
    ("a='1'", {"a": "1"}), ("a=", {"a": ""}), ("a=[1, 2]", {"a": [1, 2]}), ("a={b=1}", {"a": {"b": 1}}),
    ("a=x=y", {"a": "x=y"}), ("a=1\nb=2", {"a": "1\nb=2"}), ("a=package:m/f", {"a": "package:m/f"}),
])
def test_override_values(argument: str, value: object) -> None:
    assert parse_overrides([argument]) == value


@pytest.mark.parametrize(("argument", "message"), [
    ("a", "should have the form key=value"), ("=1", "should have the form"), ("a b=1", "should have the form"),
    ("a\nb=1", "should have the form"), ("a=nan", "--set a: should be a finite number"),
    ("a.[=1", "should have the form"),
    ("profiles.x.seed=1", "'profiles' cannot be set here"), ("extends=laptop", "'extends' cannot be set here"),
    ("a=\udc80", "--set a: should be UTF-8 text"), ("a=" + "[" * 40 + "]" * 40, "nested deeper"),
])
def test_overrides_that_make_no_sense(argument: str, message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        parse_overrides([argument])
