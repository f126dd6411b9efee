"""What the parts say to each other: values, role protocols, settings, events, errors. No I/O, no torch."""

from .errors import (
    BatchError, Boundary, DeadlineExceeded, GrpoBenchError, InputError, Interrupted, Missing, PlanError,
    PluginError, RefitError, RegistryError, RolloutShareExceeded, RunFolderError, WorkerLost,
)
from .events import Kind, Phase
from .fabric import (
    Address, FabricHandle, GroupSpec, LaunchForm, Need, Placement, Remote, WorkerContext, WorkerGroup,
)
from .history import canonical, divided, settings_of, timeless
from .observers import RunFacts, hookimpl
from .plugin import (
    API_VERSION, Capabilities, FileDigests, Pace, Plugin, PreflightContext, Site, WorkerEnv, load_object,
)
from .roles import (
    Agent, AgentEnd, Clock, Entry, Environment, ExecResult, Finding, Generator, GeneratorClient, Hardware,
    PluginContext, PolicyAccess, PolicyClient, PolicyFacts, Program, ProgramAgent, ProgramSandbox, Reply, Role, Ruleset,
    Sandbox, Score, ToolCall, Trainer,
)
from .settings import (
    AdvantageSettings, CheckpointSettings, GrpoSettings, KLSettings, LimitSettings, LossSettings, MaskSettings,
    PolicySettings, RefitSettings, RolloutSettings, SamplingSettings, ScheduleSettings, Settings,
    TruncationSettings, ValidationSettings,
)
from .values import (
    Cause, Doubles, End, Event, Failure, FinishReason, Floats, Group, Ids, Metric, Position, Purpose, RefitStats,
    Sample, Sampling, Status, Task, TensorSpec, TokenSequence, TrainBatch, Trajectory, Transfer, Turn, UpdateStats,
    ValidationReport,
)

__all__ = [
    "API_VERSION", "Address", "AdvantageSettings", "Agent", "AgentEnd", "BatchError", "Boundary", "Capabilities",
    "Cause", "CheckpointSettings", "Clock", "DeadlineExceeded", "Doubles", "End", "Entry", "Environment", "Event",
    "ExecResult", "FabricHandle", "Failure", "FileDigests", "Finding", "FinishReason", "Floats", "Generator",
    "GeneratorClient", "Group", "GroupSpec", "GrpoBenchError", "GrpoSettings", "Hardware", "Ids", "InputError",
    "Interrupted", "KLSettings", "Kind", "LaunchForm", "LimitSettings", "LossSettings", "MaskSettings", "Metric",
    "Missing", "Need", "Pace", "Phase", "Placement", "PlanError", "Plugin", "PluginContext", "PluginError",
    "PolicyAccess", "PolicyClient", "PolicyFacts", "PolicySettings", "Position", "PreflightContext", "Program",
    "ProgramAgent", "ProgramSandbox", "Purpose", "RefitError", "RefitSettings", "RefitStats", "RegistryError", "Remote",
    "Reply", "Role", "RolloutSettings", "RolloutShareExceeded", "Ruleset", "RunFacts", "RunFolderError", "Sample",
    "Sampling", "SamplingSettings", "Sandbox", "ScheduleSettings", "Score", "Settings", "Site", "Status", "Task",
    "TensorSpec", "TokenSequence", "ToolCall", "TrainBatch", "Trainer", "Trajectory", "Transfer", "TruncationSettings",
    "Turn", "UpdateStats", "ValidationReport", "ValidationSettings", "WorkerContext", "WorkerEnv", "WorkerGroup",
    "WorkerLost", "canonical", "divided", "hookimpl", "load_object", "settings_of", "timeless",
]
