"""The conformance kit finds what is computed wrongly: a trainer and a generator that are right but for one thing fail
the demand about that thing, and it says so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import grpo_bench.testing as kit
import pytest

PACKAGE = Path(__file__).parent / "data" / "wrong_torch.py"
LOSS, CLIP = "test_the_loss_is_the_contracts", "test_only_sampled_tokens_within_the_clip_train"
DRAWS, STREAM = "test_draws_follow_the_distribution", "test_a_stream_decides_what_is_drawn"

WRONG = [  # the role, what is wrong, the demand that it must fail, and what that must say
    ("trainer", "neighbours", LOSS, " instead of "),
    ("trainer", "prompts", LOSS, " instead of "),
    ("trainer", "half", LOSS, " instead of "),
    ("trainer", "signs", LOSS, " instead of "),
    ("trainer", "no_gen", LOSS, " instead of "),
    ("trainer", "no_prev", LOSS, " instead of "),
    ("trainer", "defaults", LOSS, " instead of "),
    ("trainer", "cold", "test_log_probabilities_are_the_policys", "at temperature 0.7 they differ by "),
    ("trainer", "quiet_neighbours", CLIP, "the gradient's norm is "),
    ("trainer", "quiet_prompts", CLIP, "the gradient's norm is "),
    ("trainer", "quiet_no_prev", CLIP, "the gradient's norm is "),
    ("trainer", "quiet_defaults", CLIP, "the gradient's norm is "),
    ("trainer", "quiet_half", CLIP, "row 5 does not train"),
    ("trainer", "quiet_uphill", "test_an_update_lowers_the_loss", "the loss went from "),
    ("trainer", "quiet_own_counts", "test_the_batchs_own_counts_divide", "comparison failed"),
    ("trainer", "sends_base", "test_what_was_learned_is_sent", "model.embed_tokens.weight has other values"),
    ("trainer", "zeros", "test_the_first_transfer_is_the_policy", "model.embed_tokens.weight has other values"),
    ("generator", "biased", DRAWS, "train, tokens by number: chi-square "),
    ("generator", "warm", DRAWS, "validation: "),
    ("generator", "whole", DRAWS, "tokens are outside the support"),
    ("generator", "raw", DRAWS, "validation: other log-probabilities"),
    ("generator", "seedless", STREAM, "all seeds draw the same"),
    ("generator", "turnless", STREAM, "all turns draw the same"),
    ("generator", "goes_on", "test_an_abort_ends_a_reply", "went on to its limit"),
    ("generator", "stale", "test_kept_requests_compute_anew", "after the refit they differ from the probe"),
    ("generator", "first_engine", "test_all_engines_get_the_weights", "an engine kept its old weights"),
]


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A trainer and a generator named ``wrong``; the option ``wrong`` says what is."""
    info = tmp_path / "site" / "wrong_torch-1.0.dist-info"
    info.mkdir(parents=True)
    (info.parent / "wrong_torch.py").write_text(PACKAGE.read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong-torch\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("".join(
        f"[grpo_bench.{role}]\nwrong = wrong_torch:{role}\n" for role in ("trainer", "generator")))
    monkeypatch.syspath_prepend(str(info.parent))
    yield
    sys.modules.pop("wrong_torch", None)


def attempt(role: str, wrong: str, demand: str, folder: Path) -> None:
    folder.mkdir()
    more = {"engines_option": "workers"} if role == "generator" else {}
    suite = type("Tried", (getattr(kit, kit.SUITES[role]),), {"plugin": "wrong", "options": {"wrong": wrong}, **more})()
    with suite.prepared(folder) as rig:
        getattr(suite, demand)(rig)


@pytest.mark.parametrize(("role", "demand"), dict.fromkeys((role, demand) for role, _, demand, _ in WRONG))
def test_what_is_right_passes(parts: None, tmp_path: Path, role: str, demand: str) -> None:
    attempt(role, "", demand, tmp_path / "right")


@pytest.mark.parametrize(("role", "wrong", "demand", "says"), WRONG)
def test_what_is_wrong_is_found(parts: None, tmp_path: Path, role: str, wrong: str, demand: str, says: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the text says which
        attempt(role, wrong, demand, tmp_path / "wrong")
    assert says in str(caught.value)
