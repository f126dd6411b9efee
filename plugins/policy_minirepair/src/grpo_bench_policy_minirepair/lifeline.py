"""A process that does not outlive the one that started it, however that one ended.

torch asks the kernel to interrupt its workers when their parent dies. A worker that was started in the background
ignores interrupts, and one that waits for the others inside a collective does not see them. So a thread waits for the
parent's end and takes the process with it.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.process import BaseProcess


def end_with_parent() -> None:
    """End this process, which ``multiprocessing`` started, as soon as its parent is gone."""
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_follow, args=(parent,), name="lifeline", daemon=True).start()


def _follow(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
