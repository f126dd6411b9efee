"""The command ``grpo-bench``, which is also ``python -m grpo_bench``.

The process ends here and not with the interpreter's own end, which would walk over all that a run has made (time that
no ledger holds) and wait for threads that may hang. Everything is imported inside, so that Ctrl-C is one line from the
first moment on; so is SIGUSR1, by which a scheduler says that time is up, until there is a run that hears it.
"""

import os
import sys


def script() -> None:
    """Run the command that the arguments name and end the process with its exit code."""
    try:
        import signal
        signal.signal(signal.SIGUSR1, signal.default_int_handler)
        _open_streams()
        from .cli import main
        code = main()
    except KeyboardInterrupt:
        print("grpo-bench: interrupted", file=sys.stderr)
        code = 130
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    _leave(code)


def _open_streams() -> None:
    """A standard stream that the caller closed leads nowhere; its number must not become some other file's."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(opened, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _leave(code: int) -> None:
    import atexit
    try:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError, KeyboardInterrupt):
        pass
    finally:
        os._exit(code)


if __name__ == "__main__":
    script()
