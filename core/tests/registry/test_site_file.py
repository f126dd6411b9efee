"""The site file: what it may say, where its values go, and what a plan says of those it lacks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from grpo_bench.contract import Missing, RegistryError
from grpo_bench.registry import make_plan, read_site_file, resolve, survey
from grpo_bench.registry.references import reference, references
from grpo_bench.registry.site import KEYS

POLICY = 'policy.checkpoint="site:artifacts.hf_checkpoint"'


def test_paths_are_relative_to_the_file_and_filled_in(bench, monkeypatch) -> None:
    monkeypatch.setenv("DATA", "/data")
    monkeypatch.setenv("HOME", "/home/me")
    file = bench.write("[artifacts]\nhf_checkpoint = 'policy'\ntrain_data = '$DATA/a.jsonl'\n"
                       "validation_data = '~/b.jsonl'\nsif_dir = '${DATA}/sif'\n", "sites/here.toml")
    site = read_site_file(Path("sites/here.toml"))
    assert site is not None and site.artifacts.hf_checkpoint == str(file.parent / "policy")
    assert (site.artifacts.train_data, site.artifacts.validation_data) == ("/data/a.jsonl", "/home/me/b.jsonl")
    assert (site.get("artifacts.sif_dir"), site.line("artifacts.sif_dir")) == ("/data/sif", 5)
    assert (site.get("artifacts.megatron_cache"), site.get("artifacts"), site.get("x.y")) == (None, None, None)


def test_the_environment_names_the_file_and_the_argument_goes_first(bench, monkeypatch) -> None:
    one, other = (bench.write(f"[system]\nsubmitter = '{name}'\n", f"{name}.toml") for name in ("one", "other"))
    assert read_site_file() is None
    monkeypatch.setenv("GRPO_BENCH_SITE", str(one))
    assert read_site_file().system.submitter == "one"  # pyright: ignore[reportOptionalMemberAccess]
    assert read_site_file(other).system.submitter == "other"  # pyright: ignore[reportOptionalMemberAccess]
    assert resolve("base").site == read_site_file(one)
    monkeypatch.setenv("GRPO_BENCH_SITE", "")
    assert read_site_file() is None
    monkeypatch.setenv("GRPO_BENCH_SITE", "nowhere.toml")
    with pytest.raises(RegistryError, match=r"nowhere.toml: cannot be read: No such file") as caught:
        read_site_file()
    assert "--site" in caught.value.hint


@pytest.mark.parametrize(("text", "message"), [
    ("[artifact]\n", r"artifact: unknown key; did you mean 'artifacts'\? .* \[.*site.toml:1\]"),
    ("[artifacts]\ntrain_dta = 'x'\n", r"artifacts.train_dta: unknown key; did you mean 'train_data'\?.*site.toml:2\]"),
    ("[artifacts]\n\ntrain_data = 3\n", r"artifacts.train_data: input should be a valid string, got 3 \[.*toml:3\]"),
    ("[artifacts]\ntrain_data = ''\n", r"artifacts.train_data: string should have at least 1 character"),
    ('[artifacts]\ntrain_data = "\\u0000x"\n', r"artifacts.train_data: string should match pattern"),
    ("[artifacts]\ntrain_data = '$NOT_SET/x'\n", r"artifacts.train_data: \$NOT_SET is not set \[.*site.toml:2\]"),
    ("[artifacts]\ntrain_data = 'site:artifacts.sif_dir'\n", "a site file cannot refer to a site file"),
    ("artifacts = 3\n", "artifacts: input should be a"),
    ("[artifacts.sources]\ntrain_data = 'ftp://x/y.uri'\n", r"sources.train_data: string should match.*toml:2\]"),
    ("[system]\nstatus = 'soon'\n", "system.status: input should be 'onprem', 'cloud', 'preview' or 'research'"),
    ("[system]\nnumber_of_nodes = true\n", "number_of_nodes: input should be a valid integer, got true"),
    ("[system]\nnumber_of_nodes = 99999999\n", "number_of_nodes: input should be less than or equal to"),
    ("[launch]\npartitoin = 'x'\n", r"launch.partitoin: unknown key; did you mean 'partition'\?"),
    ("[launch]\ncontainer_digest = 'sha256:12'\n", "container_digest: string should match pattern"),
    ("[launch.environment]\n'A B' = '1'\n", "launch.environment"),
    ("[artifacts]\nx = [[[\n", r"site.toml:2: no valid TOML"),
])
def test_what_is_wrong_says_where(bench, text: str, message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        read_site_file(bench.write(text, "site.toml"))


def test_a_profile_takes_its_values_and_says_where_they_stand(bench) -> None:
    file = bench.write("[artifacts]\nhf_checkpoint = 'policy'\n\n[system]\nnumber_of_nodes = 7\nsubmitter = 'me'\n",
                       "site.toml")
    names = "trainer.names=['a', 'site:system.submitter']"
    resolved = resolve("base", site=file, overrides=[POLICY, "trainer.warmup=site:system.number_of_nodes", names])
    plan = make_plan(resolved)
    assert plan.checkpoint.checkpoint == bench.folder / "policy"
    assert (plan.resolved["trainer"]["warmup"], plan.resolved["trainer"]["names"]) == (7, ["a", "me"])
    origins = {item.key: item.origin for item in plan.explained}
    origin = origins["policy.checkpoint"]
    assert (origin.layer, origin.file, origin.line) == ("site", file, 2)
    assert str(origins["trainer.names[1]"]) == f"site {file}:6 (system.submitter)"
    assert origins["trainer.names"].layer == "--set" and "trainer.names[0]" not in origins


def test_a_wrong_value_of_the_site_is_an_error_on_its_line(bench) -> None:
    file = bench.write("[system]\nsubmitter = 'me'\n", "site.toml")
    with pytest.raises(RegistryError, match=r"trainer.warmup: input should be a valid integer.*site.toml:2\]"):
        make_plan(resolve("base", site=file, overrides=["trainer.warmup=site:system.submitter"]))


def test_what_no_site_gives_is_missing_with_all_who_use_it(bench) -> None:
    overrides = [POLICY, "trainer.names=['site:system.submitter', 'site:artifacts.hf_checkpoint']",
                 "trainer.warmup=site:system.number_of_nodes", "trainer.mode=site:system.status"]
    plan = survey(resolve("base", overrides=overrides))
    lines = [line for line in plan.missing if line.startswith("site: ")]
    todo = "set it in a site file and name that with --site or $GRPO_BENCH_SITE"
    assert lines == [
        f"site: artifacts.hf_checkpoint (policy.checkpoint, trainer.names[1]): {todo}",
        f"site: system.submitter (trainer.names[0]): {todo}", f"site: system.number_of_nodes (trainer.warmup): {todo}",
        f"site: system.status (trainer.mode): {todo}"]
    assert not any("/site:" in line for line in plan.missing)
    trainer = plan.resolved["trainer"]
    assert trainer["names"] == ["site:system.submitter", "site:artifacts.hf_checkpoint"]
    assert (trainer["warmup"], trainer["mode"]) == (0, None)
    with pytest.raises(Missing, match=r"site: system.submitter"):
        make_plan(resolve("base", overrides=overrides))


def test_a_key_that_the_site_file_lacks_is_to_be_set_there(bench) -> None:
    file = bench.write("[system]\nsubmitter = 'me'\n", "site.toml")
    plan = survey(resolve("base", site=file, overrides=[POLICY, "trainer.names=['site:system.submitter']"]))
    assert [line for line in plan.missing if line.startswith("site: ")] == [
        f"site: artifacts.hf_checkpoint (policy.checkpoint): set it in {file}"]


def test_unresolved_references_hide_no_error(bench) -> None:
    with pytest.raises(RegistryError, match=r"trainer.warmpu: unknown key; did you mean 'warmup'\?"):
        survey(resolve("base", overrides=["trainer.warmpu=site:system.number_of_nodes"]))
    with pytest.raises(RegistryError, match=r"trainer.learning_rate: input should be greater than 0"):
        survey(resolve("base", overrides=["trainer.warmup=site:system.cooling", "trainer.learning_rate=0"]))


@pytest.mark.parametrize(("key", "message"), [
    ("artifacts.train_dat", r"no site file has a key 'artifacts.train_dat'; did you mean 'artifacts.train_data'\?"),
    ("artefacts.x", "no site file has a key 'artefacts.x'"), ("", "no site file has a key ''"),
    ("artifacts", "no site file has a key 'artifacts'"),
])
def test_a_reference_to_nothing_is_an_error_with_or_without_a_file(bench, key: str, message: str) -> None:
    file = bench.write("[system]\nsubmitter = 'me'\n", "site.toml")
    for site in (None, file):
        with pytest.raises(RegistryError, match=message):
            resolve("base", site=site, overrides=[f"trainer.names=['site:{key}']"])


def test_text_with_a_blank_is_no_reference(bench) -> None:
    assert resolve("base", overrides=["description='site: mine'"]).profile.description == "site: mine"


def test_tables_and_lists_go_into_a_profile_whole(bench) -> None:
    file = bench.write("[launch]\nmounts = ['/a:/b', '/c:/d']\n[launch.environment]\nA = '1'\n", "site.toml")
    plan = make_plan(resolve("base", site=file, overrides=["trainer.names=site:launch.mounts"]))
    assert plan.resolved["trainer"]["names"] == ["/a:/b", "/c:/d"]
    assert {item.key: item.origin.line for item in plan.explained}["trainer.names[1]"] == 2
    assert read_site_file(file).get("launch.environment") == {"A": "1"}  # pyright: ignore[reportOptionalMemberAccess]


def test_a_revision_in_a_hubs_cache_is_followed_to_its_blobs(bench) -> None:
    home = bench.folder / "hub/models--org--name"
    (home / "blobs").mkdir(parents=True)
    snapshot = home / "snapshots/abc123"
    snapshot.mkdir(parents=True)
    for file in (bench.folder / "policy").iterdir():
        (home / "blobs" / f"of-{file.name}").write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/of-{file.name}")
    site = bench.write("[artifacts]\nhf_checkpoint = 'hub/models--org--name/snapshots/abc123'\n", "site.toml")
    resolved = resolve("base", site=site, overrides=[POLICY])
    plan = make_plan(resolved)
    assert plan.checkpoint.checkpoint == snapshot
    found = resolved.site and resolved.site.snapshot
    assert found and (found.revision, found.blobs) == ("abc123", home / "blobs")
    assert all(entry["bytes"] for entry in plan.provenance["policy"].values())
    plain = bench.write("[artifacts]\nhf_checkpoint = 'policy'\n", "plain.toml")
    assert read_site_file(plain).snapshot is None  # pyright: ignore[reportOptionalMemberAccess]


def test_every_official_field_of_a_system_but_the_division_has_a_key() -> None:
    checker = pytest.importorskip("mlperf_logging.system_desc_checker.system_desc_checker")
    source = Path(checker.__file__).read_text()
    listed = source.partition("required_fields = [")[2].partition("]")[0].replace('"', "").replace(",", "").split()
    assert len(listed) == 33
    assert {f"system.{name}" for name in listed if name != "division"} <= set(KEYS)


@given(st.recursive(st.integers() | st.sampled_from(["site:a.b", "site:", "site: a", "x"]),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_references_are_found_wherever_they_stand(value: object) -> None:
    for path, key in references(value):
        inner: object = value
        for part in path:
            inner = inner[part]  # pyright: ignore[reportIndexIssue]
        assert reference(inner) == key
    assert len(list(references(value))) == repr(value).count("'site:a.b'") + repr(value).count("'site:'") - (
        _keys(value, "site:a.b") + _keys(value, "site:"))


def _keys(value: object, name: str) -> int:
    if isinstance(value, dict):
        return (name in value) + sum(_keys(inner, name) for inner in value.values())
    return sum(_keys(inner, name) for inner in value) if isinstance(value, list) else 0


@given(data=st.data())
def test_a_file_with_changed_bytes_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data) -> None:
    content = bytearray(b"[artifacts]\ntrain_data = 'a'\n[artifacts.sources]\ntrain_data = 'https://x/y.uri'\n"
                        b"[system]\nnumber_of_nodes = 3\n[launch]\nmounts = ['/a:/b']\nenvironment = { A = '1' }\n")
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.getbasetemp() / "changed.toml"
    file.write_bytes(bytes(content))
    said = ""
    try:
        site = read_site_file(file)
    except RegistryError as error:
        site, said = None, error.message
    assert all(site.line(key) for key in KEYS if site.get(key) is not None) if site else str(file) in said


def test_registry_files_and_the_site_file_are_read_alike(bench) -> None:
    os.mkfifo(bench.folder / "pipe.toml")
    with pytest.raises(RegistryError, match="it is no regular file"):
        read_site_file(bench.folder / "pipe.toml")
