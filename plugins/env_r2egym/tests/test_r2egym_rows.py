import json
import tracemalloc

import pytest
from grpo_bench_env_r2egym import rows
from grpo_bench_env_r2egym.rows import RowError
from grpo_bench_env_r2egym.tasks import TaskList

from .toy import row, write_rows

ID = "numpy__numpy-" + "a" * 40


def own(**changes):
    return {"repo_name": "numpy", "commit_hash": "a" * 40, "problem_statement": "It is wrong.",
            "docker_image": "x/numpy_final:a", "expected_output_json": '{"test_a": "PASSED"}', **changes}


def changed(**metadata):
    made = row(ID, "total")
    made["responses_create_params"]["metadata"].update(metadata)
    return made


def in_columns(**changes):
    metadata = row(ID, "total")["responses_create_params"]["metadata"]
    return changed(instance_dict=json.dumps(json.loads(metadata["instance_dict"]) | changes))


def test_both_forms_are_read(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", [row(ID, "total"), own(commit_hash="b" * 40)])
    first, second = (rows.read(path, place.number, place.offset, place.length, place.sha256)
                     for place in rows.index(path).places)
    assert (first.instance_id, first.repo) == (ID, "toys/tally")
    assert first.expected["test_most"] == "PASSED"
    assert first.metadata["base_commit"] == "a" * 40
    assert (second.instance_id, second.repo, second.statement) == (
        "numpy__numpy-" + "b" * 40, "numpy", "It is wrong.")
    assert second.columns["docker_image"] == "x/numpy_final:a"


@pytest.mark.parametrize(("bad", "said"), [
    ([1], "is no JSON object"),
    ({}, "responses_create_params: Field required"),
    (changed(instance_id="numpy"), "responses_create_params.metadata.instance_id: String should match"),
    (changed(instance_id=f"../{ID}"), "responses_create_params.metadata.instance_id: String should match"),
    (changed(problem_statement=" "), "responses_create_params.metadata.problem_statement: String should match"),
    (changed(repo=7), "responses_create_params.metadata.repo: Input should be a valid string"),
    (changed(instance_dict="{"), "responses_create_params.metadata.instance_dict: is no JSON"),
    (changed(instance_dict="[]"), "responses_create_params.metadata.instance_dict: is no JSON object"),
    (changed(instance_dict="{}"), "responses_create_params.metadata.instance_dict.expected_output_json: Field"),
    (in_columns(expected_output_json="{}"), "instance_dict.expected_output_json: expects nothing"),
    (in_columns(expected_output_json="[1]"), "instance_dict.expected_output_json: maps no tests to statuses"),
    (in_columns(expected_output_json='{"a": 1}'), "instance_dict.expected_output_json: maps no tests to statuses"),
    ({**row(ID, "total"), "agent_ref": {}}, "agent_ref.type: Field required"),
    (own(commit_hash="HEAD"), "commit_hash: String should match"),
    (own(expected_output_json="{}"), "expected_output_json: expects nothing"),
    (own(instance_id="../x"), "instance_id: String should match"),
    (row(ID, "total"), "instance_id: " + ID + " is on line 1 already"),
])
def test_a_bad_line_is_named_with_file_line_and_field(tmp_path, bad, said):
    path = write_rows(tmp_path / "rows.jsonl", [row(ID, "total"), bad])
    with pytest.raises(RowError) as raised:
        rows.index(path)
    assert raised.value.message.startswith(f"{path}, line 2: ")
    assert said in raised.value.message


@pytest.mark.parametrize("text", ["", "{\n", "not json\n", "\n", "\ufeff{}\n", "[" * 10_000])
def test_what_is_no_row_at_all(tmp_path, text):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(RowError, match="line 1"):
        rows.index(path)


def test_every_bad_line_is_found(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", [{}, row(ID, "total"), [], own(commit_hash="b" * 40), {"a": 1}])
    found = list(rows.scan(path))
    assert [type(item).__name__ for item in found] == ["RowError", "Place", "RowError", "Place", "RowError"]
    assert [item.number for item in found if isinstance(item, rows.Place)] == [2, 4]


def test_order_is_kept_and_the_last_line_needs_no_end(tmp_path):
    ids = [f"numpy__numpy-{number:040x}" for number in (5, 3, 9, 1)]
    path = write_rows(tmp_path / "rows.jsonl", [row(each, "total") for each in ids])
    path.write_text(path.read_text().rstrip("\n"))
    assert [task.id for task in TaskList("train", rows.index(path))] == ids
    assert [task.id for task in TaskList("train", rows.index(path))[1:3]] == ids[1:3]


def test_a_file_that_changes_in_use_is_noticed(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", [row(ID, "total")])
    tasks = TaskList("train", rows.index(path))
    write_rows(path, [row(ID, "other")])
    with pytest.raises(RowError, match="changed while it was in use"):
        _ = tasks[0]


def test_overlap_is_refused(tmp_path):
    other = f"numpy__numpy-{1:040x}"
    train = rows.index(write_rows(tmp_path / "train.jsonl", [row(ID, "total"), row(other, "total")]))
    validation = rows.index(write_rows(tmp_path / "validation.jsonl", [row(other, "mean")]))
    with pytest.raises(RowError, match=r"validation\.jsonl, line 1: .*is a task of .*train\.jsonl too \(line 2\)"):
        rows.check_overlap(train, validation)


def test_only_redacted_fields_are_in_a_task(tmp_path):
    made = changed(hints_text="SECRET", version="SECRET", created_at="SECRET")
    path = write_rows(tmp_path / "rows.jsonl", [made])
    task = TaskList("train", rows.index(path))[0]
    assert set(task.prompt) == {"statement", "workdir", "repo", "instance_id"}
    text = json.dumps([task.prompt, task.payload])
    assert not any(secret in text for secret in ("SECRET", "test_most", "def ", "PASSED", "expected"))


def test_fingerprints_follow_the_content_and_not_the_place(tmp_path):
    paths = [write_rows(tmp_path / "a.jsonl", [row(ID, "total")]),
             write_rows(tmp_path / "b.jsonl", [own(commit_hash="b" * 40), row(ID, "total")])]
    first, second = (TaskList("train", rows.index(path))[-1] for path in paths)
    assert first.fingerprint == second.fingerprint
    write_rows(tmp_path / "c.jsonl", [in_columns(parsed_commit_content="another fix")])
    assert TaskList("train", rows.index(tmp_path / "c.jsonl"))[0].fingerprint != first.fingerprint


def test_a_large_file_is_never_in_memory(tmp_path):
    path, filler = tmp_path / "rows.jsonl", "x" * 2**20
    with path.open("w") as file:
        for number in range(48):
            made = row(f"numpy__numpy-{number:040x}", "total")
            made["responses_create_params"]["metadata"]["hints_text"] = filler
            file.write(json.dumps(made) + "\n")
    tracemalloc.start()
    try:
        tasks = TaskList("train", rows.index(path))
        assert len([task.id for task in tasks]) == 48
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * 2**20 < path.stat().st_size


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(RowError, match="No such file"):
        rows.index(tmp_path / "none.jsonl")
