"""The descriptor, its settings, and how the fabric is made from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from grpo_bench.contract import Capabilities, Plugin, PluginContext, Role
from grpo_bench.contract.settings import Settings

if TYPE_CHECKING:
    from .fabric import RayFabric


ADDRESS = r"^(\[[0-9A-Fa-f:.]+\]|[^\s:/]+):[0-9]{1,5}$"


class RayConfig(Settings):
    address: Annotated[str, Field(pattern=ADDRESS)] | None = None
    """Where the cluster answers, as ``host:port``. None: what RAY_ADDRESS says; where that is not set, a cluster of
    this machine alone, which the run starts and ends."""
    wait_s: float = Field(default=600.0, gt=0, le=86400, allow_inf_nan=False)
    """Seconds that the hosts and GPUs of an existing cluster may take to be there. The profile's ``limits.start_s``
    bounds it too."""
    loss_s: float = Field(default=15.0, gt=0, le=3600, allow_inf_nan=False)
    """Seconds that the end of a host may take to be noticed, by the health checks of the cluster. As long after one
    worker of a call to all failed, the end of another is looked for."""
    grace_s: float = Field(default=5.0, gt=0, le=3600, allow_inf_nan=False)
    """Seconds a worker gets for its ``close``, and its process again between SIGTERM and SIGKILL."""
    object_store_gib: float = Field(default=1.0, ge=0.08, le=1024, allow_inf_nan=False)
    """GiB of memory for values on their way, in a cluster that the run starts itself."""


def make_fabric(context: PluginContext) -> RayFabric:
    from .fabric import RayFabric

    return RayFabric(context.config, context.run_folder, context.logger, context.note)


plugin = Plugin(
    name="ray", role=Role.FABRIC, summary="workers are processes on the hosts of a Ray cluster", config=RayConfig,
    factory="grpo_bench_fabric_ray._plugin:make_fabric", capabilities=Capabilities(hosts=True, deterministic=True),
    requires=("ray>=2.60",))
