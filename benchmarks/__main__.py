"""``python -m benchmarks [NAME...]``: run all benchmarks, or those named. Those that take long only run where named."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pkgutil import iter_modules

from . import __path__


def main(chosen: list[str]) -> int:
    known = [module.name for module in iter_modules(__path__) if not module.name.startswith("_")]
    if {"-h", "--help"} & set(chosen):
        print(f"{(__doc__ or '').replace('``', '')}\n\n{listed(known)}")
        return 0
    if unknown := set(chosen) - set(known):
        print(f"no benchmark {', '.join(sorted(unknown))}; there are\n{listed(known)}", file=sys.stderr)
        return 2
    for name in chosen or known:
        module = import_module(f"benchmarks.{name}")
        if name in chosen or not on_request(module):
            for result in module.run():
                print(result, flush=True)
    return 0


def listed(known: list[str]) -> str:
    """A line for each benchmark: what it measures, and whether it has to be named to run."""
    lines = []
    for name in known:
        module = import_module(f"benchmarks.{name}")
        about = (inspect.getdoc(module) or "").partition("\n")[0]
        lines.append(f"  {name:<12}{about}" + (" (only where named)" if on_request(module) else ""))
    return "\n".join(lines)


def on_request(module: object) -> bool:
    return getattr(module, "ON_REQUEST", False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
