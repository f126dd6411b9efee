"""Child processes whose start, or whose reader, goes away."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from grpo_bench.processes import exit_code, let_go, start_process

PIPES = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
HANGS_S = 20.0


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.mark.parametrize("turns", range(12))
@pytest.mark.parametrize("again", [False, True])
def test_a_start_that_is_cancelled_ends_and_leaves_no_process(turns, again):
    """Wherever in the start the cancellation comes, and if it comes twice."""
    async def cancelled() -> None:
        starting = asyncio.ensure_future(start_process("cat", **PIPES))
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        if again:
            await asyncio.sleep(0)
            starting.cancel()
        done, _ = await asyncio.wait([starting], timeout=HANGS_S)
        assert done
        if not starting.cancelled():
            process = starting.result()
            process.kill()
            await exit_code(process)
            let_go(process)

    before = children()
    asyncio.run(cancelled())
    assert children() == before


def test_a_program_that_is_not_there_is_an_error_also_where_the_start_is_cancelled():
    async def missing() -> None:
        with pytest.raises(FileNotFoundError):
            await start_process("no-such-program", **PIPES)
        starting = asyncio.ensure_future(start_process("no-such-program", **PIPES))
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(missing())


def test_an_end_is_known_before_anybody_reads_what_was_written():
    async def unread() -> int:
        process = await start_process("sh", "-c", "head -c 10000000 /dev/zero & exit 3", **PIPES)
        async with asyncio.timeout(HANGS_S):
            code = await exit_code(process)
        let_go(process)
        return code

    assert asyncio.run(unread()) == 3
