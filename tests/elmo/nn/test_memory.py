"""What is freed stays with the process, as the system's count of page faults shows."""

import subprocess
import sys

import pytest

FREED = """
import resource, sys
import torch
from elmo.nn.memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    torch.ones(64 * 2**20, dtype=torch.uint8)  # more than glibc ever keeps by itself

def faults_of_steps():
    before = faults()
    for _ in range(20): step()
    return faults() - before

returned = faults_of_steps()
keep_freed_memory()
faults_of_steps()  # until the heap has grown to what a step needs
print(returned, faults_of_steps())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told to keep memory")
def test_memory_that_a_step_freed_is_used_by_the_next() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    returned, kept = map(int, done.stdout.split())
    if returned < 1000:
        pytest.skip("this system's pages are too large to count")
    assert kept < returned / 10
