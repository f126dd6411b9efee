"""Environment variables under which equal computations give equal bits."""

from __future__ import annotations

from pathlib import Path


def reproducible(root: Path = Path("/")) -> dict[str, str]:
    """Those under which matrix products give a row the same bits whatever is computed beside it.

    On Intel's processors torch multiplies with MKL, whose kernels for AVX-512 sum up a row by where it stands; its
    strict reproducible mode (Intel's "Conditional Numerical Reproducibility") does not. It must be set before a
    process multiplies for the first time. On other processors MKL would fall back to slow kernels. The nodes of a
    cluster are taken to have the processors of the host that asks."""
    file = root / "proc/cpuinfo"
    try:
        lines = file.read_text("utf-8").splitlines()
    except OSError:
        return {}
    vendors = {line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")}
    return {"MKL_CBWR": "AUTO,STRICT"} if vendors == {"GenuineIntel"} else {}
