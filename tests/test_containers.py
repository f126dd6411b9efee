"""The recipe of the image: what it refuses, what it calls, and its steps, in a folder of their own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_rules_mlperf.package import revisions
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from grpo_bench.registry.statement import container

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "containers"
STEPS = RECIPE / "steps"
COMMIT, DIGEST = "0123456789abcdef" * 2 + "01234567", "sha256:" + "0f" * 32
BASE, OTHER = f"cuda:13@{DIGEST}", f"debian:13@{DIGEST}"
SCRIPTS = [RECIPE / "build", RECIPE / "lock", *sorted(STEPS.glob("*.sh"))]


def run(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> tuple[int, str, str]:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})}, cwd=cwd,
                          check=False)
    return done.returncode, done.stdout, done.stderr


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(("arguments", "message"), [
    (["", BASE], "revision: which commit is the image made of?"),
    (["main", BASE], "should be a full commit hash, 40 hex digits, as git"),
    ([COMMIT[:12], BASE], f"got '{COMMIT[:12]}'"),
    ([COMMIT.upper(), BASE], "should be a full commit hash"),
    ([COMMIT, "cuda:13"], "base: 'cuda:13' names no digest"),
    ([COMMIT, "cuda:13@sha256:0f"], "base: should be NAME:TAG@sha256: and 64 hexadecimal digits"),
    ([COMMIT, BASE, "debian:13"], "base: 'debian:13' names no digest"),
])
def test_what_no_image_is_built_of(arguments: list[str], message: str) -> None:
    code, _, error = run(STEPS / "check.sh", *arguments)
    assert (code, message in error, error.count("\n")) == (2, True, 1)


def test_the_recipe_s_own_bases_have_digests() -> None:
    bases = re.findall(r"^ARG (?:BASE|DEBIAN)=(\S+)$", (RECIPE / "Dockerfile").read_text(), re.MULTILINE)
    assert len(bases) == 2
    assert run(STEPS / "check.sh", COMMIT, *bases) == (0, "", "")


def test_every_step_is_there_and_is_used() -> None:
    used = set(re.findall(r"(?:\./|/steps/)(\w+\.(?:sh|py))", (RECIPE / "Dockerfile").read_text()))
    files = {file.name for file in STEPS.iterdir() if file.suffix in (".sh", ".py")}
    assert used == files | {"get_apptainer.sh"}
    assert all(os.access(file, os.X_OK) for file in (*SCRIPTS, STEPS / "provenance.py", RECIPE / "needs.py"))


@pytest.mark.parametrize("tool", ["shellcheck", "hadolint"])
def test_what_a_linter_says(tool: str) -> None:
    found = shutil.which(tool, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if found is None:
        pytest.skip(f"no {tool} on PATH")
    assert run(found, *(SCRIPTS if tool == "shellcheck" else [RECIPE / "Dockerfile"])) == (0, "", "")


# ---- containers/build

@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the recipe in it, in one commit."""
    root = tmp_path / "a checkout"
    shutil.copytree(RECIPE, root / "containers", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".gitattributes", root)
    who = ("-c", "user.name=t", "-c", "user.email=t@t")
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "all"]):
        assert run("git", *command, cwd=root)[0] == 0
    return root


def head(root: Path) -> str:
    return run("git", "rev-parse", "HEAD", cwd=root)[1].strip()


def test_a_dry_run_prints_the_call(checkout: Path) -> None:
    code, out, error = run(checkout / "containers/build", "--platform", "linux/arm64", "--revision", head(checkout),
                           "--base", BASE, "--environments", "megatron vllm", "--engine", "podman", "--dry-run")
    date = run("git", "log", "-1", "--format=%ct", cwd=checkout)[1].strip()
    assert (code, error) == (0, "")
    archive, call = re.sub(r"/\S*/tmp\.\w+", "CONTEXT", out).splitlines()
    assert archive == f"git -C {str(checkout).replace(' ', chr(92) + ' ')} archive {head(checkout)} | tar -x -C CONTEXT"
    assert call.split() == [
        "podman", "build", "--platform", "linux/arm64", "--tag", f"grpo-bench:{head(checkout)}-arm64",
        "--build-arg", f"REVISION={head(checkout)}", "--build-arg", f"SOURCE_DATE_EPOCH={date}",
        "--build-arg", f"BASE={BASE}", "--build-arg", "ENVIRONMENTS=megatron\\", "vllm",
        "--file", "CONTEXT/containers/Dockerfile", "CONTEXT"]


def test_the_context_is_the_commit_and_nothing_else(checkout: Path, tmp_path: Path) -> None:
    (checkout / ".git/info/exclude").write_text("/scratch\n")
    (checkout / "scratch").write_text("in no commit")
    program(tmp_path / "bin", "docker",
            f'cp -a "${{@: -1}}" {tmp_path}/seen; printf "%s\\n" "$@" > {tmp_path}/arguments')
    (tmp_path / "pip.conf").touch()
    code, _, error = run(checkout / "containers/build", "--platform", "linux/amd64", "--revision", head(checkout),
                         "--pip-conf", tmp_path / "pip.conf", "--tag", "bench:1",
                         env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"})
    assert (code, error) == (0, "")
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[:7] == ["buildx", "build", "--load", "--platform", "linux/amd64", "--tag", "bench:1"]
    assert f"id=pip,src={tmp_path}/pip.conf" in arguments and not any("BASE=" in one for one in arguments)
    context = Path(arguments[-1])
    assert not context.exists()
    seen = {path.name for path in (tmp_path / "seen").iterdir()}
    assert seen == {".gitattributes", "containers"}
    step = tmp_path / "seen/containers/steps/commit.sh"
    assert run(step, tmp_path / "seen/containers", head(checkout)) == (0, "", "")
    code, _, error = run(step, tmp_path / "seen/containers", COMMIT)
    assert code == 2 and f"of commit {head(checkout)}, and {COMMIT} was asked for" in error
    code, _, error = run(step, checkout / "containers", head(checkout))
    assert code == 2 and "a working tree and no commit; build the image with containers/build" in error


def test_what_the_build_refuses(checkout: Path) -> None:
    build, given = checkout / "containers/build", {"--platform": "linux/arm64", "--revision": head(checkout)}

    def refusal(**changed: str) -> str:
        options = {**given, **{f"--{name.replace('_', '-')}": value for name, value in changed.items()}}
        code, out, error = run(build, "--dry-run", *(word for pair in options.items() for word in pair))
        assert (code, out) == (2, "")
        return error

    assert "should be linux/arm64 or linux/amd64, one image for each" in refusal(platform="linux/arm64,linux/amd64")
    assert "which commit is the image made of?" in refusal(revision="")
    assert f"has no commit {COMMIT} with a recipe in it" in refusal(revision=COMMIT)
    assert "names no digest" in refusal(base="cuda:13")
    assert "there is no file /nowhere" in refusal(pip_conf="/nowhere")
    assert "should be docker or podman; got 'lxc'" in refusal(engine="lxc")
    assert "unknown argument '--push'" in refusal(push="yes")
    (checkout / "containers/needs.py").write_text("")
    assert "has changes that commit" in (error := refusal()) and "M containers/needs.py" in error


def test_its_help_is_its_head(checkout: Path) -> None:
    code, out, _ = run(checkout / "containers/build", "--help")
    assert code == 0 and out.startswith("  containers/build --platform") and out.count("\n  --") == 8


# ---- locks

def lock(name: str) -> dict[str, list[Requirement]]:
    pins: dict[str, list[Requirement]] = {}
    for line in re.findall(r"^[a-zA-Z].*?(?= \\$)", (RECIPE / f"{name}.lock").read_text(), re.MULTILINE):
        pins.setdefault(canonicalize_name(Requirement(line).name), []).append(Requirement(line))
    return pins


def pinned(pins: list[Requirement]) -> str:
    found = [pin for pin in pins if pin.marker is None or pin.marker.evaluate({"python_full_version": "3.11.18"})]
    return str(found[0].specifier).removeprefix("==")


def test_the_lock_has_what_every_distribution_needs() -> None:
    spec = spec_from_file_location("needs", RECIPE / "needs.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    pins = lock("engine")
    lines = [Requirement(line) for line in module.needs()]
    missing = [str(line) for line in lines if canonicalize_name(line.name) not in pins]
    assert not missing, "run containers/lock"
    found = {line: pinned(pins[canonicalize_name(line.name)]) for line in lines}
    assert [str(line) for line, version in found.items() if not line.specifier.contains(version)] == []
    every = {tomllib.loads(file.read_text())["project"]["name"] for file in ROOT.glob("plugins/*/pyproject.toml")}
    assert not every & pins.keys() and {"numpy", "torch", "mlperf-logging", "ray"} <= pins.keys()


@pytest.mark.parametrize("name", ["engine", "tools"])
def test_a_lock_agrees_with_what_is_developed_with(name: str) -> None:
    pins = lock(name)
    wanted = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1].isalpha()]
    assert {line.name: pinned(pins[line.name]) for line in wanted if line.name in pins} == {
        line.name: str(line.specifier).removeprefix("==") for line in wanted if line.name in pins}
    text = (RECIPE / f"{name}.lock").read_text()
    assert text.count("--hash=sha256:") >= sum(map(len, pins.values())) and "://" not in text


# ---- the steps

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "acme-{name}"
version = "1.2"
dependencies = [{needs}]
[tool.hatch.build.targets.wheel]
packages = ["acme_{name}"]
"""


class Image:
    """What the steps leave behind, in a folder that stands for the image."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.engine, self.wheels = folder, folder / "engine", folder / "wheels"
        self.env = {"PATH": f"{folder}/bin:{self.engine}/bin:{os.environ['PATH']}",
                    "GRPO_BENCH_ENVS": str(folder / "envs"), "SOURCE_DATE_EPOCH": "1700000000", "PIP_NO_INDEX": "1",
                    "PIP_FIND_LINKS": str(folder / "index"), "PIP_CONFIG_FILE": "/dev/null"}
        for name, needs in (("core", '"acme-library"'), ("plugins/one", '"acme-core"'), ("library", "")):
            word = name.rpartition("/")[2]
            (folder / name / f"acme_{word}").mkdir(parents=True)
            (folder / name / f"acme_{word}/__init__.py").write_text(f"NAME = {word!r}\n")
            (folder / name / "pyproject.toml").write_text(PROJECT.format(name=word, needs=needs))
        program(folder / "bin", "apptainer", "echo apptainer version 1.4.5")
        program(folder / "bin", "dpkg-query", 'printf "b:all 2\\na:all 1\\n"')
        program(folder / "bin", "grpo-bench", """
            umask 077; build=$GRPO_BENCH_ENVS/$3-0123456789ab-cp312
            printf '{"lock": "%064d", "python": "3.12.16"}' 7 > "$build.json"
            echo {} > "$build.inventory.json"; touch "$GRPO_BENCH_ENVS/$3.held\"""")

    def step(self, name: str, *arguments: str | Path, **env: str) -> tuple[int, str, str]:
        return run(STEPS / name, *arguments, env={**self.env, **env}, cwd=self.folder)

    def provenance(self, *arguments: str, **env: str) -> tuple[int, str, str]:
        return self.step("provenance.py", "--revision", COMMIT, "--base", BASE, "--base", OTHER, "--recipe", RECIPE,
                         "--wheels", self.wheels, "--out", self.folder / "out.json", *arguments, **env)

    def said(self) -> dict[str, Any]:
        return json.loads((self.folder / "out.json").read_text())


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Libraries from a lock with hashes, two distributions as wheels, an environment."""
    image = Image(tmp_path_factory.mktemp("image"))
    assert run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w",
               image.folder / "index", image.folder / "library", env=image.env)[0] == 0
    sha256 = hashlib.sha256(next((image.folder / "index").glob("*.whl")).read_bytes()).hexdigest()
    (image.folder / "libraries.lock").write_text(f"acme-library==1.2 \\\n    --hash=sha256:{sha256}\n")
    assert image.step("wheels.sh", sys.executable, image.folder, image.wheels) == (0, "", "")
    assert image.step("libraries.sh", sys.executable, image.engine, sys.executable,
                      image.folder / "libraries.lock") == (0, "", "")
    assert image.step("install.sh", sys.executable, image.engine, image.wheels)[0] == 0
    assert image.step("environments.sh", "openhands") == (0, "", "")
    return image


def test_what_an_image_says_about_itself(image: Image) -> None:
    assert image.provenance() == (0, "", "")
    said = image.said()
    recipe = said.pop("recipe_sha256")
    release, packages = said["system"].pop("release"), hashlib.sha256(b"a:all 1\nb:all 2").hexdigest()
    assert re.fullmatch("[0-9a-f]{64}", recipe) and release
    files = {name: next(image.wheels.glob(f"acme_{name}-*")) for name in ("core", "one")}
    assert said == {
        "schema": 1, "revision": COMMIT, "built": "2023-11-14T22:13:20+00:00", "architecture": os.uname().machine,
        "base": BASE, "base_digest": DIGEST, "other_bases": [OTHER],
        "locks": {**{name: hashlib.sha256((RECIPE / f"{name}.lock").read_bytes()).hexdigest()
                     for name in ("engine", "tools")}, "openhands": f"{7:064d}"},
        "environments": {"openhands": {"build": "openhands-0123456789ab-cp312", "lock_sha256": f"{7:064d}",
                                       "python": "3.12.16"}},
        "distributions": {f"acme-{name}": {"version": "1.2", "wheel": file.name,
                                           "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
                          for name, file in files.items()},
        "system": {"packages": 2, "packages_sha256": packages, "apptainer": "apptainer version 1.4.5"}}
    code = "import acme_core, acme_library, acme_one; print(acme_core.__file__)"
    assert run(image.engine / "bin/python", "-c", code)[1].startswith(str(image.engine))


def test_every_user_can_read_what_was_built(image: Image) -> None:
    files = list((image.folder / "envs").iterdir())
    assert len(files) == 2 and all(file.stat().st_mode & 0o444 == 0o444 for file in files)


def test_a_run_and_a_package_read_what_it_says(image: Image) -> None:
    assert image.provenance()[0] == 0
    found = container(image.folder / "out.json")
    assert revisions({"sources": {}, "installs": {}, "container": found}) == [COMMIT]


def test_equal_images_have_equal_bytes_whenever_they_are_built(image: Image, tmp_path: Path) -> None:
    assert image.step("wheels.sh", sys.executable, image.folder, tmp_path / "again") == (0, "", "")
    first, second = ({file.name: file.read_bytes() for file in folder.glob("*.whl")}
                     for folder in (image.wheels, tmp_path / "again"))
    assert first == second and len(first) == 2
    assert image.provenance()[0] == 0
    before = (image.folder / "out.json").read_bytes()
    recipe = shutil.copytree(RECIPE, tmp_path / "recipe")
    (recipe / "revision").write_text(COMMIT)
    assert image.provenance("--recipe", str(recipe))[0] == 0
    assert (image.folder / "out.json").read_bytes() == before
    (recipe / "steps/system.sh").write_text("#!/bin/bash\n")
    assert image.provenance("--recipe", str(recipe))[0] == 0
    assert image.said()["recipe_sha256"] != json.loads(before)["recipe_sha256"]


@pytest.mark.parametrize(("arguments", "env", "message"), [
    (("--revision", COMMIT[:7]), {}, "should be a full commit hash"),
    (("--base", "debian:13"), {}, "names no digest"),
    ((), {"SOURCE_DATE_EPOCH": "yesterday"}, "SOURCE_DATE_EPOCH: should be seconds since 1970"),
    ((), {"SOURCE_DATE_EPOCH": ""}, "SOURCE_DATE_EPOCH: should be seconds since 1970"),
    ((), {"GRPO_BENCH_ENVS": ""}, "GRPO_BENCH_ENVS should name a folder"),
    (("--wheels", "/nowhere"), {}, "there are no wheels in /nowhere"),
])
def test_an_image_that_cannot_say_what_it_is(image: Image, arguments: tuple[str, ...], env: dict[str, str],
                                             message: str) -> None:
    (image.folder / "out.json").unlink(missing_ok=True)
    code, out, error = image.provenance(*arguments, **env)
    assert (code, out) == (2, "") and message in error
    assert not (image.folder / "out.json").exists()


def test_software_that_is_not_that_of_the_wheels(image: Image, tmp_path: Path) -> None:
    other = shutil.copytree(image.wheels, tmp_path / "wheels")
    wheel = next(other.glob("acme_one-*"))
    wheel.write_bytes(wheel.read_bytes() + b"changed")
    code, _, error = image.provenance("--wheels", str(other))
    assert code == 2 and error == f"acme-one is not installed from {wheel}\n"
    wheel.rename(other / "acme_two-1.2-py3-none-any.whl")
    assert image.provenance("--wheels", str(other))[2] == "acme-two is not installed\n"
    record = next(image.engine.glob("lib/*/site-packages/acme_library-*")) / "direct_url.json"
    record.write_text(json.dumps({"url": "file:///home/me/library", "dir_info": {"editable": True}}))
    code, _, error = image.provenance()
    record.unlink()
    assert code == 2 and error.startswith("acme-library is installed from file:///home/me/library, and an image has")


def test_a_library_whose_hash_is_another_is_not_installed(image: Image, tmp_path: Path) -> None:
    (tmp_path / "wrong.lock").write_text(f"acme-library==1.2 \\\n    --hash=sha256:{'0' * 64}\n")
    code, _, error = image.step("libraries.sh", sys.executable, tmp_path / "engine", sys.executable,
                                tmp_path / "wrong.lock")
    assert code != 0 and "THESE PACKAGES DO NOT MATCH THE HASHES" in error
