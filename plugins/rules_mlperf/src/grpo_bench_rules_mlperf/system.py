"""The system description that a submission holds: 33 fields, all of them text, in the official order.

A field in which the rules want something meaningful must not be empty; the others may be, which says that it is not
disclosed. The official checker looks for the names of the fields and for the status; the rest of what is refused here
is what it lets pass and the tools after it fall over, such as a count that is a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from grpo_bench.contract import InputError, Settings

Status = Literal["Available on-premise", "Available cloud", "Research, Development, or Internal (RDI)", "Preview"]
STATUS: Mapping[str, str] = dict(zip(("onprem", "cloud", "research", "preview"), get_args(Status), strict=True))
"""What each is called in MLLOG, and here."""

_LINE = r"[^\x00-\x1f\x7f]"
Said = Annotated[str, Field(pattern=rf"^{_LINE}*[^\x00-\x20\x7f]{_LINE}*$", max_length=1000)]
Maybe = Annotated[str, Field(pattern=rf"^{_LINE}*$", max_length=1000)]
Number = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,6})$")]
Above0 = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,6}$")]
MaybeNumber = Annotated[str, Field(pattern=r"^([1-9][0-9]{0,6})?$")]


class SystemDescription(Settings):
    """What the system is. ``fields`` names them as the file does."""

    model_config = ConfigDict(populate_by_name=False)

    submitter: Said
    """Who submits; the logs' submission_org."""
    division: Literal["closed", "open"]
    """The division that the runs were made for."""
    status: Status
    """Whether others can have such a system, in one of the four official wordings."""
    system_name: Said
    """What the system is called; the logs' submission_platform."""
    number_of_nodes: Above0
    """Hosts of the system."""
    host_processors_per_node: Above0
    """Processors (sockets) of a host."""
    host_processor_model_name: Said
    """Model of a processor."""
    host_processor_core_count: MaybeNumber
    """Cores of a processor; this or the virtual processors."""
    host_processor_vcpu_count: MaybeNumber
    """Virtual processors of a host, as its operating system counts them; this or the cores."""
    host_processor_frequency: Maybe
    """Highest clock rate of a processor, with its unit."""
    host_processor_caches: Maybe
    """Sizes of a host's caches by level."""
    host_processor_interconnect: Maybe
    """What connects the processors of a host."""
    host_memory_capacity: Said
    """Memory of a host, with its unit."""
    host_storage_type: Said
    """Kind of storage that a host works on."""
    host_storage_capacity: Said
    """Storage of a host, with its unit."""
    host_networking: Said
    """What connects the hosts."""
    host_networking_topology: Said
    """How the hosts are connected."""
    host_memory_configuration: Said
    """Modules that a host's memory consists of."""
    accelerators_per_node: Number
    """Accelerators of a host; 0: none."""
    accelerator_model_name: Said
    """Model of an accelerator."""
    accelerator_host_interconnect: Said
    """What connects an accelerator to its host."""
    accelerator_frequency: Maybe
    """Highest clock rate of an accelerator, with its unit."""
    accelerator_on_chip_memories: Annotated[Maybe, Field(alias="accelerator_on-chip_memories")]
    """Sizes of an accelerator's caches and registers."""
    accelerator_memory_configuration: Said
    """Kind of an accelerator's memory."""
    accelerator_memory_capacity: Said
    """Memory of one accelerator, with its unit."""
    accelerator_interconnect: Said
    """What connects accelerators to each other."""
    accelerator_interconnect_topology: Maybe
    """How accelerators are connected to each other."""
    cooling: Said
    """How the system is cooled."""
    hw_notes: Maybe
    """Anything else about the hardware."""
    framework: Said
    """Framework and version."""
    other_software_stack: Said
    """Libraries, compilers and drivers with their versions."""
    operating_system: Said
    """Operating system and version."""
    sw_notes: Maybe
    """Anything else about the software."""

    @field_validator("host_processor_vcpu_count")
    @classmethod
    def _or_cores(cls, value: str, info: ValidationInfo) -> str:
        if value == "" and info.data.get("host_processor_core_count") == "":
            raise ValueError("this or host_processor_core_count must be given")
        return value

    @property
    def id(self) -> str:
        """What its files are called."""
        return path_name(self.system_name)

    def to_json(self) -> str:
        """The file's content."""
        return json.dumps(self.model_dump(by_alias=True), indent=4, ensure_ascii=False) + "\n"


FIELDS: Mapping[str, str] = {field.alias or name: field.description or ""
                             for name, field in SystemDescription.model_fields.items()}
"""What each field means, in the official order."""


def path_name(text: str) -> str:
    """``text`` as the name of a file or folder that git, shells and the checkers can take."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", text).lstrip(".-") or "_"


def read_values(file: Path) -> dict[str, Any]:
    """What a file says, be it whole or not; InputError where it is no JSON object."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{file}: cannot be read as JSON: {why}", hint="grpo-bench package --from-host --system FILE "
                         "makes one") from None
    if not isinstance(found, dict):
        raise InputError(f"{file}: should be a JSON object of {len(FIELDS)} fields")
    return found


def described(values: Mapping[str, Any], file: Path) -> SystemDescription:
    """The description, or an InputError that names every field that is wrong, and what belongs into it."""
    try:
        return SystemDescription.model_validate(dict(values))
    except ValidationError as error:
        wrong = [_wrong(item) for item in error.errors(include_url=False)]
    lines = "".join(f"\n    {line}" for line in wrong)
    raise InputError(f"{file}: {len(wrong)} of its fields {'is' if len(wrong) == 1 else 'are'} not as they must be:"
                     f"{lines}", hint="fill them in; --from-host fills in what this machine and the site file say")


def completed(values: Mapping[str, Any], *others: Mapping[str, str]) -> dict[str, Any]:
    """All fields in the official order, each as the first of these says that has more than nothing to say; empty where
    none has. What is no field stays, to be refused."""
    said = [values, *others]
    found = {name: next((text for each in said if (text := each.get(name, "")) != ""), "") for name in FIELDS}
    return {**found, **{name: value for name, value in values.items() if name not in FIELDS}}


def lacking(values: Mapping[str, Any]) -> list[str]:
    """The fields that somebody still has to fill in."""
    try:
        SystemDescription.model_validate(dict(values))
    except ValidationError as error:
        named = {str(item["loc"][0]) for item in error.errors()}
        return [name for name in FIELDS if name in named]
    return []


def _wrong(item: Any) -> str:
    name, given = str(item["loc"][0]), item["input"]
    if item["type"] == "extra_forbidden":
        near = get_close_matches(name, FIELDS, 1, 0.7)
        return f"{name}: no field of a system description{f'; do you mean {near[0]}?' if near else ''}"
    if item["type"] == "value_error":
        return f"{name}: {item['msg'].removeprefix('Value error, ')}"
    meaning = FIELDS[name].rstrip(".")
    if item["type"] == "missing" or given == "":
        return f"{name}: {'missing' if item['type'] == 'missing' else 'empty'}. {meaning}"
    shown = json.dumps(given, ensure_ascii=False)
    if item["type"] == "string_type":
        return f"{name}: {shown} should be text, in quotes"
    if item["type"] == "string_pattern_mismatch":
        return f"{name}: {shown} should be {'a count' if '[0-9]' in item['ctx']['pattern'] else 'one line of text'}"
    return f"{name}: {shown}: {item['msg'][:1].lower()}{item['msg'][1:]}"
