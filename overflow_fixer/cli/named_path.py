"""A path that somebody named: an empty one, of a variable that is not set in a script, would be the current folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class NamedPath(click.Path):
    """Paths as pathlib has them. An empty one is refused as a fault of usage; whether the file can be read is for whoever
    reads it to say, with its exit code and what to do.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path, readable=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(_refuse_nothing(self, value, param, ctx), param, ctx)


class NamedSource(click.types.StringParamType):
    """What data are named by, a path or a word, as text. An empty one is refused as NamedPath refuses it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(_refuse_nothing(self, value, param, ctx), param, ctx)


def _refuse_nothing(
    kind: click.Path | click.types.StringParamType,
    value: Any,
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> Any:
    if value == "":
        kind.fail('"" names nothing. Expected the path of a file or folder.', param, ctx)
    return value
