"""The command `elmo`: the sections of its help, its commands, and how errors end it."""

import getpass
import os
import signal
import sys
from traceback import extract_tb
from types import FrameType

import click

from elmo.errors import ElmoError, suggest_name
from elmo.io.memory import keep_freed_memory
from elmo.settings import list_stop_signals

from .. import RUN_VARIABLE
from ..stages import STAGES, load_stage
from . import convert, jobs, models, project, store_queries, task

SECTIONS: dict[str, list[click.Command]] = {
    "A project": [project.init, project.inspect, project.run_stages],
    "Use a model": [models.embed, models.perplexity, store_queries.neighbors, task.task],
    "Check a store": [store_queries.verify],
    "Other formats": [convert.import_, convert.export, convert.package, convert.dump],
    "On a cluster": [jobs.submit, jobs.unused],
    "Settings": [project.preset],
}
_MAX_HELP_CHARACTERS = 200  # so that a command's first sentence is wrapped, not truncated
_PRINT_FUNCTIONS = ("echo", "run_cli")  # functions that write to standard output


class SectionedGroup(click.Group):
    """A click group whose help lists its commands under headings, the stages first.

    The command of a stage is made only when it is needed, because its module is slow to load.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of the sections."""
        return [*STAGES, *self.commands]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the named command; for a mistyped one, suggest a similar one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if not (suggestion := suggest_name(args[0], self.list_commands(ctx))):
                raise
            raise click.UsageError(f"No such command {args[0]!r}{suggestion}", error.ctx) from None

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return the command of that name, or None."""
        if name not in STAGES:
            return super().get_command(ctx, name)
        from .stages import stage_command

        return stage_command(load_stage(name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help's lists of commands, one for each section."""
        stage_commands = [item for name in STAGES if (item := self.get_command(ctx, name))]
        for title, commands in {"Stages, in order": stage_commands, **SECTIONS}.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (str(item.name), item.get_short_help_str(_MAX_HELP_CHARACTERS))
                        for item in commands
                    ]
                )


@click.group(cls=SectionedGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="elmo-pipeline")
@click.option("-v", "--verbose", is_flag=True, help="Show details, and the traceback of an error.")
@click.option("-q", "--quiet", is_flag=True, help="Hide progress; print only results and errors.")
def cli(verbose: bool, quiet: bool) -> None:
    """Train ELMo on your own text, fine-tune it on a domain, and store its vectors as Parquet.

    `elmo init FOLDER` starts a project. `elmo run` in that folder runs the stages of dvc.yaml.

    \b
    Example: elmo init my-project --text my-text.txt; cd my-project; elmo run
    """
    if verbose:
        os.environ["ELMO_VERBOSE"] = "1"
    if quiet:
        os.environ["ELMO_QUIET"] = "1"


for commands in SECTIONS.values():
    for command in commands:
        cli.add_command(command)


def run_cli(commands: click.Group = cli, name: str = "elmo") -> None:
    """Run the command line and exit. Any error, even in usage, prints one line, with exit code 1.

    `name` is the command's name in help and errors. A bug prints its traceback; with --verbose, so
    does every error.
    """
    try:
        keep_freed_memory()
        for signum in list_stop_signals():
            signal.signal(signum, _interrupt)
        _set_home()
        with commands.make_context(name, sys.argv[1:]) as context:
            commands.invoke(context)
        sys.stdout.flush()
        if signal.getsignal(signal.SIGALRM) == _interrupt:  # it is postponed
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt
    except click.exceptions.Exit as exit_request:
        sys.exit(exit_request.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        sys.exit(error.format_message())
    except click.ClickException as error:
        command = getattr(getattr(error, "ctx", None), "command_path", name)
        message = _printable_line(" ".join(error.format_message().split()))
        full_stop = "" if message.endswith((".", "?", "?)")) else "."
        sys.exit(f"error: {message}{full_stop} See {command} --help")
    except KeyboardInterrupt:
        is_in_run = RUN_VARIABLE in os.environ
        sys.exit(1 if is_in_run else "error: interrupted; run the same command again")
    except Exception as error:
        _exit_with_message(error)
    finally:  # our handlers must not run while Python exits
        for signum in list_stop_signals():
            signal.signal(signum, signal.SIG_DFL)


def _set_home() -> None:
    """Set a home and a user name for libraries, if this user has no entry in passwd."""
    if os.path.expanduser("~") == "~":
        from elmo.io.location import temporary_folder

        os.environ["HOME"] = str(temporary_folder())
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["USER"] = str(os.getuid())


def _exit_with_message(error: Exception) -> None:
    """Exit with one line for an error in input or environment; a bug keeps its traceback."""
    from ..terminal.failures import user_message

    message = str(error) if isinstance(error, ElmoError) else user_message(error)
    if isinstance(error, OSError) and extract_tb(error.__traceback__)[-1].name in _PRINT_FUNCTIONS:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else exit flushes again
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        message = f"standard output: {error.strerror}; redirect it; all output files are complete"
    if message is None or os.environ.get("ELMO_VERBOSE"):
        raise error
    sys.exit(f"error: {_printable_line(message)}")


def _printable_line(message: str) -> str:
    """Return a message on one line, without logins."""
    from ..terminal.failures import escape_control_characters
    from ..terminal.urls import hide_credentials

    return escape_control_characters(hide_credentials(message))


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`, and ignore later SIGTERMs: `elmo run` may send two for one stop.

    A running import ends first, because Arrow's import of pandas would lose the interrupt.
    """
    signal.signal(signal.SIGTERM, lambda *_: None)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            signal.signal(signal.SIGALRM, _interrupt)
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            return
        frame = frame.f_back
    raise KeyboardInterrupt
