"""Functions in processes of their own, forked from one that has imported what they need."""

import multiprocessing
from collections.abc import Callable, Iterable
from multiprocessing.process import BaseProcess
from typing import Any

_FORKS = multiprocessing.get_context("forkserver")
# Of all tests: there is one such server, and its first user says what it imports. What is not
# installed, it leaves out.
_PRELOADED = [
    "tests.elmo.run_job",
    "tests.hostile.processes",
    "elmo.store.build",
    "elmo.store.dump",
    "elmo.store.verify",
    "elmo.interop.files_of_2018",
    "mlflow.pyfunc",
    "mlflow.tracking",
    "pipeline.commands.cli",
    "pipeline.stages.finetune",
    "pipeline.stages.register",
    "elmo.train.perplexity",
    "pipeline.stages.training",
    "pipeline.cluster.workers",
    "ray.train.torch",
]


def forked(function: Callable[..., object], *arguments: Any) -> BaseProcess:
    """Begin a function of a module: a fresh process takes seconds to import it, this one none."""
    _FORKS.set_forkserver_preload(_PRELOADED)
    process = _FORKS.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def finish(processes: Iterable[BaseProcess]) -> None:
    """Wait for processes, all begun before, which must end well."""
    for process in [*processes]:
        process.join()
        assert process.exitcode == 0
