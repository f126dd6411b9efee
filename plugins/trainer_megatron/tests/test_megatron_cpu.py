"""The CPU in a GPU's place: what it answers, and that it keeps out of the way."""

from __future__ import annotations

import subprocess
import sys

WATCHED = """
import sys, torch
torch.cuda.is_available = lambda: {cuda}
def watched():
    names = [(torch, name) for name in ("zeros", "tensor", "arange", "compile")]
    names += [(torch.Tensor, name) for name in ("to", "type", "cuda")] + [(torch.cuda, "current_device")]
    names += [(torch.distributed, name) for name in ("barrier", "all_to_all_single")]
    return [getattr(holder, name) for holder, name in names]
before = watched()
from grpo_bench_trainer_megatron import cpu
print(cpu.install(), [a is b for a, b in zip(before, watched())].count(True), len(before))
"""
ANSWERS = """
import torch
from grpo_bench_trainer_megatron import cpu
assert cpu.install() and cpu.install()
here = torch.device("cpu")
for device in ("cuda", "cuda:1", 0, torch.device("cuda", 1), torch.cuda.current_device()):
    assert torch.zeros(2, device=device).device == here and torch.ones(2).to(device).device == here
assert torch.ones(2, device="meta").device.type == "meta" and torch.ones(2).to("meta").device.type == "meta"
with torch.device("meta"):
    assert torch.zeros(2).device.type == "meta"
assert torch.ones(2).to(torch.float64).dtype == torch.float64 and torch.ones(2).type() == "torch.cuda.FloatTensor"
assert torch.ones(2).type(torch.int32).dtype == torch.int32
with torch.cuda.stream(torch.cuda.Stream()):
    torch.cuda.current_stream().wait_event(torch.cuda.Event())
assert torch.compile(len) is len and torch.compile(dynamic=True)(len) is len
"""


def run(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_it_changes_nothing_where_cuda_is_there():
    assert run(WATCHED.format(cuda=True)) == ["False", "10", "10"]


def test_it_takes_every_place_where_there_is_no_cuda():
    assert run(WATCHED.format(cuda=False)) == ["True", "0", "10"]


def test_it_answers_for_cuda():
    run(ANSWERS)
