"""What a child does with candidate code once it is shut in: run a file as a program, or call a function on inputs.

The files exist in memory only; an import hook serves them to each other and tracebacks show their lines. A child leaves
through ``os._exit``, so nothing that a candidate registered or left running outlives it.
"""

from __future__ import annotations

import atexit
import io
import marshal
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from .canonical import encode

RESULTS_FD = 3


def run(calls: bool, body: memoryview) -> int:
    """Do what a request's body asks and return the exit code."""
    arguments = marshal.loads(body)
    if calls:
        _call(*arguments)
        return 0
    return _run_file(*arguments)


class _Files:
    """Finder and loader of top-level modules that are among the task's files."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if f"{name}.py" not in self._files:
            return None
        return ModuleSpec(name, self)  # type: ignore[arg-type]  # importlib.abc costs a third of the server's memory

    def create_module(self, spec: ModuleSpec) -> None:
        """None: the import system makes the module."""

    def exec_module(self, module: ModuleType) -> None:
        path = module.__file__ = f"{module.__name__}.py"
        exec(compile(self._files[path], path, "exec"), module.__dict__)


def _run_file(files: dict[str, str], argv: list[str], stdin: str) -> int:
    sys.meta_path.insert(0, _Files(files))
    sys.argv = argv
    sys.stdin = io.StringIO(stdin)
    main = ModuleType("__main__")
    main.__file__ = argv[0]
    sys.modules["__main__"] = main
    try:
        exec(compile(files[argv[0]], argv[0], "exec"), main.__dict__)
        code = 0
    except SystemExit as leaving:
        code = _exit_code(leaving)
    except BaseException as error:
        _print_traceback(error, files)
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            code = code or 120
    return code


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def _print_traceback(error: BaseException, files: dict[str, str]) -> None:
    """Frames in the task's own files with their lines, then the error."""
    lines = ["Traceback (most recent call last):"]
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename in files:
            source = files[code.co_filename].split("\n")[trace.tb_lineno - 1:trace.tb_lineno]
            lines.append(f'  File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}')
            lines += [f"    {text.strip()}" for text in source]
        trace = trace.tb_next
    message = str(error)
    lines.append(f"{type(error).__name__}: {message}" if message else type(error).__name__)
    sys.stdout.flush()
    print("\n".join(lines), file=sys.stderr)


def _call(path: str, source: str, name: str, inputs: list[list[object]]) -> None:
    """Write one line per input to the results: the value's canonical text, or ``!`` and the exception's type."""
    module = ModuleType(path.removesuffix(".py"))
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, path, "exec"), module.__dict__)
        function = getattr(module, name)
    except BaseException as error:
        os.write(RESULTS_FD, f"!{type(error).__name__}".encode(errors="replace"))
        return
    lines = []
    for arguments in inputs:
        try:
            lines.append(encode(function(*arguments)))
        except BaseException as error:
            lines.append(f"!{type(error).__name__}")
    rest = "\n".join(lines).encode(errors="replace")
    while rest:
        rest = rest[os.write(RESULTS_FD, rest):]
