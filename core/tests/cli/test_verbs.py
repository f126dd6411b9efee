"""Verbs that installed distributions add."""

from __future__ import annotations

from typing import Any

import pytest

from grpo_bench.cli import main

SOURCE = """
def fill(parser):
    actions = parser.add_subparsers(required=True)
    double = actions.add_parser("double", help="twice a number")
    double.add_argument("number", type=int)
    double.set_defaults(verb=lambda arguments: print(2 * arguments.number) or 3)

def broken(parser):
    raise RuntimeError("out of order")
"""


def test_a_verb_of_a_distribution_is_listed_and_runs(workshop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    workshop.distribution("adder", {"verb": {"sums": "fill", "run": "fill"}}, SOURCE)
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    assert [line.split() for line in text.splitlines() if "sums" in line] == [["sums", "of", "a", "test"]]
    assert main(["sums", "double", "21"]) == 3
    assert capsys.readouterr().out == "42\n"


@pytest.mark.parametrize("arguments", [["sums", "double", "many"], ["sums"], ["sums", "halve"]])
def test_its_arguments_are_checked_as_the_cores_are(workshop: Any, capsys: pytest.CaptureFixture[str],
                                                    arguments: list[str]) -> None:
    workshop.distribution("adder", {"verb": {"sums": "fill"}}, SOURCE)
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "grpo-bench sums" in capsys.readouterr().err


def test_only_the_verb_that_is_asked_for_is_imported(workshop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    workshop.distribution("rude", {"verb": {"shout": "fill"}}, "raise SystemExit('imported')")
    workshop.distribution("adder", {"verb": {"sums": "fill"}}, SOURCE)
    assert main(["sums", "double", "1"]) == 3
    assert main(["profiles", "list"]) == 0


@pytest.mark.parametrize(("item", "says"), [("nowhere", "has no attribute"), ("broken", "out of order")])
def test_a_verb_that_cannot_be_used_names_its_package(workshop: Any, capsys: pytest.CaptureFixture[str], item: str,
                                                     says: str) -> None:
    workshop.distribution("adder", {"verb": {"sums": item}}, SOURCE)
    assert main(["sums", "double", "1"]) == 2
    said = capsys.readouterr().err
    assert "the verb 'sums' of adder" in said and says in said


def test_two_distributions_with_one_verb_are_both_named(workshop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    workshop.distribution("adder", {"verb": {"sums": "fill"}}, SOURCE)
    workshop.distribution("other", {"verb": {"sums": "fill"}}, SOURCE)
    assert main(["sums", "double", "1"]) == 2
    assert "adder, other" in capsys.readouterr().err
