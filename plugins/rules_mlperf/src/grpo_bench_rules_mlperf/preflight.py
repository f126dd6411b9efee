"""What a submission needs of a machine: the benchmark's policy, room for its checkpoints, and software that nobody has
changed by the way.

What stands in for a part makes no submission, and neither does the open division repeat the reference: there a source
tree is told and not judged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_bench.contract import Finding, PreflightContext

from .artifacts_checks import checkpoint_findings
from .config import RulesetConfig
from .holding import model_findings, value_at
from .rules import Bound, Division
from .training_6_1 import RULES

CHECKPOINT_BYTES = 741 * 10**9
"""Of one checkpoint of the benchmark's policy, weights only, as published runs wrote it."""
OVERLAYS = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "LD_PRELOAD")
"""Variables that put other code before what is installed."""


def preflight(config: RulesetConfig, context: PreflightContext) -> Iterator[Finding]:
    """The descriptor's ``preflight``."""
    division = Division(config.division)
    policy = context.site.policy
    if division is Division.CLOSED and (policy.checkpoint / "config.json").is_file():
        yield from _policy(policy.checkpoint)
    elif division is Division.CLOSED:
        yield Finding("policy", False, f"no checkpoint at {policy.checkpoint}", key="policy.checkpoint", unknown=True,
                      why=f"every run starts from {RULES.model}", fix="grpo-bench artifacts fetch hf_checkpoint")
    yield from _checkpoints(context)
    yield from _software(context.provenance, division)
    yield from _versions(context.facts)


def _policy(folder: Path) -> Iterator[Finding]:
    """Model table first: what is another model has another checkpoint, of which nothing is known."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    verdicts = model_findings(RULES, config, Division.CLOSED)
    wrong = [f"{item.rule.removeprefix('policy.')} {item.message}" for item in verdicts if not item.ok]
    why, fix = f"every run starts from {RULES.model}", "let policy.checkpoint be the benchmark's checkpoint"
    yield Finding("model table", not wrong, f"{len(wrong)} of {len(verdicts)} values: {', '.join(wrong)}" if wrong else
                  f"all {len(verdicts)} values are those of {RULES.model}", key="policy.checkpoint", why=why, fix=fix)
    if wrong:
        return
    yield from checkpoint_findings(folder)
    places = (folder, folder.resolve())
    named = next((place.name for place in places if place.parent.name == "snapshots"), None)
    yield Finding("revision", named in (None, *RULES.revisions), "the folder is no snapshot of a hub, so none is told"
                  if named is None else named if named in RULES.revisions else
                  f"{named}; the rules know {' and '.join(RULES.revisions)}", key="policy.checkpoint", why=why,
                  fix=f"fetch {RULES.model} at {RULES.revisions[0]}")


def _checkpoints(context: PreflightContext) -> Iterator[Finding]:
    """Room for what deferred evaluation keeps, in checkpoints as large as the reference's; what those of this run's
    trainer take is not for the rules to say."""
    grpo, validation = context.settings["grpo"], context.settings["validation"]
    of_the_benchmark = context.site.policy.vocab_size in (0, RULES.value("policy.vocabulary"))
    if not validation["deferred"] or not of_the_benchmark:
        return
    batch = grpo["prompts_per_step"] * grpo["generations_per_prompt"]
    count = max(0, grpo["max_steps"] - RULES.first_validation(batch) + 1)
    runs = context.runs.absolute()
    place = next(place for place in (runs, *runs.parents) if os.path.exists(place))
    found = os.statvfs(place)
    need, free = count * CHECKPOINT_BYTES, found.f_bavail * found.f_frsize
    yield Finding("checkpoints", need <= free, f"{count} of {CHECKPOINT_BYTES / 1e9:.0f} GB, as the reference's, are "
                  f"{need / 1e12:.1f} TB; {free / 1e12:.1f} TB are free at {place}", key="validation.deferred",
                  why="the weights after every step from the first quality check on are kept until training is over",
                  fix="name a larger file system with --runs")


def _software(provenance: Mapping[str, Any], division: Division) -> Iterator[Finding]:
    """No source overlay, and the revision that the image says."""
    stand_ins = [name for name, part in provenance["parts"].items() if part["stand_in"]]
    spared = f"no submission: {', '.join(stand_ins)} stand in" if stand_ins else (
        "the open division leaves it free" if division is Division.OPEN else "")
    trees = [f"{folder} ({'with changes' if state['dirty'] else 'editable'})"
             for folder, state in provenance["sources"].items()]
    set_so = [f"{name} = {os.environ[name]}" for name in OVERLAYS if os.environ.get(name)]
    over = [*trees, *set_so]
    why = "a closed-division run uses the software of its image and nothing laid over it"
    yield Finding("source overlay", not over or bool(spared), f"{'; '.join(over) or 'none'}"
                  + (f" ({spared})" if over and spared else ""), why=why,
                  fix="install wheels, and unset the variables")
    yield _revision(provenance, spared, why)


def _revision(provenance: Mapping[str, Any], spared: str, why: str) -> Finding:
    """What runs against what the image says it was made of."""
    image = provenance["container"]["image"]
    if image is None:
        return Finding("revision of the software", True, "no image says one; the provenance has the hash of each "
                                                         "distribution")
    wanted = image.get("revision")
    commits = {state["commit"] for state in provenance["sources"].values()}
    commits |= {install["commit"] for install in provenance["installs"].values() if "commit" in install}
    other = sorted(str(commit) for commit in commits if commit != wanted)
    ok = isinstance(wanted, str) and not other
    return Finding("revision of the software", ok or bool(spared), f"{wanted}, as the image says" if ok else
                   f"the image says {wanted}, what runs is of {', '.join(other) or 'no commit that is told'}"
                   + (f" ({spared})" if spared else ""), why=why, fix="use the launcher and the image of one revision")


def _versions(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Versions beside those of the reference. They differ freely."""
    said = []
    for item in RULES.requirements:
        place = next((place for place in item.at if ".versions." in place), None)
        found = value_at({"facts": facts}, place) if place and item.bound is Bound.REFERENCE else None
        if place and isinstance(found, str):
            said.append(f"{place.partition('.versions.')[2]} {found} (reference {item.wanted})")
    if said:
        yield Finding("reference versions", True, ", ".join(said))
