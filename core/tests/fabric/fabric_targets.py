"""Workers that tests start, by name, in this process and in others."""

import asyncio
import os
import subprocess
import sys
import time

from grpo_bench.contract import BatchError, Boundary


class PluginBatchError(BatchError):
    """A type that the engine's process does not know."""


class Beyond(BaseException):
    """What some libraries raise."""


class Worker:
    def __init__(self, context):
        self.context = context
        self.log = []

    def echo(self, *values, **named):
        return (values, named) if named else values[0]

    async def add(self, left, right):
        await asyncio.sleep(0)
        return left + right

    def identity(self):
        return self.context.group, self.context.rank, self.context.size, self.context.config, os.getpid()

    def environment(self, *names):
        return [os.environ.get(name) for name in names]

    def rendezvous(self, text):
        path = os.path.join(self.context.rendezvous, str(self.context.rank))
        with open(path, "w") as stream:
            stream.write(text)
        return sorted(os.listdir(self.context.rendezvous))

    def note(self, text):
        self.log.append(text)

    def notes(self):
        return self.log

    async def wait(self):
        self.log.append("waiting")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise

    async def fail(self):
        raise ValueError("the value is bad")

    def fail_beyond(self):
        raise Beyond("no Exception")

    async def fail_known(self):
        raise PluginBatchError("no rows", hint="make some", boundary=Boundary("torch", "trainer", None, 3))

    async def give_up(self):
        raise asyncio.CancelledError

    async def time_out(self):
        raise TimeoutError("mine")

    def unsendable(self):
        return object()

    def block(self, seconds):
        self.log.append("blocked")
        time.sleep(seconds)  # noqa: TID251

    def die(self, code):
        print("the last words", file=sys.stderr)
        os._exit(code)

    async def miss(self, code):
        """Rank 1 ends; the others raise, before the engine can know of that."""
        if self.context.rank != 1:
            raise ConnectionResetError("reset by peer")
        await asyncio.sleep(0.2)
        os._exit(code)

    def leave(self, code):
        sys.exit(code)

    def spawn(self, new_session=False):
        return subprocess.Popen(["sleep", "600"], start_new_session=new_session).pid

    def family(self):
        """A child and its child, each in a session of its own."""
        code = ("import subprocess, time\n"
                "print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)\ntime.sleep(600)")
        child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, start_new_session=True)
        assert child.stdout is not None
        return [child.pid, int(child.stdout.readline())]

    def burn(self, seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    def burn_in_child(self, seconds, wait):
        code = (f"import time\nwhile time.process_time() < {seconds}: pass\n"
                f"print(1, flush=True)\ntime.sleep(600 * {not wait})")
        child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        if wait:
            child.communicate()

    async def call(self, address, method, *args):
        return await (await self.context.connect(address)).call(method, *args)

    async def call_within(self, seconds, address, method):
        return await (await self.context.connect(address)).call(method, deadline_s=seconds)

    async def keep_remote(self, address):
        self.remote = await self.context.connect(address)

    async def use_remote(self, method, *args):
        return await self.remote.call(method, *args)

    async def same_object(self, address):
        """Whether a value reaches the other worker without being copied."""
        value = object()
        return await (await self.context.connect(address)).call("echo", value) is value

    async def speak(self):
        self.context.logger.info("an event", answer=42)
        self.context.logger.warning("the %s form", "other")
        return self.context.clock.monotonic() > 0, self.context.clock.now_utc()


class Closing(Worker):
    async def close(self):
        self.append(f"{self.context.rank}\n")

    def append(self, line):
        with open(self.context.config, "a") as stream:
            stream.write(line)


class BadClosing(Worker):
    async def close(self):
        raise RuntimeError("cannot close")


async def later(context):
    await asyncio.sleep(0)
    return Worker(context)


def refuse(context):
    """Rank 1 cannot start, the others can."""
    if context.rank == 1:
        raise RuntimeError("no device")
    return Closing(context)


class FailsAtRank1(Worker):
    async def wait(self):
        if self.context.rank == 1:
            raise RuntimeError("rank 1")
        await super().wait()


def never(context):
    time.sleep(600)  # noqa: TID251


class Sleeper(Worker):
    async def sleep(self, seconds):
        await asyncio.sleep(seconds)
