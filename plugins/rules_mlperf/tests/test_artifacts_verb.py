"""``grpo-bench artifacts`` with a server of its own and small artifacts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from grpo_bench_rules_mlperf import artifacts_known as known
from grpo_bench_rules_mlperf.artifacts_known import Identity
from grpo_bench_rules_mlperf.artifacts_transfer import read_small

from grpo_bench.cli import main

from .serving import Shelf, serving

TASKS = b'{"task": 1}\n{"task": 2}\n'


def sif(arch: bytes = b"02", extra: bytes = b"") -> bytes:
    return b"#!/usr/bin/env run-singularity\n".ljust(32) + b"SIF_MAGIC\x00" + b"01\x00" + arch + b"\x00" + extra


def shard(tensors: dict[str, int], *, metadata: bool = True) -> bytes:
    """A safetensors file with tensors of so many bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}} if metadata else {}
    at = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(at)


def policy() -> dict[str, bytes]:
    index = {"metadata": {"total_size": 7}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    return {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode(),
            "m-1.safetensors": shard({"a": 3}), "m-2.safetensors": shard({"b": 4}, metadata=False)}


IMAGES = {"images/a.sif": sif(extra=b"a"), "images/r2egym/b.sif": sif(extra=b"b"), "README.md": b"about"}


class Place:
    """A folder with a site file and a server that publishes what it names."""

    def __init__(self, folder: Path, shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.shelf, self._capsys = folder, shelf, capsys
        self.site = folder / "site.toml"
        sources = {"train_data": shelf.publish("train", {"x/tasks.jsonl": TASKS}, "tasks"),
                   "sif_x86_64": shelf.publish("sif-x86", IMAGES, "x86"),
                   "sif_aarch64": shelf.publish("sif-arm", {"images/a.sif": sif(b"04")}, "arm"),
                   "policy_checkpoint": shelf.publish("policy", {f"P/{k}": v for k, v in policy().items()}, "policy")}
        self.write("train_data = 'data/train.jsonl'\nsif_dir = 'sif'\nhf_checkpoint = 'policy'\n", sources)

    def write(self, places: str, sources: dict[str, str]) -> None:
        given = "".join(f"{key} = {json.dumps(uri)}\n" for key, uri in sources.items())
        self.site.write_text(f"[artifacts]\n{places}\n[artifacts.sources]\n{given}")

    def __call__(self, action: str, *arguments: str, arch: str = "x86_64") -> tuple[int, str, str]:
        """Exit code, stdout and stderr of one command."""
        code = main(["artifacts", action, "--site", str(self.site), "--arch", arch, *arguments])
        out = self._capsys.readouterr()
        return code, out.out, out.err

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")
                if path.is_file() and "cache" not in path.parts and path != self.site}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Place]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    identity = Identity(hashlib.sha256(TASKS).hexdigest(), len(TASKS), 2)
    small = [replace(item, identity=identity) if item.name == "train_data" else
             replace(item, images=2) if item.name == "sif_dir" else item for item in known.ARTIFACTS]
    monkeypatch.setattr(known, "ARTIFACTS", tuple(small))
    with serving() as shelf:
        yield Place(tmp_path, shelf, capsys)


def test_fetch_gets_all_that_has_a_source_and_verify_agrees(place: Place) -> None:
    code, out, err = place("fetch")
    assert code == 0, err
    assert out.splitlines() == [
        f"hf_checkpoint: 4 fetched, 0 there already, 0 failed: {place.folder}/policy",
        f"train_data: 1 fetched, 0 there already, 0 failed: {place.folder}/data",
        f"sif_dir: 2 fetched, 0 there already, 0 failed, 1 of the source left out: {place.folder}/sif"]
    assert "validation_data: left out" in err
    assert place.files() == {
        "data/train.jsonl", "data/train.jsonl.md5", "sif/a.sif", "sif/r2egym/b.sif", "sif/mlcommons.md5",
        "policy/mlcommons.md5", *(f"policy/{name}" for name in policy())}
    for folder, kept in (("data", "train.jsonl.md5"), ("sif", "mlcommons.md5"), ("policy", "mlcommons.md5")):
        subprocess.run(["md5sum", "--strict", "--quiet", "-c", kept], cwd=place.folder / folder, check=True)
    code, out, _ = place("verify", "hf_checkpoint", "train_data", "sif_dir")
    assert code == 0, out
    for line in ("ok   hf_checkpoint: shards: 2 shards, 2 tensors, 7 bytes", "ok   sif_dir: number: 2 images, 2 tasks",
                 "ok   sif_dir: headers: all 2 are images for x86_64", "ok   train_data: content: 24 bytes"):
        assert line in out
    assert out.count("manifest") == 3


def test_what_is_there_is_not_fetched_again(place: Place) -> None:
    place("fetch", "train_data", "sif_dir")
    before = len(place.shelf.requests)
    (place.folder / "sif/a.sif").unlink()
    code, out, _ = place("fetch", "train_data", "sif_dir", "--jobs", "1")
    assert code == 0 and "train_data: 0 fetched, 1 there already" in out
    assert "sif_dir: 1 fetched, 1 there already" in out
    assert {path for _, path, _ in place.shelf.requests[before:] if "metadata" not in path} == {"/x86/images/a.sif"}


def test_what_is_there_and_another_is_never_written_over(place: Place) -> None:
    mine = place.folder / "data/train.jsonl"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    code, _, err = place("fetch")
    assert code == 2
    assert f"{mine} is not what train_data should be by its manifest" in err and "move what is there" in err
    assert mine.read_bytes() == b"mine"
    assert not (place.folder / "sif").exists() and not (place.folder / "policy").exists()


def test_the_architecture_chooses_the_images(place: Place) -> None:
    code, out, _ = place("fetch", "sif_dir", arch="aarch64")
    assert code == 0 and "sif_dir: 1 fetched" in out
    code, out, _ = place("verify", "sif_dir", arch="x86_64")
    assert code == 1 and "FAIL sif_dir: number: 1 images, 2 tasks" in out
    assert "FAIL sif_dir: headers: 1 of 1 cannot be used: a.sif: not for x86_64" in out


def test_one_file_that_is_not_there_stops_no_other_and_no_manifest_is_left(place: Place) -> None:
    del place.shelf.files["/x86/images/a.sif"]
    code, out, err = place("fetch", "sif_dir", "train_data")
    assert code == 1
    assert "train_data: 1 fetched" in out and "sif_dir: 1 fetched, 0 there already, 1 failed" in out
    assert "/x86/images/a.sif: the server answered 404" in err
    assert "sif/mlcommons.md5" not in place.files() and "sif/r2egym/b.sif" in place.files()


def test_no_room_is_said_before_anything_comes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(place.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=100))
    code, _, err = place("fetch")
    total = sum(map(len, (TASKS, IMAGES["images/a.sif"], IMAGES["images/r2egym/b.sif"], *policy().values())))
    assert code == 2 and f"{total} bytes are to come and {place.folder} has room for 100 bytes" in err
    assert place.files() == set()


def test_what_has_begun_counts_as_room_that_is_taken_already(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(place.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=len(TASKS) - 10))
    (place.folder / "data").mkdir()
    (place.folder / "data/train.jsonl.part").write_bytes(TASKS[:10])
    assert place("fetch", "train_data")[0] == 0


@pytest.mark.parametrize("path", ["../evil.sif", "/evil.sif", "images/../../evil.sif"])
def test_a_manifest_that_leads_out_fetches_nothing(place: Place, path: str) -> None:
    place.shelf.files["/metadata/sif-x86.md5"] = f"{'0' * 32}  {path}\n".encode()
    code, _, err = place("fetch")
    assert code == 2 and repr(path) in err and "sif-x86.md5, line 1" in err
    assert place.files() == set()


def test_a_manifest_that_breaks_off_is_read_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_bench_rules_mlperf.artifacts_cli.read_small", partial(read_small, delay_s=0))
    place.shelf.cuts["/metadata/sif-x86.md5"] = [10, 40]
    code, out, _ = place("fetch", "sif_dir")
    assert code == 0 and "sif_dir: 2 fetched" in out


def test_a_manifest_that_is_cut_off_is_refused_or_leads_to_no_file(place: Place) -> None:
    whole = place.shelf.files["/metadata/sif-x86.md5"]
    first = whole.index(b"\n") + 1
    place.shelf.files["/metadata/sif-x86.md5"] = whole[:first + 20]
    code, _, err = place("fetch", "sif_dir")
    assert code == 2 and "sif-x86.md5, line 2: no MD5 and path" in err and "is the manifest cut off?" in err
    assert place.files() == set()
    place.shelf.files["/metadata/sif-x86.md5"] = whole[:first + 50]
    code, _, err = place("fetch", "sif_dir")
    assert code == 1 and "the server answered 404" in err and "sif/mlcommons.md5" not in place.files()


def test_links_inside_are_not_followed_to_write(place: Place) -> None:
    elsewhere = place.folder / "elsewhere"
    elsewhere.mkdir()
    (place.folder / "sif").mkdir()
    (place.folder / "sif/r2egym").symlink_to(elsewhere)
    code, _, err = place("fetch", "sif_dir")
    assert code == 2 and f"{place.folder}/sif/r2egym is a link" in err
    (place.folder / "sif/r2egym").unlink()
    (place.folder / "sif/a.sif").symlink_to(elsewhere / "nothing")
    code, _, err = place("fetch", "sif_dir")
    assert code == 2 and f"{place.folder}/sif/a.sif is a link" in err
    assert list(elsewhere.iterdir()) == []


def test_links_to_what_should_be_there_are_there(place: Place) -> None:
    store = place.folder / "hub/models--o--n/blobs"
    snapshot = place.folder / "hub/models--o--n/snapshots/98d1a504ba52e88924b3a3a008447cf2fdbd518c"
    store.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name, content in policy().items():
        (store / name).write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    uri = place.shelf.publish("p", policy(), "p")
    place.write(f"hf_checkpoint = '{snapshot}'", {"policy_checkpoint": uri})
    code, out, _ = place("fetch", "hf_checkpoint")
    assert code == 0 and "0 fetched, 4 there already" in out
    code, out, _ = place("verify", "hf_checkpoint")
    assert code == 0 and "ok   hf_checkpoint: revision: revision 98d1a504" in out
    (store / "m-2.safetensors").unlink()
    code, out, _ = place("verify", "hf_checkpoint")
    assert code == 1 and "m-2.safetensors: No such file" in out


def test_a_folder_where_a_file_should_go_is_in_the_way(place: Place) -> None:
    (place.folder / "data/train.jsonl").mkdir(parents=True)
    code, _, err = place("fetch", "train_data")
    assert code == 2 and f"{place.folder}/data/train.jsonl is no file" in err


def test_a_killed_fetch_is_taken_up_by_the_next(place: Place) -> None:
    content = os.urandom(3 * 2**20)
    uri = place.shelf.publish("train", {"tasks.jsonl": content}, "big")
    place.write("train_data = 'data/train.jsonl'\n", {"train_data": uri})
    place.shelf.held = "/big/tasks.jsonl"
    command = [sys.executable, "-m", "grpo_bench", "artifacts", "fetch", "--site", str(place.site), "--arch", "x86_64"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert place.shelf.reached.wait(60)
        part = place.folder / "data/train.jsonl.part"
        while not part.exists() or part.stat().st_size < 2**20:
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    begun = part.stat().st_size
    place.shelf.held = ""
    place.shelf.go.set()
    code, _, err = place("fetch", "train_data")
    assert code == 0, err
    assert (place.folder / "data/train.jsonl").read_bytes() == content
    assert place.shelf.got("/big/tasks.jsonl") == [None, f"bytes={begun}-"]


def test_an_interrupted_fetch_says_so_and_keeps_what_came(place: Place) -> None:
    content = os.urandom(3 * 2**20)
    uri = place.shelf.publish("train", {"tasks.jsonl": content}, "big")
    place.write("train_data = 'data/train.jsonl'\n", {"train_data": uri})
    place.shelf.held = "/big/tasks.jsonl"
    command = [sys.executable, "-m", "grpo_bench", "artifacts", "fetch", "--site", str(place.site), "--arch", "x86_64"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert place.shelf.reached.wait(60)
        process.send_signal(signal.SIGINT)
        place.shelf.go.set()
        _, err = process.communicate()
    assert process.returncode == 130 and "grpo-bench: interrupted" in err and "Traceback" not in err


def test_a_checkpoint_is_checked_shard_by_shard(place: Place) -> None:
    place("fetch", "hf_checkpoint")
    folder = place.folder / "policy"
    (folder / "mlcommons.md5").unlink()

    def verdict() -> str:
        code, out, _ = place("verify", "hf_checkpoint")
        assert code == 1
        return out

    spoil: list[tuple[str, Callable[[bytes], bytes], str]] = [
        ("m-1.safetensors", lambda old: old[:-1], "m-1.safetensors: "),
        ("m-1.safetensors", lambda old: old + b"x", "bytes, should be"),
        ("m-1.safetensors", lambda old: b"", "no head"), ("m-1.safetensors", lambda old: b"\xff" * 20, "no head"),
        ("m-1.safetensors", lambda old: shard({"c": 3}), "2 tensors are not as in the index: a, c"),
        ("m-1.safetensors", lambda old: shard({"a": 5}), "tensors have 9 bytes, and the index says 7"),
        ("model.safetensors.index.json", lambda old: b"{}", "cannot be read: lacks 'weight_map'"),
        ("model.safetensors.index.json", lambda old: b"[", "cannot be read"),
    ]
    for name, change, message in spoil:
        old = (folder / name).read_bytes()
        (folder / name).write_bytes(change(old))
        assert message in verdict()
        (folder / name).write_bytes(old)
    assert place("verify", "hf_checkpoint")[0] == 0


def test_another_data_set_is_told_by_its_size_and_rows(place: Place) -> None:
    file = place.folder / "data/train.jsonl"
    file.parent.mkdir()
    file.write_bytes(TASKS + b'{"task": 3}\n')
    code, out, _ = place("verify", "train_data")
    assert code == 1 and "FAIL train_data: content: 36 bytes and 3 rows, should be 24 and 2" in out
    file.write_bytes(TASKS.replace(b"2", b"3"))
    code, out, _ = place("verify", "train_data", "--json")
    (finding,) = json.loads(out)["train_data"]
    assert code == 1 and f"should be {hashlib.sha256(TASKS).hexdigest()}" in finding["message"]


def test_what_was_fetched_and_changed_is_told_by_the_kept_manifest(place: Place) -> None:
    place("fetch", "sif_dir")
    (place.folder / "sif/a.sif").write_bytes(sif(extra=b"z"))
    code, out, _ = place("verify", "sif_dir")
    assert code == 1 and "FAIL sif_dir: manifest mlcommons.md5" in out and "a.sif" in out


def test_list_says_what_is_needed_and_what_is_there(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place("fetch", "train_data")
    code, out, _ = place("list")
    assert code == 0
    assert f"    {place.folder}/data/train.jsonl: 1 file, 24 bytes" in out
    assert f"    {place.folder}/policy: not there" in out and "set artifacts.megatron_cache in the site file" in out
    assert "from nowhere: set artifacts.sources.validation_data to fetch it" in out
    items = {item["name"]: item for item in json.loads(place("list", "--json")[1])["artifacts"]}
    assert (items["train_data"]["there"], items["train_data"]["bytes"], items["sif_dir"]["there"]) == (True, 24, False)
    monkeypatch.chdir(place.folder)
    assert main(["artifacts", "list"]) == 0


def test_list_for_a_profile_has_what_it_refers_to(place: Place) -> None:
    registry = place.folder / "registry.toml"
    registry.write_text("[profiles.mine]\nextends = 'mock'\n[profiles.mine.policy]\n"
                        "checkpoint = 'site:artifacts.hf_checkpoint'\n[profiles.mine.trainer]\n"
                        "cache = 'site:artifacts.megatron_cache'\n")
    code, out, _ = place("list", "--profile", "mine", "--registry", str(registry), "--json")
    assert code == 0 and [item["name"] for item in json.loads(out)["artifacts"]] == ["hf_checkpoint", "megatron_cache"]


@pytest.mark.parametrize(("arguments", "message"), [
    (["fetch", "train"], "no artifact is called 'train' (there is: hf_checkpoint, "),
    (["fetch", "validation_data"], "validation_data cannot be fetched: "),
    (["fetch", "megatron_cache"], "megatron_cache is not fetched: it is the policy in Megatron's form"),
    (["verify", "trains"], "no artifact is called 'trains'"),
])
def test_names_that_make_no_sense(place: Place, arguments: list[str], message: str) -> None:
    code, _, err = place(*arguments)
    assert code == 2 and message in err


def test_without_a_site_file_nothing_can_be_fetched(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["artifacts", "fetch"]) == 2 and main(["artifacts", "verify"]) == 2
    assert capsys.readouterr().err.count("no site file: it says where artifacts lie") == 2


def test_a_place_that_the_site_lacks_is_said(place: Place) -> None:
    place.write("", {"train_data": "https://store.example/train.uri"})
    code, _, err = place("fetch", "train_data")
    assert code == 2 and f"{place.site} does not set artifacts.train_data" in err
    code, out, _ = place("verify", "train_data")
    assert code == 1 and "FAIL train_data: there: the site file does not say where" in out


@pytest.mark.parametrize("jobs", ["0", "65", "x"])
def test_how_many_at_once_is_bounded(place: Place, jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        place("fetch", "--jobs", jobs)
    assert "should be an integer from 1 to 64" in capsys.readouterr().err


def test_a_pipe_in_the_place_of_an_artifact_is_named_and_not_waited_for(tmp_path: Path,
                                                                       capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "images").mkdir()
    for name in ("tasks", "images/a.sif"):
        os.mkfifo(tmp_path / name)
    site = tmp_path / "site.toml"
    site.write_text("[artifacts]\ntrain_data = 'tasks'\nsif_dir = 'images'\n")
    assert main(["artifacts", "verify", "train_data", "sif_dir", "--site", str(site)]) == 1
    said = capsys.readouterr().out
    assert f"{tmp_path / 'tasks'} is no file" in said and "a.sif: no file" in said
