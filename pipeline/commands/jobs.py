"""The commands for a cluster: submit, and unused for what jobs left at a URL."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from .options import JSON, PARAMS


@click.command()
@click.argument("stages", nargs=-1)
@click.option(
    "--address", help="The cluster's Jobs API, as http://HEAD:8265; else RAY_API_SERVER_ADDRESS."
)
@click.option("--folder", help="The folder of the cluster's shared storage to work in.")
@click.option("--command", help="A command line to run instead of stages.")
@click.option(
    "--env", "variables", multiple=True, help="A variable to send too: NAME or NAME=VALUE."
)
@click.option("--no-wait", is_flag=True, help="Do not follow the job.")
@PARAMS
def submit(
    stages: tuple[str, ...],
    address: str | None,
    folder: str | None,
    command: str | None,
    variables: tuple[str, ...],
    no_wait: bool,
    params_file: Path,
) -> None:
    """Run STAGES and what they need (default: all) on a Ray cluster, as `dvc repro` there.

    The code and params of this folder are sent, and variables of an allow-list (of S3, Azure,
    Google and MLflow). The exit code is the job's. Interrupting leaves the job running; Ray's own
    commands for it (`ray job logs`, `ray job stop`) are printed.

    \b
    Example: elmo submit pretrain --address http://head:8265 --folder /shared/elmo
    """
    from ..cluster import storage
    from ..cluster import submit as cluster_jobs
    from ..cluster.job import LOCK

    before = Path(LOCK).read_bytes() if Path(LOCK).exists() else b""
    client, job = cluster_jobs.submit(
        list(stages),
        address=address,
        folder=folder,
        command=command,
        variables=variables,
        params=params_file,
        say=_say,
    )
    if not no_wait:
        code = _followed(client, job)
        url = storage.root()
        if code == 0 and command is None and url and folder in (None, url):
            _bring_back(url, job, before)
        sys.exit(code)


@click.command()
@click.option("--remove", is_flag=True, help="Delete them at the URL.")
@JSON
def unused(remove: bool, as_json: bool) -> None:
    """List the outputs at the storage's URL that nothing names; --remove deletes them.

    Outputs are named by each dvc.lock among git's objects, by the pointers of this project in all
    worktrees and experiments, and by jobs at the URL: run `git fetch --all` first, and `dvc fetch
    --all-commits`.

    \b
    Example: elmo unused; elmo unused --remove
    """
    from elmo.errors import ElmoError

    from ..cluster import storage
    from ..cluster import unused as outputs

    url = storage.root()
    if not url:
        raise ElmoError("storage in cluster.yaml is empty: the outputs lie in this folder")
    found = outputs.find_unused(url)
    if remove:
        outputs.remove(url, found)
    for name in found.outputs:
        click.echo(json.dumps({"output": f"{url}/{name}"}) if as_json else f"{url}/{name}")
    _say(f"{len(found.outputs)} outputs that nothing names {'removed' if remove else 'found'}")
    if found.unknown:
        _say(f"{found.unknown} outputs of commits are not in DVC's cache and may be among these")


def _bring_back(url: str, job: str, before: bytes) -> None:
    """Make this folder as the job left its."""
    from ..cluster import results

    paths = results.bring_back(url, job, before=before)
    _say(f"{len(paths)} results of the job are here; the data stay at {url}")


def _followed(client: Any, job: str) -> int:
    """Print a job's log until it ends; its exit code."""
    from ..cluster import submit as cluster_jobs

    try:
        return cluster_jobs.follow(client, job)
    except KeyboardInterrupt:
        _say("\n".join([f"\n{job} continues:", *cluster_jobs.commands_of(client, job)]))
        sys.exit(130)


def _say(line: str) -> None:
    click.echo(line, err=True)
