"""Workers that the tests start on the cluster's hosts, by name."""

import asyncio
import os
import subprocess

import numpy as np


class Worker:
    def __init__(self, context):
        self.context = context
        self.log = []

    def facts(self):
        return {"pid": os.getpid(), "parent": os.getppid(), "host": self.context.host, "cwd": os.getcwd(),
                "rendezvous": self.context.rendezvous, "config": self.context.config,
                "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "threads": os.environ["OMP_NUM_THREADS"]}

    def echo(self, value):
        return value

    def total(self, array):
        return float(array.sum())

    def batch(self, size):
        return np.ones(size, np.uint8)

    def spawn(self):
        return subprocess.Popen(["sleep", "600"]).pid

    def notes(self):
        return self.log

    async def wait(self):
        self.log.append("waiting")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise

    async def ask(self, address, method, *args):
        return await (await self.context.connect(address)).call(method, *args)

    async def ask_within(self, seconds, address, method):
        return await (await self.context.connect(address)).call(method, deadline_s=seconds)
