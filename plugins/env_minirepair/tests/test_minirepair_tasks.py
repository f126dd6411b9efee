import ast
import builtins
import io
import json
import keyword
import subprocess
import sys
import tokenize
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout

import pytest
from grpo_bench_env_minirepair.tasks import FAMILIES, SPLITS, bucket, draw, make_task, structure, tasks

HELD = 5 * len(FAMILIES)
SEEN = 100 * len(FAMILIES)


def alpha_renamed(lines):
    """The syntax tree with identifiers replaced by order of appearance and constants by their type, written apart from
    the code under test."""
    tree = ast.parse("\n".join(lines))
    names = {}

    def rename(name):
        if hasattr(builtins, name):
            return name
        return names.setdefault(name, f"name{len(names)}")

    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.name = rename(node.name)
        elif isinstance(node, ast.arg):
            node.arg = rename(node.arg)
        elif isinstance(node, ast.Name):
            node.id = rename(node.id)
        elif isinstance(node, ast.Constant):
            node.value = type(node.value).__name__
    return ast.dump(tree)


@pytest.fixture(scope="module")
def problems():
    counts = {"heldout": HELD, "final": HELD, "train": SEEN, "pretrain": SEEN}
    return {split: [draw(split, index) for index in range(count)] for split, count in counts.items()}


@pytest.mark.parametrize("unseen", ["heldout", "final"])
def test_no_structure_of_an_unseen_task_is_trained_on(problems, unseen):
    seen = {alpha_renamed(p.correct) for split in ("train", "pretrain") for p in problems[split]}
    assert len(seen) > 1000
    assert not seen & {alpha_renamed(p.correct) for p in problems[unseen]}


def test_heldout_and_final_are_apart(problems):
    held, final = ({alpha_renamed(p.correct) for p in problems[split]} for split in ("heldout", "final"))
    assert not held & final


def test_no_pair_of_statement_and_buggy_file_crosses_splits(problems):
    pairs = {split: {(p.statement, p.buggy) for p in some} for split, some in problems.items()}
    assert not (pairs["heldout"] | pairs["final"]) & (pairs["train"] | pairs["pretrain"])


def test_splits_share_no_bucket():
    owned = Counter(b for buckets in SPLITS.values() for b in buckets)
    assert set(owned.values()) == {1}


@pytest.mark.parametrize("split", sorted(SPLITS))
def test_tests_tell_correct_from_buggy(problems, split):
    for p in problems[split][: 4 * len(FAMILIES)]:
        correct, buggy = {}, {}
        exec("\n".join(p.correct), correct)
        exec("\n".join(p.buggy), buggy)
        assert all(passes(correct[p.function], test) for test in (*p.visible, *p.hidden)), p
        assert not all(passes(buggy[p.function], test) for test in p.visible), p
        assert not all(passes(buggy[p.function], test) for test in p.hidden), p


def passes(function, test):
    arguments, expected = json.loads(json.dumps(test))
    try:
        got = function(*arguments)
    except Exception:
        return False
    return got == expected and type(got) is type(expected)


def test_one_line_is_wrong_and_the_fix_mends_it(problems):
    for p in problems["train"][: 4 * len(FAMILIES)]:
        assert len(p.correct) == len(p.buggy)
        mended = list(p.buggy)
        mended[p.fix.line - 1] = p.fix.text
        assert tuple(mended) == p.correct
        assert p.fix in p.plausible_edits()


def test_every_family_is_as_frequent_in_every_split(problems):
    for some in problems.values():
        assert set(Counter(p.family.name for p in some).values()) == {len(some) // len(FAMILIES)}


def test_structures_are_many(problems):
    assert len({structure(p.correct) for p in problems["pretrain"]}) > 1500
    for split in ("heldout", "final"):
        assert len({structure(p.correct) for p in problems[split]}) > 0.8 * HELD


def test_identifiers_do_not_decide_the_split(problems):
    for p in problems["heldout"]:
        renames = {name: f"other_{index}" for index, name in enumerate((p.function, *p.names.values()))}
        renamed = []
        for line in p.correct:
            pieces = tokenize.generate_tokens(io.StringIO(line.strip() + "\n").readline)
            code = " ".join(renames.get(t.string, t.string) for t in pieces if t.string.strip())
            renamed.append(code)
        shape = structure(renamed).split()
        own = [word for word in shape if word.startswith("v") and not keyword.iskeyword(word)]
        assert own, p
        assert not any(name in shape for name in renames.values())
        assert bucket(p.correct) in SPLITS["heldout"]


def test_nothing_hidden_is_in_the_prompt():
    for index in range(2 * len(FAMILIES)):
        p, task = draw("train", index), make_task("train", index)
        shown = json.dumps(task.prompt)
        assert task.prompt["files"]["solution.py"].splitlines() == list(p.buggy)
        public = [arguments for arguments, _ in p.visible]
        assert not any(repr(arguments) in shown for arguments, _ in p.hidden if arguments not in public)


def test_tasks_are_the_same_in_another_process():
    here = [task.fingerprint for task in tasks("train", 30)]
    code = "from grpo_bench_env_minirepair.tasks import tasks; print([t.fingerprint for t in tasks('train', 30)])"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == repr(here)
    assert len(set(here)) == 30


def test_task_values_survive_json():
    for task in tasks("train", len(FAMILIES)):
        assert json.loads(json.dumps([task.prompt, task.payload])) == [task.prompt, task.payload]


@pytest.mark.parametrize("index", range(len(FAMILIES)))
def test_visible_script_says_what_the_problem_says(index, tmp_path, monkeypatch):
    p, task = draw("train", index), make_task("train", index)
    script = compile(task.prompt["files"]["visible_test.py"], "visible_test.py", "exec")
    monkeypatch.syspath_prepend(str(tmp_path))
    for lines in (p.buggy, p.correct):
        (tmp_path / "solution.py").write_text("\n".join(lines) + "\n")
        sys.modules.pop("solution", None)
        said = ""
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "dont_write_bytecode", True)
            try:
                exec(script, {"__name__": "__main__"})
            except SystemExit as stop:
                said = str(stop.code)
        assert said == p.visible_failure(lines)
    sys.modules.pop("solution", None)
