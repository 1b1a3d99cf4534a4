"""The commands for a cluster: `submit`, and `unused` for outputs that nothing uses."""

import json
import sys
from functools import partial
from pathlib import Path

import click

from .options import JSON, PARAMS, check_stdout

_note = partial(click.echo, err=True)


@click.command()
@click.argument("stages", nargs=-1)
@click.option(
    "--address",
    help="Ray's Jobs API, such as http://HEAD:8265. Default: RAY_API_SERVER_ADDRESS, or else "
    "RAY_ADDRESS.",
)
@click.option("--folder", help="The folder on the cluster's shared storage, or a URL.")
@click.option("--command", help="A command to run instead of stages.")
@click.option(
    "--env", "variables", multiple=True, help="Also send this variable: NAME or NAME=VALUE."
)
@PARAMS
def submit(
    stages: tuple[str, ...],
    address: str | None,
    folder: str | None,
    command: str | None,
    variables: tuple[str, ...],
    params_file: Path,
) -> None:
    """Run STAGES (default: all) and the stages they need on a Ray cluster, with `dvc repro`.

    The job gets the code and params of this folder, and environment variables for S3, Azure, Google
    and MLflow. The exit code is that of the job. If you interrupt this command, the job continues,
    and Ray's commands for it (`ray job logs`, `ray job stop`) are printed.

    \b
    Example: elmo submit pretrain --address http://head:8265 --folder /shared/elmo
    """
    from ..cluster import storage
    from ..cluster import submit as cluster_jobs
    from ..cluster.job import DVC_LOCK

    old_lock = Path(DVC_LOCK).read_bytes() if Path(DVC_LOCK).exists() else b""
    client, job_id = cluster_jobs.submit(
        list(stages),
        address=address,
        folder=folder,
        command=command,
        variables=variables,
        params=params_file,
        say=_note,
    )
    try:
        code = cluster_jobs.follow_log(client, job_id)
    except KeyboardInterrupt:
        _note("\n".join([f"\n{job_id} continues:", *cluster_jobs.list_commands(client, job_id)]))
        sys.exit(130)
    url = storage.storage_url()
    if code == 0 and command is None and url and folder in (None, url):
        from ..cluster import results

        paths = results.copy_results(url, job_id, old_lock=old_lock)
        _note(f"{len(paths)} results of the job copied here; the data stays at {url}")
    sys.exit(code)


@click.command()
@click.option("--remove", is_flag=True, help="Delete these outputs at the URL.")
@JSON
def unused(remove: bool, as_json: bool) -> None:
    """List the outputs at the storage URL that nothing uses; --remove deletes them.

    An output is used if it is named by a dvc.lock in any git object, by a pointer in any
    worktree or experiment of this project, or by a job at the URL. First run `git fetch --all`
    and `dvc fetch --all-commits`.

    \b
    Example: elmo unused; elmo unused --remove
    """
    from elmo.errors import ElmoError

    from ..cluster import storage
    from ..cluster import unused as unused_outputs

    check_stdout(is_needed=not remove)
    url = storage.storage_url()
    if not url:
        raise ElmoError("cluster.yaml: storage is empty, so all outputs are here; set it to a URL")
    report = unused_outputs.find_unused(url)
    if remove:
        unused_outputs.remove(url, report)
    for name in report.outputs:
        click.echo(json.dumps({"output": f"{url}/{name}"}) if as_json else f"{url}/{name}")
    _note(f"{len(report.outputs)} unused outputs {'removed' if remove else 'found'}")
    if report.unknown_count:
        _note(
            f"{report.unknown_count} outputs of commits are not in DVC's cache "
            "and may be among these"
        )
