"""The two documents that a metadata URI names, and what is refused in them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from grpo_bench_rules_mlperf.artifacts_known import Artifact, chosen
from grpo_bench_rules_mlperf.artifacts_manifest import manifest_of, parse
from hypothesis import given, strategies as st

from grpo_bench.contract import InputError

ONE, TWO = "1" * 32, "2" * 32
POLICY, TRAIN, IMAGES = chosen(["hf_checkpoint", "train_data", "sif_dir"])
URI = "https://store.example/metadata/name.uri"


def made(artifact: Artifact, text: str, place: str = "/data/here", uri: str = URI,
         base: str = "https://store.example/files/x/\n"):
    documents = {uri: base, uri.replace(".uri", ".md5"): text}
    return manifest_of(artifact, uri, Path(place), lambda name, most: documents[name].encode())


def listed(*paths: str) -> str:
    return "".join(f"{ONE}  {path}\n" for path in paths)


def test_lines_of_md5sum_in_all_their_forms() -> None:
    assert parse(f"{ONE}  a/b.sif\r\n\n{TWO.upper()} *./c d\n", "m") == {"a/b.sif": ONE, "c d": TWO}
    assert parse(f"{ONE}  a\n{ONE}  a", "m") == {"a": ONE}


@pytest.mark.parametrize(("text", "message"), [
    (f"{ONE}  ../x\n", "m, line 1: the path '../x' leads out of its folder"),
    (f"{ONE}  a\n{ONE}  b/../../x\n", "m, line 2: .* leads out of its folder"),
    (f"{ONE}  /etc/passwd\n", "the path '/etc/passwd' is absolute"),
    (f"{ONE}  a//b\n", "is no plain path"), (f"{ONE}  a/./b\n", "is no plain path"), (f"{ONE}  a/\n", "no plain path"),
    (f"{ONE}  a\\b\n", "has characters"), (f"{ONE}  a\x1b[2J\n", "has characters"),
    (f"{ONE}  {'a' * 1025}\n", "longer"),
    (f"{ONE}  a\n{TWO[:20]}", r"m, line 2: no MD5 and path, got '2{20}'"), (f"{ONE}\n", "line 1: no MD5 and path"),
    (f"{ONE} a\n", "no MD5 and path"), ("<html>\n", "no MD5 and path"),
    ("", "lists no files"), ("\n\n", "lists no files"),
    (f"{ONE}  a\n{TWO}  a\n", "m, line 2: a is listed twice, with different MD5s"),
    (f"{ONE}  a/b\n{TWO}  a\n", "a is listed as a file and as a folder"),
])
def test_a_manifest_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(text, "m")


@given(st.text(max_size=40))
def test_no_path_that_is_taken_leads_out_of_its_folder(path: str) -> None:
    try:
        (found,) = parse(f"{ONE}  {path}", "m")
    except (InputError, ValueError):
        return
    place = Path("/root/inside")
    assert (place / found).resolve().is_relative_to(place) and (place / found) != place


def test_a_file_goes_where_the_site_has_it_whatever_it_is_called_there() -> None:
    found = made(TRAIN, listed("x/tasks.jsonl"), "/data/train.jsonl")
    (file,) = found.files
    assert (file.uri, file.path) == ("https://store.example/files/x/x/tasks.jsonl", PurePosixPath("train.jsonl"))
    assert (found.root, found.kept) == (Path("/data"), Path("/data/train.jsonl.md5"))
    assert found.text == f"{ONE}  train.jsonl\n"
    both = made(TRAIN, listed("a/train.jsonl", "a/validation.jsonl"), "/data/train.jsonl")
    assert [file.uri.rpartition("/")[2] for file in both.files] == ["train.jsonl"] and both.left_out == 1
    with pytest.raises(InputError, match=r"lists 2 files, and which of them is train.jsonl is not clear"):
        made(TRAIN, listed("a.jsonl", "b.jsonl"), "/data/train.jsonl")


def test_images_are_what_lies_in_the_folder_of_that_name() -> None:
    found = made(IMAGES, listed("arm/images/a.sif", "arm/images/r2egym/b.sif", "arm/README.md"))
    assert [str(file.path) for file in found.files] == ["a.sif", "r2egym/b.sif"]
    assert (found.left_out, found.kept) == (1, Path("/data/here/mlcommons.md5"))
    flat = made(IMAGES, listed("r2egym/a.sif", "images"))
    assert [str(file.path) for file in flat.files] == ["r2egym/a.sif"]


def test_a_policy_is_what_lies_beside_its_config() -> None:
    found = made(POLICY, listed("Qwen/config.json", "Qwen/a.safetensors", "Qwen/sub/config.json", "LICENSE"))
    assert [str(file.path) for file in found.files] == ["config.json", "a.safetensors", "sub/config.json"]
    assert found.left_out == 1
    with pytest.raises(InputError, match=r"lists no config.json"):
        made(POLICY, listed("a.safetensors"))


def test_uris_are_quoted_and_may_be_relative_or_carry_a_query() -> None:
    (file,) = made(TRAIN, listed("a b#%.jsonl"), base="../files").files
    assert file.uri == "https://store.example/files/a%20b%23%25.jsonl"
    (file,) = made(TRAIN, listed("a"), base="https://x/y?key=1").files
    assert file.uri == "https://x/y/a?key=1"
    asked = []

    def read(uri: str, most: int) -> bytes:
        asked.append(uri)
        return b"https://x/y" if ".uri" in uri else listed("a").encode()

    manifest_of(TRAIN, f"{URI}?key=1", Path("/data/a"), read)
    assert asked == [f"{URI}?key=1", "https://store.example/metadata/name.md5?key=1"]


@pytest.mark.parametrize(("base", "message"), [
    ("", "should hold one URI, holds 0 words"), ("https://a https://b", "holds 2 words"),
    ("<html> no such page", "holds 4 words"), ("ftp://x/y", "points at ftp://x/y, which cannot be fetched from"),
    ("file:///etc", "points at file:///etc, which cannot be fetched from"),
])
def test_a_uri_document_that_is_refused(base: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        made(TRAIN, listed("a"), base=base)


def test_other_addresses_and_other_texts_are_refused() -> None:
    with pytest.raises(InputError, match=r"name.txt: should end in .uri"):
        made(TRAIN, listed("a"), uri="https://store.example/name.txt")
    with pytest.raises(InputError, match="no UTF-8 text"):
        manifest_of(TRAIN, URI, Path("/data/a"), lambda uri, most: b"\xff\xfe\xff")
    local = made(TRAIN, listed("a"), uri="file:///store/name.uri", base="files\n")
    assert local.files[0].uri == "file:///store/files/a"
