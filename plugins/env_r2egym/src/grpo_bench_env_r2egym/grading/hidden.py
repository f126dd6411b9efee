"""The hidden half of a task on this host, for as long as it is graded.

Tests of a folder image lie on the host already; those of a SIF image are copied out of it, through a sandbox that no
patch has seen. Either way they are then mounted read-only, so that the code under test cannot change a test which has
not been imported yet.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import tarfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from grpo_bench.contract import ProgramSandbox
from grpo_bench.scratch import Scratch
from grpo_bench_sandbox import SandboxError

from ..images import SCRIPT, TESTS, WORKDIR, TaskImage

RUNNER = Path(__file__).parents[1] / "inside" / "run.py"
_COPY_S = 120.0
_OUT = f"""set --
for name in {TESTS} {SCRIPT}; do
    for folder in / /root {WORKDIR}; do
        [ -e "$folder/$name" ] && set -- "$@" -C "$folder" "$name" && continue 2
    done
    echo "no $name in /, /root or {WORKDIR}" >&2
    exit 1
done
exec tar -chf - "$@\""""

Opener = Callable[[TaskImage, Mapping[str, str]], AbstractAsyncContextManager[ProgramSandbox]]


@dataclass(frozen=True, slots=True)
class Hidden:
    """``tests`` is the folder of the tests, ``grading`` one with the script and the recorder beside the tests."""

    tests: Path
    grading: Path
    script: str


@asynccontextmanager
async def hidden_of(image: TaskImage, opened: Opener) -> AsyncIterator[Hidden]:
    """Tests and script of a task; what was copied for it is gone afterwards."""
    scratch = Scratch()
    folder = scratch.path
    try:
        tests, script = image.tests, image.script
        if tests is None or script is None:
            async with opened(image, {}) as sandbox:
                await _copy_out(sandbox, folder)
            tests, script = folder / TESTS, folder / SCRIPT
        grading = folder / "grading"
        grading.mkdir()
        shutil.copy(RUNNER, grading)
        shutil.copy(script, grading / SCRIPT)
        yield Hidden(tests, grading, script.read_text(errors="replace"))
    finally:
        scratch.remove()


async def _copy_out(sandbox: ProgramSandbox, folder: Path) -> None:
    async with asyncio.timeout(_COPY_S):
        program = await sandbox.spawn(["sh", "-c", _OUT], env={"PATH": "/usr/bin:/bin"})
        archive, said = await asyncio.gather(program.stdout.read(), program.stderr.read())
        if await program.wait():
            raise SandboxError(f"the image has no tests: {said.decode(errors='replace').strip()[-300:]}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        await asyncio.to_thread(tar.extractall, folder, filter="data")
