"""``python -m benchmarks [NAME...]``: run all benchmarks, or those named. Those that take long only run where named."""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules

from . import __path__


def main(chosen: list[str]) -> int:
    known = [module.name for module in iter_modules(__path__) if not module.name.startswith("_")]
    if unknown := set(chosen) - set(known):
        print(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    for name in chosen or known:
        module = import_module(f"benchmarks.{name}")
        if name in chosen or not getattr(module, "ON_REQUEST", False):
            for result in module.run():
                print(result, flush=True)
    return 0


sys.exit(main(sys.argv[1:]))
