"""Each kind of problem that pydantic tells, as a user reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from overflow_fixer.problems import say_message, say_problem


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")

    depth: int = 0


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    names: tuple[str, ...] = ()
    place: Path = Path()
    rate: float = Field(default=1.0, gt=0)
    quiet: bool = False
    table: _Table = _Table()

    @field_validator("quiet")
    @classmethod
    def _refuse_quiet(cls, value: bool) -> bool:
        if value:
            raise ValueError("Nobody is quiet")
        return value


def _find(settings: Any) -> ErrorDetails:
    with pytest.raises(ValidationError) as caught:
        _Settings.model_validate(settings)
    (item,) = caught.value.errors()
    return item


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"names": 3}, "names: input should be a list, not 3"),
        ({"place": False}, "place: input should be a path, not false"),
        ({"table": "deep"}, "table: input should be a table, not 'deep'"),
        ({"table": {"width": 1}}, "table.width: unknown key"),
        ({"rate": 0}, "rate: input should be greater than 0, not 0"),
        ({"quiet": True}, "quiet: nobody is quiet"),
        ([], "input should be a table, not []"),
        (
            {"rate": "x" * 200},
            f"rate: input should be a valid number, unable to parse string as a number, not {chr(39)}{79 * 'x'}",
        ),
    ],
)
def test_a_problem_is_told_by_key_and_value_without_types_of_python(settings: Any, said: str) -> None:
    assert say_problem(_find(settings)) == said


def test_a_message_has_neither_key_nor_value() -> None:
    assert say_message(_find({"names": 3})) == "input should be a list"
    assert say_message(_find({"quiet": True})) == "Nobody is quiet"
