"""The command `fix-fp16`: one module a verb. `fix-fp16 MODEL ...` alone is the main job."""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

import click

from overflow_fixer import __version__
from overflow_fixer.cli.guard import STOPPED, run_guarded
from overflow_fixer.cli.lenient_stderr import drop_unwritable
from overflow_fixer.cli.results import open_closed
from overflow_fixer.cli.verb import TellsHelp
from overflow_fixer.errors import EXIT_FAULT, EXIT_STOPPED, ConfigError, FixError, ModelError
from overflow_fixer.host.shortages import tell_shortage

VERBS = ("fix", "scan", "plan", "build", "verify", "report", "zoo", "doctor")
"""Each is a module here, imported when it is called for: a plan does without what a build needs."""
_NO_WORKING_FOLDER = (
    "the working folder is not there any more. Expected one, from which relative paths are told. Change to a folder that is "
    "there (cd), and run the command again."
)


class _MainJobByDefault(TellsHelp, click.Group):
    """A group of the verbs that takes anything but a verb as the main job's arguments."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        command: click.Command = getattr(import_module(f"overflow_fixer.cli.{name}"), f"{name}_command")
        return command

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*VERBS, "--help", "-h", "--version"):
            _refuse_mistyped(*args[:2])
            args = ["fix", *args]
        return super().parse_args(context, args)


def _refuse_mistyped(word: str, following: str = "-") -> None:
    """Raise UsageError for a word that was meant as a verb: alike one, or before what can be its model."""
    if Path(word).suffix or os.path.exists(word) or word.startswith("-"):
        return
    alike = difflib.get_close_matches(word, VERBS, 1)
    if alike or not following.startswith("-"):
        meant = f" Did you mean {alike[0]}?" if alike else ""
        raise click.UsageError(
            f"{word!r} is neither a verb ({', '.join(VERBS)}) nor the path of a model.{meant}"
        )


@click.group(cls=_MainJobByDefault, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fix-fp16")
def cli() -> None:
    """Find what overflows in FP16 in an ONNX model, keep just that in FP32, and prove it.

    The main job: fix-fp16 MODEL --calib PATH [--out DIR] ...

    (the same as `fix-fp16 fix`, whose --help lists every flag). The other commands run one stage
    from the files of the stage before.
    """


def main(args: list[str] | None = None) -> None:
    """Run a command and exit: with the error's own code and one paragraph where it fails.

    As a program (no `args`), guarded against a crash and a want of memory: see `guard`.
    """
    open_closed()
    if args is not None:
        sys.exit(run(args))
    drop_unwritable()
    sys.exit(run_guarded(lambda: run(None)))


def run(args: list[str] | None) -> int:
    """Run a command and return its exit code; an error is one paragraph on stderr, with --debug behind its traceback."""
    shows_traceback = "--debug" in (args if args is not None else sys.argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = cli.main(args, prog_name="fix-fp16", standalone_mode=False)
    except FixError as error:
        if shows_traceback:
            traceback.print_exc()
        click.echo(f"fix-fp16: {error}", err=True)
        code = error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = error.exit_code
    except click.ClickException as error:
        message = error.format_message()
        end = "" if message.endswith(("?", ".")) else "."
        click.echo(f"fix-fp16: {message}{end} See {_name_help(error)} for what is expected.", err=True)
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        click.echo(f"fix-fp16: {str(error.__cause__ or error) or STOPPED}", err=True)
        code = EXIT_STOPPED
    except Exception as error:
        if shows_traceback:
            traceback.print_exc()
        message, code = _explain(error)
        click.echo(f"fix-fp16: {message}", err=True)
    return int(code or 0)


def _name_help(error: click.ClickException) -> str:
    """The command that lists the options of the verb that was called: of the group's own lists none."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{context.command_path if context is not None else 'fix-fp16'} --help"


def _explain(error: Exception) -> tuple[str, int]:
    """A sentence and the exit code for an error that is none of this tool's own."""
    if isinstance(error, FileNotFoundError) and not _has_working_folder():
        return _NO_WORKING_FOLDER, ConfigError.exit_code
    shortage = tell_shortage(error)
    if shortage is not None:
        return shortage, ModelError.exit_code
    fault = f"a fault of fix-fp16 itself: {type(error).__name__}: {error}"
    advice = (
        "Expected no such error on any input. Run the command again with --debug and report what it prints."
    )
    return f"{fault}. {advice}", EXIT_FAULT


def _has_working_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
