"""What the scripted policy plays on a task: the fix, through an agent's own tools; nothing; and a change that mends
nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .tasks_commit import patch_of

WORKDIR = "/testbed"
_PATCH = "/tmp/change.patch"
_END = "END_OF_PATCH"
_MOST_EDITS = 8
_HEREDOC_CHARACTERS = 6000
"""A longer one is put into a file first: terminals are slow at long lines of input."""


def is_code(path: str) -> bool:
    """Whether a file of a fix can matter to tests."""
    return path.endswith(".py") and not path.startswith(("doc", "example", "bench")) and path != "setup.py"


def of(statement: str, instance_id: str, commit: str) -> dict[str, Any]:
    """The entry of script.json. ``commit`` is the fix in R2E-Gym's form."""
    files = [item for item in json.loads(commit)["file_diffs"] if is_code(item["header"]["file"]["path"])]
    touched = next((item["header"]["file"]["path"] for item in files if item["old_file_content"]), "NOTES.py")
    nothing = _bash("I look at the repository first.", f"cd {WORKDIR} && git log --oneline && ls")
    wrong = _bash("A note will do.", f"printf '\\n# Looked at.\\n' >> {WORKDIR}/{touched}")
    fix = _edits(files) or _applied(patch_of(commit, is_code))
    return {"when": statement.strip().splitlines()[0], "instance_id": instance_id, "variants": [
        {"name": name, "reward": reward, "replies": [*replies, _finish()]}
        for name, reward, replies in (("fix", 1, fix), ("nothing", 0, [nothing]), ("wrong", 0, [wrong]))]}


def _edits(files: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each hunk as a replacement of the editor; empty where they are many or cannot be told apart."""
    replies: list[dict[str, Any]] = []
    for item in files:
        text, path = item["old_file_content"], item["header"]["file"]["path"]
        for hunk in item["hunks"]:
            lines = hunk["line_group"]["all_lines"]
            old, new = ("\n".join(line["content"] for line in lines if line["type"] in kinds)
                        for kinds in (("context", "deleted"), ("context", "added")))
            if (not text or text.count(old) != 1 or "\t" in old + new or "\r" in old + new
                    or any(line["type"] == "note" for line in lines)):
                return []
            text = text.replace(old, new)
            replies.append(_reply(f"I change {path}.", "str_replace_editor", command="str_replace",
                                  path=f"{WORKDIR}/{path}", old_str=old, new_str=new))
    return replies if len(replies) <= _MOST_EDITS else []


def _applied(patch: str) -> list[dict[str, Any]]:
    if len(patch) <= _HEREDOC_CHARACTERS and "\t" not in patch and _END not in patch:
        return [_bash("I apply a patch.", f"cd {WORKDIR} && git apply <<'{_END}'\n{patch}{_END}")]
    return [_reply("I write a patch.", "str_replace_editor", command="create", path=_PATCH, file_text=patch),
            _bash("I apply it.", f"cd {WORKDIR} && git apply {_PATCH}")]


def _bash(content: str, command: str) -> dict[str, Any]:
    return _reply(content, "execute_bash", command=command)


def _finish() -> dict[str, Any]:
    return _reply("That is all.", "finish", message="Done.")


def _reply(content: str, name: str, **arguments: str) -> dict[str, Any]:
    return {"content": content, "calls": [{"name": name, "arguments": arguments}]}
