"""`elmo`, `python -m elmo_pipeline`, and in the repository `python -m pipeline`."""

import sys


def main() -> None:
    """Run the command line, or say what to install for it."""
    try:
        import click  # noqa: F401
    except ModuleNotFoundError:
        sys.exit(
            "error: the elmo command needs the pipeline; run: pip install 'elmo-pipeline[pipeline]'"
        )
    from .commands.cli import run

    run()


if __name__ == "__main__":
    main()
