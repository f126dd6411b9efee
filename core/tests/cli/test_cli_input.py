"""Wrong input of every kind, as a user meets it: one message with its place, exit code 2, and nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_bench.cli import main

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def contents(folder: Path) -> dict[str, bytes | None]:
    """Everything in ``folder``, down to the bytes; plugins' caches left out."""
    found = [path for path in folder.rglob("*") if not {"__pycache__", "cache"} & set(path.parts)]
    return {str(path): path.read_bytes() if path.is_file() and not path.is_symlink() else None for path in found}


def refuse(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> str:
    """Run a command that has to be refused; returns what it said."""
    before = contents(folder)
    capsys.readouterr()
    try:
        code = main(list(arguments))
    except SystemExit as stopped:
        code = stopped.code
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert captured.err.startswith("grpo-bench")
    assert captured.err.count("grpo-bench: ") <= 1
    assert "Traceback" not in captured.err
    assert contents(folder) == before
    return captured.err


DAMAGED = [
    ("config.json", "{", "config.json cannot be read"), ("config.json", b"\xff\xfe", "config.json cannot be read"),
    ("config.json", "[" * 100_000, "config.json cannot be read"), ("config.json", "3", "no model configuration"),
    ("config.json", '{"vocab_size": true}', "gives no vocab_size"), ("config.json", '{"vocab_size": 0}', "vocab_size"),
    ("config.json", '{"vocab_size": NaN}', "gives no vocab_size"),
    ("config.json", '{"vocab_size": 9}', "has 65 tokens, config.json a vocab_size of 9"),
    ("tokenizer.json", "{}", "tokenizer.json is no tokenizer"),
    ("tokenizer.json", b"\0\1", "tokenizer.json is no tokenizer"),
    ("tokenizer.json", None, "lacks tokenizer.json"), ("config.json", None, "lacks config.json"),
    ("tokenizer_config.json", "{", "tokenizer_config.json is no JSON"),
    ("tokenizer_config.json", b"\xff", "tokenizer_config.json is no JSON"),
    ("tokenizer_config.json", "[]", "tokenizer_config.json should hold a JSON object"),
    ("tokenizer_config.json", None, "has no chat template"),
    ("tokenizer_config.json", {"chat_template": 3}, "has no chat template"),
    ("tokenizer_config.json", {"chat_template": [{}, 3, {"name": "default"}]}, "has no chat template"),
    ("tokenizer_config.json", {"chat_template": TEMPLATE}, "names no end-of-reply token"),
    ("tokenizer_config.json", {"chat_template": TEMPLATE, "eos_token": ["x"]}, "eos_token ['x'] is no token"),
    ("tokenizer_config.json", {"chat_template": TEMPLATE, "eos_token": {"a": 1}}, "is no token"),
    ("generation_config.json", {"eos_token_id": ["x"]}, "eos_token_id 'x' is no token id"),
    ("generation_config.json", {"eos_token_id": True}, "eos_token_id True is no token id"),
    ("generation_config.json", {"eos_token_id": 10**9}, "has 1000000001 tokens"),
    ("generation_config.json", {"eos_token_id": -1}, "end-of-reply token -1"),
    ("chat_template.jinja", "{% for x in %}", "chat template of"),
    ("chat_template.jinja", "one\n{{ messages | no_such_filter }}", "no_such_filter'. (line 2)"),
    ("chat_template.jinja", "{{ nothing.at.all }}", "chat template of"),
    ("chat_template.jinja", "{{ 1 / 0 }}", "by zero"),
    ("chat_template.jinja", "{{ raise_exception('no') }}", "refuses this conversation: no"),
    ("chat_template.jinja", "{{ ''.__class__.__mro__ }}", "chat template of"),
    ("chat_template.jinja", "", "makes no prompt"), ("chat_template.jinja", b"\xff\xfe", "jinja cannot be read"),
    ("chat_template.jinja", "{{" + "(" * 5000, "nested too deeply"),
]


@pytest.mark.parametrize(("file", "content", "message"), DAMAGED)
def test_a_damaged_policy_is_found_before_anything_starts(
        bench, capsys: pytest.CaptureFixture[str], file: str, content: object, message: str) -> None:
    path = bench.folder / "policy" / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content if isinstance(content, bytes) else
                         (content if isinstance(content, str) else json.dumps(content)).encode())
    said = refuse(capsys, bench.folder, "run", "--profile", "base")
    assert said.startswith("grpo-bench: profiles.base.policy.checkpoint: ")
    assert message in said
    assert f"registry.toml:{bench.line('checkpoint')}]" in said


def test_a_whole_policy_passes_the_same_way(bench) -> None:
    assert main(["plan", "--profile", "base", "--json"]) == 0


@pytest.mark.parametrize("text", [
    "package:__main__/x", "package:sys/x", "package:", "package:grpo_bench/" + "x" * 300, "x" * 5000, "~nobody/x",
    "a\\u0000b", "/dev/null", "/dev/zero", "registry.toml", "",
])
def test_a_policy_that_is_no_folder(
        bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # as in a script; pytest's has one
    said = refuse(capsys, bench.folder, "run", "--profile", "base", f'--set=policy.checkpoint="{text}"')
    assert said.startswith("grpo-bench: --set policy.checkpoint: ")


def test_a_file_of_the_policy_that_cannot_be_read(bench, capsys: pytest.CaptureFixture[str]) -> None:
    (bench.folder / "policy" / "notes").symlink_to("/proc/self/mem")
    (bench.folder / "policy" / "pipe").symlink_to("/dev/zero")
    said = refuse(capsys, bench.folder, "run", "--profile", "base")
    assert "profiles.base.policy.checkpoint: " in said and "cannot be read: Input/output error" in said


@pytest.mark.parametrize(("lines", "blamed", "message"), [
    (["generator.use = 'deaf'"], 1, "my.generator.use: weights cannot reach the generator"),
    (["refit.transport = 'other'"], 1, "my.refit.transport: 'other' is not known to both sides"),
    (["validation.sampling.min_p = 0.1"], 1, "my.validation.sampling.min_p: generator 'steady' does not honour"),
    (["sampling.top_p = 0.9"], 1, "my.sampling.top_p: training samples from the whole distribution"),
    (["sampling.max_tokens = 129"], 1, "my.sampling.max_tokens: "),
    (["sampling.max_tokens = 60", "policy.max_context = 50"], 2, "my.policy.max_context: "),
    (["schedule = {mode = 'async', max_age = 1, in_flight = 'keep'}"], 1, "cannot 'keep' running rollouts"),
    (["validation.split = 'x'"], 1, "my.validation.split: environment 'steady' has no split 'x'"),
    (["agent.use = 'picky'"], 1, "my.agent.use: agent 'picky' needs sandbox abilities spawn"),
    (["agent.use = 'program'"], 1, "my.agent.use: agent 'program' is a program"),
    (["deterministic = true", "schedule = {mode = 'async', max_age = 1}"], 2, "my.schedule.mode: with"),
    (["deterministic = true"], 1, "my.deterministic: generator 'steady' does not promise"),
    (["validation.metric = 'pass_k'", "validation.target = 0.5", "validation.period = 11"], 3,
     "my.validation.period: no validation takes place"),
    (["generator.use = 'canned'", "grpo.loss.importance_correction = true"], 2,
     "my.grpo.loss.importance_correction: compares the generator's"),
    (["trainer.use = 'nobody'"], 1, "my.trainer.use: no trainer plugin named 'nobody'"),
    (["grpo.generations_per_prompt = 1"], 1, "my.grpo.generations_per_prompt: "),
    (["limits.concurrency = 1000000000"], 1, "my.limits.concurrency: input should be less than or equal to 65536"),
    (["grpo.prompts_per_step = 1000000000000"], 1, "less than or equal to 65536, got 1000000000000"),
    (["limits.start_s = 1e300"], 1, "my.limits.start_s: input should be less than or equal to 2592000, got 1e+300"),
    (["validation.k = true"], 1, "my.validation.k: input should be a valid integer, got true"),
])
def test_what_does_not_fit_has_its_line(
        bench, capsys: pytest.CaptureFixture[str], lines: list[str], blamed: int, message: str) -> None:
    head = (bench.folder / "registry.toml").read_text() + "[profiles.my]\nextends = 'base'\n"
    bench.write(head + "\n".join(lines))
    said = refuse(capsys, bench.folder, "run", "--profile", "my")
    assert message in said
    assert f"registry.toml:{head.count(chr(10)) + blamed}]" in said


@pytest.mark.parametrize("arguments", [["plan"], ["plan", "--explain"], ["profiles", "show"], ["profiles", "list"]])
def test_what_a_terminal_cannot_show_is_no_error(bench, arguments: list[str]) -> None:
    folder = bench.folder / os.fsdecode(b"odd\x80")
    folder.mkdir()
    (folder / "registry.toml").write_text((bench.folder / "registry.toml").read_text().replace(
        "for tests", "[/] [red] \u2603").replace('"policy"', '"../policy"'), "utf-8")
    profile = {"plan": ["--profile", "base"], "profiles": ["base"] if arguments[-1] == "show" else []}[arguments[0]]
    environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(bench.site)}
    done = subprocess.run([sys.executable, "-P", "-m", "grpo_bench", *arguments, *profile], cwd=folder, env=environment,
                          capture_output=True, text=True, timeout=60, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    assert "[/] [red] " in done.stdout


READER = '''
import json
from pathlib import Path
from grpo_bench.contract import Capabilities, InputError, Plugin, Role, Settings

class World:
    def __init__(self, context):
        pass
    def tasks(self, split):
        for number, line in enumerate(Path("tasks.jsonl").read_text().splitlines(), 1):
            try:
                json.loads(line)
            except ValueError as error:
                raise InputError(f"tasks.jsonl:{number}: {error}") from error

plugin = Plugin("reader", Role.ENVIRONMENT, "reads a file", Settings, __name__ + ":World", capabilities=Capabilities(
    splits=frozenset({"train", "validation"}), prompt=frozenset({"path"}), sandbox=frozenset({"exec"})))
'''


def test_a_task_file_with_a_broken_line(bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.distribution("test-reader", {"environment": {"reader": "plugin"}}, READER)
    (bench.folder / "tasks.jsonl").write_text('{}\n{"id": \n')
    said = refuse(capsys, bench.folder, "run", "--profile", "base", "--set", "environment.use=reader")
    assert said.startswith("grpo-bench: tasks.jsonl:2: Expecting value")
    assert "[plugin reader, role environment]" in said


@pytest.mark.parametrize("runs", ["registry.toml", "/dev/null", "/proc/none", "x" * 300, "registry.toml/x", "/sys/x",
                                  "new/" + "x" * 300, "new/newer/" + "x" * 300 + "/y"])
def test_a_place_where_no_run_folder_can_be(bench, capsys: pytest.CaptureFixture[str], runs: str) -> None:
    said = refuse(capsys, bench.folder, "run", "--profile", "base", "--runs", runs)
    assert said.startswith("grpo-bench: cannot write a run folder in ")
    assert "hint: choose another place with --runs" in said


def empty(folder: Path) -> None:
    folder.mkdir()


def lying(folder: Path) -> None:
    folder.write_text("no folder")


def with_folder(folder: Path) -> None:
    (folder / "events.jsonl").mkdir(parents=True)
    (folder / "profile.json").mkdir()


def with_pipes(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "events.jsonl")
    os.mkfifo(folder / "profile.json")


def with_devices(folder: Path) -> None:
    folder.mkdir()
    (folder / "events.jsonl").symlink_to("/dev/zero")
    (folder / "profile.json").symlink_to("/dev/zero")


def with_junk(folder: Path) -> None:
    folder.mkdir()
    for name in ("events.jsonl", "profile.json", "provenance.json"):
        (folder / name).write_bytes(b"\x00\xff\n\x80" * 50 + b"\n")


def with_depth(folder: Path) -> None:
    folder.mkdir()
    for name in ("events.jsonl", "profile.json", "provenance.json"):
        (folder / name).write_text("[" * 100_000 + "\n")


def with_others(folder: Path) -> None:
    folder.mkdir()
    for name in ("events.jsonl", "profile.json", "provenance.json"):
        (folder / name).write_text('{"seq": 0, "mine": true}\n')


def nothing(folder: Path) -> None:
    pass


def circle(folder: Path) -> None:
    folder.symlink_to(folder.name)


@pytest.mark.parametrize("verb", ["report", "resume", "check", "compare"])
@pytest.mark.parametrize("make", [empty, lying, with_folder, with_pipes, with_devices, with_junk, with_depth,
                                  with_others, nothing, circle])
def test_a_run_folder_that_is_none(workshop, capsys: pytest.CaptureFixture[str], verb: str, make) -> None:
    make(workshop.folder / "run")
    said = refuse(capsys, workshop.folder, verb, "run", *(["run"] if verb == "compare" else []))
    assert "run" in said.partition(": ")[2]


@pytest.mark.parametrize("verb", ["report", "resume", "check", "compare"])
@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000, "a\0b", "/proc/self/mem", "/dev/zero"])
def test_a_run_folder_that_cannot_be(workshop, capsys: pytest.CaptureFixture[str], verb: str, name: str) -> None:
    refuse(capsys, workshop.folder, verb, name, *([name] if verb == "compare" else []))
