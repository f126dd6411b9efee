"""What a site file may say: where artifacts lie, what the system is, how jobs are launched there.

Everything is optional; what a profile or a verb needs and does not find, it says. ``system`` has the fields of MLPerf's
system description by their official names, but the division, which is a run's, and with the framework's short name.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..contract import Settings

Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
Count = Annotated[int, Field(ge=0, le=2**24, strict=True)]
Uri = Annotated[str, Field(pattern=r"^(https?|file)://\S+$", max_length=4096)]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Mount = Annotated[str, Field(pattern=r"^/[^:,\x00\n]*:/[^:,\x00\n]*(:[a-z,]+)?$", max_length=4096)]
Line = Annotated[str, Field(pattern=r"^[^\x00\n\r]+$", max_length=4096)]
Word = Annotated[str, Field(pattern=r"^[^\s\x00]+$", max_length=256)]
Option = Annotated[str, Field(pattern=r"^--?[A-Za-z][^\x00\n]*$", max_length=4096)]
Value = Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=65_536)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,255}$")]


class Sources(Settings):
    policy_checkpoint: Uri | None = None
    """Metadata URI of the policy in HF form."""
    train_data: Uri | None = None
    """Metadata URI of the file of training tasks."""
    validation_data: Uri | None = None
    """Metadata URI of the file of validation tasks."""
    sif_aarch64: Uri | None = None
    """Metadata URI of the tasks' images for 64-bit Arm."""
    sif_x86_64: Uri | None = None
    """Metadata URI of the tasks' images for x86-64."""


class Artifacts(Settings):
    hf_checkpoint: Text | None = None
    """Folder of the policy in HF form; in a hub cache, the one of a revision below ``snapshots``."""
    megatron_cache: Text | None = None
    """Folder where the trainer keeps the policy in its own form."""
    train_data: Text | None = None
    """File of the tasks to train on."""
    validation_data: Text | None = None
    """File of the tasks to validate with."""
    sif_dir: Text | None = None
    """Folder of the tasks' images."""
    system_template: Text | None = None
    """File of the agent's system prompt."""
    user_template: Text | None = None
    """File of the template of its first message."""
    sources: Sources = Sources()
    """Where ``artifacts fetch`` gets these from."""


class System(Settings):
    submitter: Text | None = None
    """Who submits."""
    status: Literal["onprem", "cloud", "preview", "research"] | None = None
    """Availability of the system."""
    system_name: Text | None = None
    """What the system is called."""
    number_of_nodes: Count | None = None
    """Hosts."""
    host_processors_per_node: Count | None = None
    """Sockets of a host."""
    host_processor_model_name: Text | None = None
    """Processor of a host."""
    host_processor_core_count: Count | None = None
    """Cores of a processor."""
    host_processor_vcpu_count: Count | None = None
    """Virtual processors of a host, where it is a virtual machine."""
    host_processor_frequency: Text | None = None
    """Clock rate, with its unit."""
    host_processor_caches: Text | None = None
    """Sizes of its caches."""
    host_processor_interconnect: Text | None = None
    """What connects processors."""
    host_memory_capacity: Text | None = None
    """Memory of a host, with its unit."""
    host_memory_configuration: Text | None = None
    """Modules it consists of."""
    host_storage_type: Text | None = None
    """Kind of storage."""
    host_storage_capacity: Text | None = None
    """Storage of a host, with its unit."""
    host_networking: Text | None = None
    """What connects hosts."""
    host_networking_topology: Text | None = None
    """How they are connected."""
    accelerators_per_node: Count | None = None
    """Accelerators of a host."""
    accelerator_model_name: Text | None = None
    """Accelerator."""
    accelerator_host_interconnect: Text | None = None
    """What connects it to its host."""
    accelerator_frequency: Text | None = None
    """Clock rate, with its unit."""
    accelerator_on_chip_memories: Annotated[Text | None, Field(alias="accelerator_on-chip_memories")] = None
    """Sizes of its caches."""
    accelerator_memory_configuration: Text | None = None
    """Kind of its memory."""
    accelerator_memory_capacity: Text | None = None
    """Memory of one accelerator, with its unit."""
    accelerator_interconnect: Text | None = None
    """What connects accelerators."""
    accelerator_interconnect_topology: Text | None = None
    """How they are connected."""
    cooling: Text | None = None
    """How the system is cooled."""
    hw_notes: Text | None = None
    """Anything else about the hardware."""
    framework: Text | None = None
    """Framework and version."""
    framework_short_name: Text | None = None
    """The framework in one word, for file names and tables."""
    other_software_stack: Text | None = None
    """Libraries and versions."""
    operating_system: Text | None = None
    """Operating system and version."""
    sw_notes: Text | None = None
    """Anything else about the software."""


class Launch(Settings):
    container: Line | None = None
    """Image that jobs run in: a reference, or the path of a squashfs or SIF file."""
    container_digest: Digest | None = None
    """Its digest, as ``sha256:`` and 64 hexadecimal digits."""
    runtime: Literal["pyxis", "apptainer", "none"] = "none"
    """What starts the container; none: jobs run on the hosts themselves."""
    mounts: tuple[Mount, ...] = ()
    """What is mounted into the container, each as ``host:container`` or ``host:container:ro``."""
    environment: dict[Variable, Value] = {}
    """Environment variables of every process of a job."""
    setup: tuple[Text, ...] = ()
    """Lines of bash that a job begins with on its first host, such as those that put grpo-bench on PATH."""
    partition: Word | None = None
    """Partition that jobs are submitted to."""
    account: Word | None = None
    """Account that they are charged to."""
    qos: Word | None = None
    """Quality of service that they ask for."""
    comment: Line | None = None
    """Comment of a job, such as one that keeps a reaper of idle GPUs away."""
    gres: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]*$", max_length=256)] = "gpu"
    """What a node's GPUs are called in a request, without their number; empty: they are not asked for."""
    minutes: Annotated[int, Field(ge=1, le=43_200, strict=True)] | None = None
    """Wall time of a job."""
    stop_s: Annotated[int, Field(ge=1, le=65_535, strict=True)] | None = None
    """Seconds before its end at which a job is told to come to one; where it is not set, what an estimate asks for."""
    object_store_gib: Annotated[float, Field(ge=0.08, le=65_536, allow_inf_nan=False)] = 8.0
    """Shared memory of each node for what workers pass to each other, in GiB."""
    arguments: tuple[Option, ...] = ()
    """Further options of a submission, each as ``--name=value``."""


class Tables(Settings):
    artifacts: Artifacts = Artifacts()
    """Where data and weights lie."""
    system: System = System()
    """The system, as MLPerf describes one."""
    launch: Launch = Launch()
    """How jobs are started here."""
