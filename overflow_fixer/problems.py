"""What pydantic found wrong with settings or a file, in words that name no type of Python."""

from __future__ import annotations

from pydantic_core import ErrorDetails

_MESSAGES = {
    "tuple_type": "input should be a list",
    "path_type": "input should be a path",
    **dict.fromkeys(("dict_type", "model_type", "dataclass_type"), "input should be a table"),
}
"""Where pydantic's name Python's types, by its name of what is wrong."""


def say_problem(item: ErrorDetails) -> str:
    """What pydantic found wrong with one key, after the key, and the value that it found."""
    key = ".".join(map(str, item["loc"]))
    if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{key}: unknown key"
    message = say_message(item)
    if message.lower().startswith("input should"):
        message += f", not {_say_value(item['input'])}"
    return f"{key}: {message[0].lower()}{message[1:]}" if key else message


def say_message(item: ErrorDetails) -> str:
    """What pydantic found wrong, without the key and the value."""
    return _MESSAGES.get(item["type"], item["msg"]).removeprefix("Value error, ")


def _say_value(value: object) -> str:
    """As TOML and JSON have it, and no more than a line of it."""
    return str(value).lower() if isinstance(value, bool) else f"{value!r:.80}"
