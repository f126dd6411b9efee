"""The policy a profile starts from: its folder in HF form, found and looked over."""

from __future__ import annotations

import hashlib
import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..contract import Missing, PolicyFacts
from .resolved import Resolved

PACKAGED = "package:"
HASHED_UP_TO = 64 * 2**20
"""Bytes of a checkpoint file above which only its size is recorded."""

_KEY = ("policy", "checkpoint")


def policy_facts(resolved: Resolved, *, weights: bool) -> PolicyFacts:
    """Folder, context and vocabulary of the policy; Missing where the folder lacks what a run needs. ``weights`` False:
    no part of the run reads weights, so none have to be there."""
    folder = _folder(resolved)
    needed = ["config.json", "tokenizer.json"]
    missing = [name for name in needed if not os.path.isfile(folder / name)]
    if weights and not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise resolved.merged.error(_KEY, f"{folder} lacks {', '.join(missing)}", kind=Missing,
                                    hint="it should be a folder in HF form")
    config = _config(folder / "config.json", resolved)
    text = config.get("text_config", config)
    vocab_size, longest = text.get("vocab_size"), text.get("max_position_embeddings")
    if type(vocab_size) is not int or vocab_size < 1:
        raise resolved.merged.error(_KEY, f"{folder / 'config.json'} gives no vocab_size")
    wanted = resolved.profile.policy.max_context
    if type(longest) is int and wanted > longest:
        message = f"{wanted} tokens are more than the {longest} that {folder} can take (max_position_embeddings)"
        raise resolved.merged.error(("policy", "max_context"), message)
    return PolicyFacts(checkpoint=folder, max_context=wanted, vocab_size=vocab_size)


def expected(resolved: Resolved) -> PolicyFacts:
    """What a plan knows of a policy that is not here: where it should be."""
    policy = resolved.profile.policy
    packaged = policy.checkpoint.startswith(PACKAGED)
    folder = Path(policy.checkpoint) if packaged else _path(policy.checkpoint, resolved)
    return PolicyFacts(checkpoint=folder, max_context=policy.max_context, vocab_size=0)


def fingerprint(folder: Path, resolved: Resolved) -> dict[str, Any]:
    """Size of each file of a checkpoint, and hash where it is of moderate size."""
    try:
        return {file.name: {"bytes": file.stat().st_size, "sha256": _hash(file)}
                for file in sorted(folder.iterdir()) if file.is_file()}
    except OSError as error:
        raise resolved.merged.error(_KEY, f"{error.filename or folder} cannot be read: {error.strerror}") from None


def _hash(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.stat().st_size <= HASHED_UP_TO else None


def _folder(resolved: Resolved) -> Path:
    text = resolved.profile.policy.checkpoint
    folder = _packaged(text, resolved) if text.startswith(PACKAGED) else _path(text, resolved)
    if not os.path.isdir(folder):
        raise resolved.merged.error(_KEY, f"no folder {folder}", kind=Missing,
                                    hint="a path is relative to your registry file that gives it, else to the working "
                                         "directory; it should be a folder in HF form")
    return folder


def _path(text: str, resolved: Resolved) -> Path:
    origin = resolved.merged.origin(_KEY)
    base = origin.file.resolve().parent if origin.file and origin.layer != "packaged" else Path.cwd()
    return base / os.path.expanduser(text)


def _packaged(text: str, resolved: Resolved) -> Path:
    module, _, inside = text.removeprefix(PACKAGED).partition("/")
    spec = find_spec(module) if module.isidentifier() and module != "__main__" else None
    if spec is None or not spec.submodule_search_locations:
        raise resolved.merged.error(_KEY, f"no package {module!r} is installed", kind=Missing,
                                    hint="install the distribution that brings it; the form is package:MODULE/FOLDER")
    return Path(spec.submodule_search_locations[0], inside)


def _config(file: Path, resolved: Resolved) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise resolved.merged.error(_KEY, f"{file} cannot be read: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("text_config", {}), dict):
        raise resolved.merged.error(_KEY, f"{file} is no model configuration")
    return config
