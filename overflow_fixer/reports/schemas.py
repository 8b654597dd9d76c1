"""The JSON Schemas that ship with the package, and reading files that must obey one."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from overflow_fixer.errors import FixError
from overflow_fixer.reports.numbers_json import parse_json

_MESSAGE_LENGTH = 200


def read_schema(name: str) -> dict[str, Any]:
    """A schema of this package by its file name, such as "report.schema.json"."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    schema: dict[str, Any] = parse_json(text)
    return schema


def find_violation(document: Any, schema: dict[str, Any]) -> str | None:
    """Where `document` breaks `schema` and how, such as "pins[3].node: 7 is not of type 'string'".

    None when it obeys. Of several violations, the one that jsonschema finds most telling.
    """
    import jsonschema  # a tenth of a second, which only who reads a file need spend

    validator = jsonschema.Draft202012Validator(schema)
    error = jsonschema.exceptions.best_match(validator.iter_errors(document))
    if error is None:
        return None
    message = error.message
    if len(message) > _MESSAGE_LENGTH:
        half = _MESSAGE_LENGTH // 2
        message = f"{message[:half]} ... {message[-half:]}"
    return f"{_place(error.absolute_path)}: {message}"


def read_checked(path: Path, schema_name: str, advice: str, absent: str, refusal: type[FixError]) -> Any:
    """The document in a JSON file that obeys a schema.

    Raises `refusal`, which says what is wrong and where, then `advice` (what was expected, and what
    to do), for a file that cannot be read, is not JSON, or breaks the schema; then `absent` for one that is not there.
    """
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise refusal(f"{path} is not there. {absent}") from error
    except PermissionError as error:
        raise refusal(
            f"{path} cannot be read: {error.strerror}. Expected a file that this user may read. Change its permissions (chmod)."
        ) from error
    except OSError as error:
        raise refusal(f"{path} cannot be read: {error.strerror or error}. {advice}") from error
    except ValueError as error:  # not UTF-8, not JSON, or a key twice
        raise refusal(f"{path} is not JSON that can be used: {error}. {advice}") from error
    schema = read_schema(schema_name)
    violation = _wrong_version(document, schema) or find_violation(document, schema)
    if violation is not None:
        raise refusal(f"{path} is not what it should be: {violation}. {advice}")
    return document


def _wrong_version(document: Any, schema: dict[str, Any]) -> str | None:
    """Said first, since another version's file may break the schema anywhere."""
    known = schema["properties"]["schema_version"]["const"]
    found = document.get("schema_version", known) if isinstance(document, dict) else known
    return (
        None if found == known else f"its schema_version is {found!r:.40}, and this version reads {known!r}"
    )


def _place(path: Iterable[str | int]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text or "the whole document"
