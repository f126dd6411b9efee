"""The corpus itself: enough attacks, of every kind, each of which can be played."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from grpo_bench_sandbox import Limits, backend

from .corpus import HOLE, Attack, filled, read_corpus
from .decoys import Decoys
from .playing import IN_THE_TOY

ATTACKS = read_corpus()
DOCS = Path(__file__).parents[4] / "docs" / "attacks.md"


def test_there_are_enough_and_the_docs_name_every_family():
    families = Counter(attack.family for attack in ATTACKS)
    assert len(ATTACKS) == len({attack.name for attack in ATTACKS}) >= 100
    assert min(families.values()) >= 4
    named = set(re.findall(r"^\| `(\w+)` \|", DOCS.read_text(), re.MULTILINE))
    assert named == set(families)


def test_the_docs_name_every_attack_that_is_rewarded_all_the_same():
    open_ones = [attack for attack in ATTACKS if attack.open]
    assert all(f"`{attack.name}`" in DOCS.read_text() for attack in open_ones)
    assert len(open_ones) <= 3


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.name for attack in ATTACKS])
def test_an_attack_can_be_played(attack: Attack):
    with Decoys() as decoys:
        values = {**IN_THE_TOY, **decoys.values}
        for text in (attack.agent, attack.library, attack.patch, *attack.writes, attack.diff_has, attack.diff_lacks):
            assert not re.findall(r"@([A-Z_0-9]+)@", filled(text, values))
        assert decoys.harm() == []
    assert bool(attack.library) + bool(attack.patch) + bool(attack.agent) == 1
    assert set(attack.needs) <= {"cgroups"}
    if attack.library:
        compile(filled(attack.library, values), attack.name, "exec")
    if attack.family in ("secrets", "network", "escape"):
        assert HOLE in attack.agent or attack.reads or attack.writes or attack.name in ("daemon", "held-output",
                                                                                       "hidden-daemon", "shared-places")


def test_decoys_tell_who_touched_them():
    import socket

    with Decoys() as decoys:
        with socket.create_connection(("127.0.0.1", int(decoys.values["PORT"])), timeout=10) as to:
            to.recv(1)
        Path(decoys.values["MARK"]).write_text("x")
        Path(decoys.values["MARK_FOLDER"], "written").write_text("x")
        assert decoys.harm() == ["a connection to tcp", "the host's file was changed", "a file on the host: written"]


def test_no_isolation_is_never_claimed_to_withstand_any_of_it():
    facts = backend("process").facts(Limits())
    assert facts["isolation"].startswith("NONE")
    assert "trusted code only" in facts["isolation"]
    assert not {"processes", "files", "shared memory"} & set(facts["limits"])
