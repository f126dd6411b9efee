"""The system description: what a file may say, what a machine tells, and that the official checker agrees."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_rules_mlperf.official import missing
from grpo_bench_rules_mlperf.system import (
    FIELDS, STATUS, completed, described, lacking, path_name, read_values,
)
from grpo_bench_rules_mlperf.system_host import from_host
from grpo_bench_rules_mlperf.training_6_1 import RULES

from grpo_bench.contract import InputError

needs_checker = pytest.mark.skipif(bool(missing(RULES)), reason=missing(RULES))
FILE = Path("system.json")
OPTIONAL = {"host_processor_frequency", "host_processor_caches", "host_processor_interconnect", "accelerator_frequency",
            "accelerator_on-chip_memories", "accelerator_interconnect_topology", "hw_notes", "sw_notes",
            "host_processor_core_count", "host_processor_vcpu_count"}


def test_a_whole_description_is_kept_as_it_is(system: dict[str, str]) -> None:
    found = described(system, FILE)
    assert json.loads(found.to_json()) == system
    assert list(json.loads(found.to_json())) == list(FIELDS)
    assert lacking(system) == []


@needs_checker
def test_its_fields_and_status_are_those_of_the_official_checker(system: dict[str, str], tmp_path: Path) -> None:
    from mlperf_logging.system_desc_checker.system_desc_checker import check_system_desc

    def passes(values: dict[str, Any]) -> bool:
        file = tmp_path / "system.json"
        file.write_text(json.dumps(values))
        return check_system_desc(str(file), "training", RULES.checker_ruleset)[0]

    assert len(FIELDS) == 33
    assert passes(system)
    assert all(not passes({key: value for key, value in system.items() if key != name}) for name in FIELDS)
    assert all(passes({**system, "status": official}) for official in STATUS.values())
    assert not passes({**system, "status": "onprem"})


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_must_be_there_and_hold_text(system: dict[str, str], name: str) -> None:
    without = {key: value for key, value in system.items() if key != name}
    for wrong, says in ((without, "missing"), ({**system, name: 4}, "4"), ({**system, name: "a\nb"}, r"a\\nb")):
        with pytest.raises(InputError, match=rf"system.json: 1 of its fields is not .*\n    {name}: .*{says}"):
            described(wrong, FILE)
    if name in OPTIONAL:
        assert described({**system, name: ""}, FILE)
        return
    with pytest.raises(InputError, match=f"{name}: (empty|\"\")"):
        described({**system, name: ""}, FILE)
    assert lacking({**system, name: ""}) == [name]


@pytest.mark.parametrize(("changes", "says"), [
    ({"accelerator_on_chip_memories": "x"}, "accelerator_on_chip_memories: no .*mean accelerator_on-chip_memories"),
    ({"colour": "red"}, "colour: no field of a system description"),
    ({"number_of_nodes": "0"}, 'number_of_nodes: "0" should be a count'),
    ({"number_of_nodes": "64 nodes"}, 'number_of_nodes: "64 nodes" should be a count'),
    ({"accelerators_per_node": "four"}, "accelerators_per_node: .*should be a count"),
    ({"cooling": "  "}, 'cooling: "  " should be one line of text'),
    ({"division": "Closed"}, "division: \"Closed\": input should be 'closed' or 'open'"),
    ({"status": "onprem"}, "status: \"onprem\": input should be 'Available on-premise'"),
    ({"host_processor_core_count": "", "host_processor_vcpu_count": ""}, "this or host_processor_core_count"),
])
def test_what_is_wrong_is_named(system: dict[str, str], changes: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        described({**system, **changes}, FILE)


def test_everything_that_is_wrong_is_named_at_once(system: dict[str, str]) -> None:
    with pytest.raises(InputError) as error:
        described({**system, "cooling": "", "framework": 3, "status": "soon", "more": ""}, FILE)
    assert [line.split(":")[0].strip() for line in error.value.message.splitlines()[1:]] == [
        "status", "cooling", "framework", "more"]


def test_a_file_that_is_no_object_is_an_input_error(tmp_path: Path) -> None:
    file = tmp_path / "system.json"
    with pytest.raises(InputError, match="cannot be read"):
        read_values(file)
    for text in ("{", "[]", "\udcff"):
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(InputError, match=r"system\.json: "):
            read_values(file)


def test_a_person_comes_before_the_site_and_the_site_before_the_machine(system: dict[str, str]) -> None:
    found = completed({"cooling": "air", "framework": "", "odd": "x"}, {"framework": "b", "cooling": "water"},
                      {"framework": "c", "number_of_nodes": "1"})
    assert {name: found[name] for name in ("cooling", "framework", "number_of_nodes", "submitter", "odd")} == {
        "cooling": "air", "framework": "b", "number_of_nodes": "1", "submitter": "", "odd": "x"}
    assert list(found)[:33] == list(FIELDS)
    assert completed(system, {"cooling": "other", "hw_notes": "other"}) == {**system, "hw_notes": "other"}


def test_names_of_files_are_what_git_and_a_shell_take() -> None:
    assert [path_name(text) for text in ("DGX-B200 (x8)", "..a", "a/b", "é", "n64_gb300")] == [
        "DGX-B200_x8_", "a", "a_b", "_", "n64_gb300"]


LSCPU = {"lscpu": [
    {"field": "Architecture:", "data": "aarch64"}, {"field": "CPU(s):", "data": "144"},
    {"field": "Vendor ID:", "data": "ARM", "children": [
        {"field": "Model name:", "data": "Neoverse-V2", "children": [
            {"field": "Core(s) per socket:", "data": "72"}, {"field": "Socket(s):", "data": "2"},
            {"field": "CPU max MHz:", "data": "3474.0000"}]}]},
    {"field": "Caches (sum of all):", "children": [
        {"field": "L1d:", "data": "9 MiB (144 instances)"}, {"field": "L3:", "data": "228 MiB (2 instances)"}]}]}
GPUS = "NVIDIA GB300, 284208, 2032, 580.95.05\n" * 4


def host(tmp_path: Path, answers: dict[str, str]) -> dict[str, str]:
    (tmp_path / "proc").mkdir(exist_ok=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:       1006632960 kB\nMemFree: 1 kB\n")
    (tmp_path / "etc").mkdir(exist_ok=True)
    (tmp_path / "etc/os-release").write_text('NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.2 LTS"\n')

    def ask(command: Sequence[str]) -> str:
        return answers.get(command[0], "")

    return from_host(tmp_path, ask)


def test_a_machine_tells_what_it_is(tmp_path: Path) -> None:
    found = host(tmp_path, {"lscpu": json.dumps(LSCPU), "nvidia-smi": GPUS})
    assert found["operating_system"].startswith("Ubuntu 24.04.2 LTS, Linux ")
    assert "NVIDIA driver 580.95.05" in found["other_software_stack"]
    assert {name: found[name] for name in found if name not in ("operating_system", "other_software_stack")} == {
        "number_of_nodes": "1", "host_processors_per_node": "2", "host_processor_model_name": "Neoverse-V2",
        "host_processor_core_count": "72", "host_processor_vcpu_count": "144", "host_processor_frequency": "3.47 GHz",
        "host_processor_caches": "L1d: 9 MiB (144 instances), L3: 228 MiB (2 instances)",
        "host_memory_capacity": "960 GiB", "accelerators_per_node": "4", "accelerator_model_name": "NVIDIA GB300",
        "accelerator_memory_capacity": "278 GiB", "accelerator_frequency": "2032 MHz"}
    assert found.keys() <= FIELDS.keys()


def test_what_a_machine_does_not_tell_is_not_there(tmp_path: Path) -> None:
    entries = [{"field": "Socket(s):", "data": "-"}, {"field": "CPU max MHz:", "data": "-"}]
    found = host(tmp_path, {"lscpu": json.dumps({"lscpu": entries}),
                            "nvidia-smi": "NVIDIA GB300, [N/A], [N/A], 580.95.05\n"})
    assert found.keys() == {"number_of_nodes", "host_memory_capacity", "operating_system", "other_software_stack",
                            "accelerators_per_node", "accelerator_model_name"}
    assert from_host(tmp_path / "empty", lambda _: "").keys() == {"number_of_nodes", "other_software_stack"}


def test_this_machine_is_asked_for_real() -> None:
    found = from_host()
    assert int(found["host_processor_vcpu_count"]) >= 1 and found["host_memory_capacity"].endswith(" GiB")
    assert "submitter" in lacking(completed({}, found))


def test_every_field_says_what_it_is() -> None:
    assert all(text.endswith(".") for text in FIELDS.values())
