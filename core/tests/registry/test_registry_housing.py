"""Parts whose workers have an environment of their own: what a plan asks of it, and what it leaves of them."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from grpo_bench.contract import PlanError, Role
from grpo_bench.registry import Plan, make_plan, resolve
from grpo_bench.registry.envs import named
from grpo_bench.registry.envs_lock import read_lock
from grpo_bench.registry.envs_python import engine_tag
from grpo_bench.registry.envs_store import Place, Record

HOUSED = '''
from grpo_bench.contract import Capabilities, PlanError, Plugin, Role, Settings, WorkerEnv

class Config(Settings):
    size: int = 1

def take():
    import sys
    return {"device": "abacus", "python": sys.executable}

def narrow(config, inventory):
    return Capabilities(receives=frozenset({"shared"}), refit=frozenset({"drain"}),
                        lacking={"beam": f"no laser beside an {inventory['device']}"})

def describe(config, site):
    if config.size > site.placement.workers:
        raise PlanError(f"size = {config.size} does not go into {site.placement.workers} workers")
    return {"device": site.inventory["device"], "interpreter": site.interpreter, "top_p": [
        settings.top_p for settings in site.sampling.values()], "vocabulary": site.policy.vocab_size}

generator = Plugin("housed", Role.GENERATOR, "for tests", Config, factory="none:none", narrow=__name__ + ":narrow",
                   capabilities=Capabilities(receives=frozenset({"shared", "beam"}), refit=frozenset({"drain"})),
                   describe=__name__ + ":describe", env=WorkerEnv("den", __name__ + "/env.toml", __name__ + ":take"))
trainer = Plugin("beaming", Role.TRAINER, "for tests", Config, factory="none:none",
                 capabilities=Capabilities(sends=frozenset({"shared", "beam"})))
'''
LOCK = 'schema = 1\npython = ">=3.0"\n[[steps]]\npackages = ["nothing==1.0"]\n'


@pytest.fixture
def housed(bench, monkeypatch):
    """A bench with a generator that needs the environment ``den``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(bench.folder / "cache"))
    points = {"generator": {"housed": "generator"}, "trainer": {"beaming": "trainer"}}
    module = bench.distribution("test-housed", points, HOUSED)
    Path(bench.site, module, "env.toml").write_text(LOCK)
    return bench


def plan_with(*overrides: str) -> Plan:
    return make_plan(resolve("base", overrides=("generator.use=housed", "trainer.use=beaming", *overrides)))


def at_home(*overrides: str) -> Plan:
    return plan_with(f"generator.env={sys.executable}", *overrides)


def test_an_environment_that_is_not_built_is_a_plan_error_that_says_what_to_run(housed) -> None:
    with pytest.raises(PlanError, match=r"generator\.use.*'den' is not built; run `grpo-bench env build den`"):
        plan_with()


def test_a_python_takes_the_place_of_the_environment(housed) -> None:
    plan = at_home("validation.sampling.top_p=1")
    part = plan.parts[Role.GENERATOR]
    assert (part.env, part.interpreter) == (sys.executable, sys.executable)
    assert part.inventory == {"device": "abacus", "python": sys.executable}
    assert part.facts == {"device": "abacus", "interpreter": sys.executable, "top_p": [1.0, 1.0], "vocabulary": 77}
    assert plan.resolved["generator"] == {"use": "housed", "env": sys.executable, "size": 1}
    assert plan.provenance["environments"] == {
        "generator": {"env": sys.executable, "inventory": dict(part.inventory)}}


def test_the_provenance_says_what_an_environment_was_built_from(housed) -> None:
    elsewhere = at_home().provenance["locks"]["generator"]
    assert (elsewhere["interpreter"], elsewhere["build"], elsewhere["lock_sha256"]) == (sys.executable, None, None)
    assert elsewhere["libraries"]["pydantic"] == version("pydantic")
    lock = read_lock(named("den"))
    place = Place(f"{lock.stem}-{engine_tag()}")
    place.python.parent.mkdir(parents=True)
    place.python.symlink_to(sys.executable)
    place.finish(Record(lock.digest, "3.11", sys.executable, 0))
    built = plan_with().provenance["locks"]["generator"]
    assert (built["interpreter"], built["build"], built["lock_sha256"]) == (str(place.python), place.key, lock.digest)


def test_a_part_is_only_what_its_environment_leaves_of_it(housed) -> None:
    assert at_home().transport == "shared"
    with pytest.raises(PlanError, match=r"'beam' cannot carry weights here: no laser beside an abacus"):
        at_home("refit.transport=beam")


def test_a_part_refuses_what_would_not_work_where_it_is_placed(housed) -> None:
    assert at_home("generator.size=2").parts[Role.GENERATOR].config.size == 2
    with pytest.raises(PlanError, match=r"size = 3 does not go into 2 workers \[plugin housed, role generator\]"):
        at_home("generator.size=3")


def test_rollouts_share_processes_with_engines_of_the_same_interpreter_only(housed) -> None:
    assert not at_home().rollouts_beside_engines
    assert make_plan(resolve("base")).rollouts_beside_engines
    assert not make_plan(resolve("base", overrides=("rollout.workers=1",))).rollouts_beside_engines


def test_a_part_without_an_environment_of_its_own_can_be_given_none(housed) -> None:
    with pytest.raises(PlanError, match=r"trainer\.env: trainer 'beaming' has no environment of its own"):
        at_home("trainer.env=den")


def test_an_interpreter_that_does_not_exist_is_named_with_its_place(housed) -> None:
    with pytest.raises(PlanError, match=r"generator\.env: environment 'den': /no/python cannot be run"):
        plan_with("generator.env=/no/python")
