"""What a wrong value in a profile is called, and where."""

from __future__ import annotations

import re

import pytest

from grpo_bench.contract import RegistryError, Role
from grpo_bench.registry import make_plan, resolve
from grpo_bench.registry.installed import ROLES


@pytest.mark.parametrize(("old", "new", "message"), [
    ("max_steps = 10", "max_steps = true", "profiles.base.grpo.max_steps: input should be a valid integer, got true"),
    ("max_steps = 10", "max_steps = 1.5", "profiles.base.grpo.max_steps: .*, got 1.5"),
    ("max_steps = 10", "max_steps = '10'", 'profiles.base.grpo.max_steps: .*, got "10"'),
    ("max_steps = 10", "max_step = 10", "profiles.base.grpo.max_step: unknown key; did you mean 'max_steps'\\?"),
    ("max_tokens = 16", "temperature = false",
     "profiles.base.sampling.temperature: input should be a valid number, got false"),
    ("generations_per_prompt = 4", "generations_per_prompt = 1",
     "profiles.base.grpo.generations_per_prompt: generations_per_prompt = 1 leaves no"),
    ("prompts_per_step = 2", "prompts_per_step = 2\nadvantage.clamp = [2, -2]",
     r"profiles.base.grpo.advantage.*: clamp goes from the lowest to the highest advantage, not \[2.0, -2.0\]"),
    ("prompts_per_step = 2", "prompts_per_step = 2\nloss.importance_correction = true\n"
     "loss.truncation = {kind = 'tis', min = 3, max = 2}", "profiles.base.grpo.loss.*: min = 3 is above max = 2"),
    ("prompts_per_step = 2", "prompts_per_step = 2\nloss.reduktion = 'token'",
     "profiles.base.grpo.loss.reduktion: unknown key; did you mean 'reduction'"),
    ('description = "for tests"', "validation = {k = 1, metric = 'pass_k', target = 0.5}",
     "profiles.base.validation.*: metric 'pass_k' is not reported with k = 1; available: accuracy"),
    ('description = "for tests"', "validation = {metric = 'recall', target = 0.5}",
     "metric 'recall' is not reported with k = 4; available: accuracy, pass_k, pass_hat_k, pass_1"),
    ('description = "for tests"', "observers = [{}]", r"profiles.base.observers\[0\].use: required, but not set"),
    ('description = "for tests"', "fabrik = {}", "profiles.base.fabrik: unknown key; did you mean 'fabric'"),
    ('description = "for tests"', "seed = -1", "profiles.base.seed: .*greater than or equal to 0, got -1"),
])
def test_one_wrong_value(bench, old: str, new: str, message: str) -> None:
    text = bench.folder.joinpath("registry.toml").read_text()
    bench.write(text.replace(old, new))
    with pytest.raises(RegistryError, match=message) as caught:
        resolve("base")
    assert re.search(r"\[.*registry.toml:\d+\]", str(caught.value))


def test_the_line_is_the_values_own(bench) -> None:
    text = bench.folder.joinpath("registry.toml").read_text()
    bench.write(text.replace("max_steps = 10", "max_steps = 0"))
    with pytest.raises(RegistryError, match=f"registry.toml:{bench.line('max_steps')}\\]"):
        resolve("base")


def test_a_value_is_named_as_the_user_typed_it(bench) -> None:
    text = bench.folder.joinpath("registry.toml").read_text()
    bench.write(text + "[profiles.my]\nextends = 'base'\ngrpo.max_steps = 0\n")
    with pytest.raises(RegistryError, match=r"^profiles\.my\.grpo\.max_steps: "):
        resolve("my")
    with pytest.raises(RegistryError, match=r"^--set grpo\.max_steps: "):
        resolve("base", overrides=["grpo.max_steps=0"])


def test_of_values_that_do_not_fit_together_the_one_set_last_is_named(bench) -> None:
    text = bench.folder.joinpath("registry.toml").read_text()
    bench.write(text + "[profiles.my]\nextends = 'base'\ngrpo.generations_per_prompt = 1\n")
    line = bench.folder.joinpath("registry.toml").read_text().count("\n")
    with pytest.raises(RegistryError, match=rf"^profiles\.my\.grpo\.generations_per_prompt: .*registry\.toml:{line}\]"):
        resolve("my")
    with pytest.raises(RegistryError, match=r"^--set validation\.k: metric 'pass_k' is not reported with k = 1"):
        resolve("base", overrides=["validation.metric=pass_k", "validation.target=0.5", "validation.k=1",
                                   "validation.max_tasks=2"])


def test_all_that_is_wrong_is_said_at_once(bench) -> None:
    with pytest.raises(RegistryError) as caught:
        resolve("base", overrides=["grpo.max_steps=0", "limits.queue_s=x"])
    assert len(str(caught.value).splitlines()) == 2


def test_off_means_none_where_none_may_be(bench) -> None:
    off = [f"{key}=off" for key in ("grpo.masks.sequence_error_max", "grpo.loss.kl.input_clamp", "validation.max_tasks",
                                    "validation.metric", "validation.target", "refit.probe_bound", "ruleset")]
    profile = resolve("base", overrides=["validation.metric=pass_k", "validation.target=0.5", *off]).profile
    assert profile.grpo.masks.sequence_error_max is profile.grpo.loss.kl.input_clamp is None
    assert profile.validation.max_tasks is profile.validation.metric is profile.validation.target is None
    assert profile.refit.probe_bound is profile.ruleset is None


@pytest.mark.parametrize("key", ["grpo.max_steps", "schedule.mode", "grpo.masks", "limits.queue_s"])
def test_off_is_refused_where_nothing_can_be_off(bench, key: str) -> None:
    with pytest.raises(RegistryError, match=f'--set {key}: .*got "off"'):
        resolve("base", overrides=[f"{key}=off"])


def test_a_missing_role_is_required(workshop) -> None:
    workshop.write("[profiles.bare]\n")
    with pytest.raises(RegistryError, match=r"profiles.bare.trainer: required, but not set .*registry.toml:1\]"):
        resolve("bare")


@pytest.mark.parametrize(("override", "message"), [
    ("trainer.learning_rate=true", "--set trainer.learning_rate: input should be a valid number, got true"),
    ("trainer.learning_rate=-1", "--set trainer.learning_rate: input should be greater than 0, got -1"),
    ("trainer.warm_up=1",
     r"--set trainer.warm_up: unknown key; did you mean 'warmup'\? \(there is: bound, learning_rate"),
    ("trainer.names=[1]", r"--set trainer.names\[0\]: input should be a valid string, got 1"),
])
def test_a_plugins_own_model_checks_its_keys(bench, override: str, message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        make_plan(resolve("base", overrides=[override]))


def test_off_means_none_in_a_plugins_own_keys_unless_it_is_one_of_their_values(bench) -> None:
    plan = make_plan(resolve("base", overrides=["trainer.bound=off", "trainer.mode=off"]))
    assert (plan.parts[Role.TRAINER].config.bound, plan.parts[Role.TRAINER].config.mode) == (None, "off")


def test_lists_become_what_the_plugins_model_wants(bench) -> None:
    plan = make_plan(resolve("base", overrides=["trainer.names=['a', 'b']"]))
    assert plan.parts[Role.TRAINER].config.names == ("a", "b")


def test_listing_knows_every_role() -> None:
    assert tuple(role.value for role in Role) == ROLES
