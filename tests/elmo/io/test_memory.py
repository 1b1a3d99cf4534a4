"""What is freed stays with the process, as the system's count of page faults shows."""

import sys
from pathlib import Path

import pytest

from tests.programs import python

FREED = """
import resource, sys
import torch
from elmo.io.memory import keep_freed_memory

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


LIBRARY = """
from pathlib import Path
from elmo.train.loop import fit
from elmo.train.step import WorkerGroup
from tests.elmo.run_job import make_job
fit(make_job(Path(sys.argv[1])), workers=WorkerGroup(0, 1), report=lambda *_: None)
print(faults_of_steps(), faults_of_steps())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told to keep memory")
def test_memory_that_a_step_freed_is_used_by_the_next() -> None:
    returned, kept = map(int, python(FREED).split())
    if returned < 1000:
        pytest.skip("this system's pages are too large to count")
    assert kept < returned / 10


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told to keep memory")
def test_the_library_changes_no_process_for_good(tmp_path: Path) -> None:
    code = FREED.partition("returned =")[0] + LIBRARY
    first, second = map(int, python(code, tmp_path).split()[-2:])
    if first < 1000:
        pytest.skip("this system's pages are too large to count")
    assert second > first / 2
