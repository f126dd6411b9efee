"""The public names of the contract. Whoever changes them changes every plugin."""

import subprocess
import sys

import grpo_bench.contract as contract

NAMES = {
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
}


def test_the_public_names():
    assert set(contract.__all__) == NAMES
    assert len(contract.__all__) == len(NAMES)
    assert all(hasattr(contract, name) for name in NAMES)


def test_nothing_heavy_is_imported():
    code = ("import sys, grpo_bench.contract\n"
            "heavy = {'torch', 'transformers', 'aiohttp', 'rich', 'structlog', 'jinja2', 'tokenizers'}\n"
            "print(*heavy & set(sys.modules))")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""
