"""The factory: a cluster whose collectives go over the NVLink of several nodes.

NCCL does so where it may keep its buffers in memory that other nodes can map (``NCCL_CUMEM_ENABLE``), which vLLM
switches off where it is not told otherwise; ``NCCL_MNNVL_ENABLE`` = 1 makes it an error where such memory cannot be
had, as without a running IMEX service, rather than a slow run over the other network. NVLink SHARP (NVLS) NCCL finds by
itself.
"""

from __future__ import annotations

import os

from grpo_bench.contract import PluginContext
from grpo_bench_hw_cluster import ClusterHardware

NETWORK = {"NCCL_CUMEM_ENABLE": "1", "NCCL_MNNVL_ENABLE": "1"}


def create(context: PluginContext) -> ClusterHardware:
    return ClusterHardware(context.config, NETWORK, os.environ, deterministic=context.deterministic)
