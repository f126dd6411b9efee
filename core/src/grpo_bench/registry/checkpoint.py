"""The policy a profile starts from: its folder in HF form, found and looked over."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..contract import Missing, PolicyFacts
from .lines import Key
from .outline import Outline, read_outline, text_config
from .references import reference
from .resolved import Resolved

PACKAGED = "package:"
HASHED_UP_TO = 64 * 2**20
"""Bytes of a checkpoint file above which only its size is recorded."""

_KEY: Key = ("policy", "checkpoint")
_OUTLINE: Key = ("policy", "config")


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
    text = text_config(_config(folder / "config.json", resolved))
    vocab_size = text.get("vocab_size")
    if type(vocab_size) is not int or vocab_size < 1:
        raise resolved.merged.error(_KEY, f"{folder / 'config.json'} gives no vocab_size")
    wanted = _context(text, str(folder), resolved)
    return PolicyFacts(checkpoint=folder, max_context=wanted, vocab_size=vocab_size)


def expected(resolved: Resolved) -> PolicyFacts:
    """What a plan knows of a policy that is not here: where it should be, and what ``policy.config`` says of it."""
    policy = resolved.profile.policy
    unset = policy.checkpoint.startswith(PACKAGED) or reference(policy.checkpoint) is not None
    folder = Path(policy.checkpoint) if unset else _path(policy.checkpoint, resolved)
    if policy.config is None:
        return PolicyFacts(checkpoint=folder, max_context=policy.max_context, vocab_size=0)
    outline = _outline(policy.config, resolved)
    wanted = _context(text_config(outline.config), policy.config, resolved)
    return PolicyFacts(checkpoint=folder, max_context=wanted, vocab_size=0, config=outline.config,
                       tensors=outline.tensors)


def outline_place(resolved: Resolved) -> str | None:
    """Where ``policy.config`` is, the same wherever the profile is read."""
    text = resolved.profile.policy.config
    return text if text is None or text.startswith(PACKAGED) else str(_path(text, resolved, _OUTLINE))


def _context(config: Mapping[str, Any], whose: str, resolved: Resolved) -> int:
    """The longest sequence, which the policy can take."""
    wanted, longest = resolved.profile.policy.max_context, config.get("max_position_embeddings")
    if type(longest) is int and wanted > longest:
        message = f"{wanted} tokens are more than the {longest} that {whose} can take (max_position_embeddings)"
        raise resolved.merged.error(("policy", "max_context"), message)
    return wanted


def _outline(text: str, resolved: Resolved) -> Outline:
    file = _packaged(_OUTLINE, text, resolved) if text.startswith(PACKAGED) else _path(text, resolved, _OUTLINE)
    try:
        return read_outline(file)
    except ValueError as error:
        raise resolved.merged.error(_OUTLINE, f"{file}: {error}", hint="it should be a JSON file with the tables "
                                    "config and tensors") from None


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
    folder = _packaged(_KEY, text, resolved) if text.startswith(PACKAGED) else _path(text, resolved)
    if not os.path.isdir(folder):
        raise resolved.merged.error(_KEY, f"no folder {folder}", kind=Missing,
                                    hint="a path is relative to your registry file or site file that gives it, else to "
                                         "the working directory; it should be a folder in HF form")
    return folder


def _path(text: str, resolved: Resolved, key: Key = _KEY) -> Path:
    origin = resolved.merged.origin(key)
    base = origin.file.resolve().parent if origin.file and origin.layer != "packaged" else Path.cwd()
    return base / os.path.expanduser(text)


def _packaged(key: Key, text: str, resolved: Resolved) -> Path:
    module, _, inside = text.removeprefix(PACKAGED).partition("/")
    spec = find_spec(module) if module.isidentifier() and module != "__main__" else None
    if spec is None or not spec.submodule_search_locations:
        raise resolved.merged.error(key, f"no package {module!r} is installed", kind=Missing,
                                    hint="install the distribution that brings it; the form is package:MODULE/PATH")
    return Path(spec.submodule_search_locations[0], inside)


def _config(file: Path, resolved: Resolved) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise resolved.merged.error(_KEY, f"{file} cannot be read: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("text_config", {}), dict):
        raise resolved.merged.error(_KEY, f"{file} is no model configuration")
    return config
