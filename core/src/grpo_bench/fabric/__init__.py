"""Where workers run: in this process (``inline``) or in processes of this machine (``local``).

Both are plugins of the role fabric. What a worker is and what may cross to it stands in
:mod:`grpo_bench.contract.fabric`; the program that hosts workers in another process is :mod:`grpo_bench.fabric.worker`.
Fabrics for several machines are made from :mod:`grpo_bench.fabric.kit`.
"""

from ._inline import InlineFabric
from ._local import LocalFabric
from ._plugins import InlineConfig, LocalConfig, inline, local, make_inline, make_local
from ._stacks import task_stacks

__all__ = [
    "InlineConfig", "InlineFabric", "LocalConfig", "LocalFabric", "inline", "local", "make_inline",
    "make_local", "task_stacks",
]
