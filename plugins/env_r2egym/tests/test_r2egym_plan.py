"""What a plan is told, and images as they lie on disk."""

from types import SimpleNamespace
from typing import Any

import pytest
from grpo_bench.contract import LimitSettings, Missing, PlanError
from grpo_bench_env_r2egym import R2EGymConfig
from grpo_bench_env_r2egym.facts import describe
from grpo_bench_env_r2egym.images import find_image

from .toy import row, write_rows

SITE: Any = SimpleNamespace(limits=LimitSettings())


def made(toy, **options):
    return R2EGymConfig.model_validate(toy.options | {"backend": "process"} | options)


def test_a_plan_says_what_is_there(toy):
    facts = describe(made(toy), SITE)
    assert facts["backend"] == "process"
    assert facts["isolation"].startswith("NONE")
    assert facts["images"] == {"host": 3}
    assert {split: said["tasks"] for split, said in facts["tasks"].items()} == {"train": 2, "validation": 1}
    assert len(facts["tasks"]["train"]["sha256"]) == 64


def test_all_that_is_missing_is_said_at_once(tmp_path):
    train = write_rows(tmp_path / "train.jsonl", [row(f"numpy__numpy-{number:040x}", "x") for number in range(5)])
    (tmp_path / "images").mkdir()
    config = R2EGymConfig(train=train, validation=tmp_path / "no.jsonl", images=tmp_path / "images", backend="process")
    with pytest.raises(Missing) as raised:
        describe(config, SITE)
    tasks, images = list(raised.value.items)
    assert tasks.startswith("validation tasks: no file")
    assert "numpy__numpy-" + "0" * 40 in images
    assert "and 2 more" in images
    with pytest.raises(Missing) as raised:
        describe(config.model_copy(update={"images": tmp_path / "none"}), SITE)
    assert f"images: no folder {tmp_path / 'none'}" in raised.value.items


def test_a_plan_refuses_time_limits_that_cannot_hold(toy):
    with pytest.raises(PlanError, match=r"limits\.score_s is 120 s"):
        describe(made(toy, test_timeout_s=61), SITE)
    assert describe(made(toy, test_timeout_s=61, cross_check=False), SITE)


def test_a_plan_refuses_a_bad_row_and_an_overlap(toy, tmp_path):
    bad = write_rows(tmp_path / "bad.jsonl", [{}])
    with pytest.raises(PlanError, match="line 1"):
        describe(made(toy, train=str(bad)), SITE)
    with pytest.raises(PlanError, match="is a task of"):
        describe(made(toy, train=toy.options["validation"]), SITE)


def test_a_file_that_should_be_another_is_refused(toy):
    right = describe(made(toy), SITE)["tasks"]["train"]
    expected = {"bytes": right["bytes"], "sha256": right["sha256"]}
    assert describe(made(toy, train_expected=expected), SITE)
    for wrong, said in (({"bytes": 1}, "should have 1"), ({"sha256": "0" * 64}, f"should have {'0' * 64}")):
        with pytest.raises(Missing) as raised:
            describe(made(toy, train_expected=expected | wrong), SITE)
        assert [item.startswith("train tasks: ") and item.endswith(said) for item in raised.value.items] == [True]
        assert list(raised.value.facts["tasks"]) == ["validation"]


def test_paths_may_start_at_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert R2EGymConfig.model_validate({"train": "~/a", "validation": "b", "images": "~"}).train == tmp_path / "a"


@pytest.mark.parametrize(("text", "said"), [
    ("schema = 2\nroot = \"host\"\n", "image.toml: schema: "),
    ("root = \"host\"\n", "image.toml: schema: Field required"),
    ("schema = 1\nroot = \"sif\"\n", "image.toml: root: "),
    ("schema = 1\nroot = \"folder\"\n", "path names the root filesystem"),
    ("schema = 1\nroot = \"host\"\npath = \"x\"\n", "path names the root filesystem"),
    ("schema = 1\nroot = \"host\"\nmask = []\n", "image.toml: mask: "),
    ("schema = \n", "image.toml: "),
    ("schema = 1\nroot = \"host\"\n", "testbed is missing"),
])
def test_an_image_folder_that_is_wrong_is_named(tmp_path, text, said):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "image.toml").write_text(text)
    with pytest.raises(PlanError) as raised:
        find_image(tmp_path, "x", "R2E-Gym")
    assert said in raised.value.message


def test_a_sif_hides_the_tests_from_the_agent_only(tmp_path):
    instance_id = "numpy__numpy-" + "a" * 40
    assert find_image(tmp_path, instance_id, "R2E-Gym/R2E-Gym-Subset") is None
    (tmp_path / f"{instance_id}.sif").write_bytes(b"")
    found = find_image(tmp_path, instance_id, "R2E-Gym/R2E-Gym-Subset")
    assert found is not None
    assert {"/r2e_tests", "/run_tests.sh", "/root/r2e_tests"} <= set(found.image.masks)
    assert found.for_grading.masks == ()
