"""A command whose help is told as a result is."""

from __future__ import annotations

from typing import Any

import click

from overflow_fixer.cli.results import on_stdout


class TellsHelp(click.Command):
    """click writes the help, and the version, while it reads the arguments. Raises OutputError where stdout cannot be written."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with on_stdout():
            return super().make_context(info_name, args, parent, **extra)
        raise click.exceptions.Exit(0)  # nobody reads on
