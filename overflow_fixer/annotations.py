"""What a caller from Python gives, held against the annotations of what takes it.

pydantic's validate_call cannot be made of a function that takes a Protocol which is not for the runtime, as scans and verifications do.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from overflow_fixer.arguments import need_word
from overflow_fixer.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
_MADE_BY = {
    "Artifact": "as emit gives",
    "FixConfig": "which is made so: FixConfig(model=..., calib=...)",
    "Graph": "as load_graph gives",
    "InputSpec": "as load_graph(path).inputs has",
    "PlanPolicy": "which is made so: PlanPolicy(threshold=...)",
    "PrecisionPlan": "as plan_precision and load_plan give",
    "RangeTable": "as collect_ranges, load_ranges and merge_ranges give",
    "Runner": "as open_reference and open_runner give",
    "Tolerance": "which is made so: Tolerance(min_snr_db=...)",
}
_PLAIN = (str, bytes, Real, NoneType, os.PathLike, list, tuple, dict, set)
"""What is told by its value; of all else the type is."""


def held_to_types(function: F) -> F:
    """The function, with a ConfigError for an argument that is not what its annotation says, before anything is done.

    Of an Iterable its elements are left to the function, since they may be there once only, and so are those of a Protocol that
    cannot be asked at runtime. What is missing, or too much, Python tells.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def held(*given: Any, **named: Any) -> Any:
        hints = _find_hints(function)
        for name, value in signature.bind(*given, **named).arguments.items():
            need_type(name, value, hints[name])
        return function(*given, **named)

    return cast(F, held)


def need_types(record: Any, *names: str) -> None:
    """Raise ConfigError unless these attributes of a dataclass are what its annotations say."""
    kind: Any = type(record)
    for name in names:
        told = next(
            one for one in kind.__mro__ if name in inspect.get_annotations(one)
        )  # a subclass may name what is not there
        need_type(f"{kind.__name__}.{name}", getattr(record, name), _find_hints(told)[name])


def need_type(name: str, value: Any, hint: Any) -> None:
    """Raise ConfigError unless `value` is what the annotation `hint` says."""
    if get_origin(hint) is Literal:
        need_word(name, value, get_args(hint))
    elif not _fits(value, hint):
        raise ConfigError(f"{name} is {_tell(value)}. Expected {_say(hint)}. Give such a one.")
    elif Path in get_args(hint) and "\0" in str(value):
        raise ConfigError(
            f"{name} is {_tell(value)}, with a NUL character. Expected a path, which holds none. Give such a one."
        )


@cache
def _find_hints(annotated: Any) -> dict[str, Any]:
    return get_type_hints(annotated)


def _fits(value: Any, hint: Any) -> bool:
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in args)
    if origin is Callable:
        return callable(value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(one, kind) for item in value.items() for one, kind in zip(item, args, strict=True)
        )
    if origin is Iterable:
        return hasattr(value, "__iter__") or hasattr(value, "__getitem__")
    if args:  # a tuple or a Sequence
        is_several = isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping))
        return is_several and all(_fits(one, args[0]) for one in value)
    return _is_of_class(value, origin)


def _is_of_class(value: Any, kind: Any) -> bool:
    if kind is Path:
        return isinstance(value, os.PathLike)
    if kind is bool:
        return isinstance(value, (bool, np.bool_))
    if kind in (float, int):
        return isinstance(value, Real if kind is float else Integral) and not isinstance(value, bool)
    try:
        return isinstance(value, kind) or _stands_for(value, kind)
    except TypeError:  # of a Protocol that is not for the runtime
        return True


def _stands_for(value: Any, kind: Any) -> bool:
    """Whether it has all of a Protocol's attributes, perhaps handed on by its __getattr__, which isinstance does not ask from Python 3.12 on."""
    if not getattr(kind, "_is_protocol", False):
        return False
    return all(hasattr(value, name) for name in {*vars(kind), *get_type_hints(kind)} if name[0] != "_")


def _tell(value: Any) -> str:
    """On one line: what is plain by its value."""
    kind = type(value).__name__
    return " ".join(repr(value).split())[:80] if isinstance(value, _PLAIN) else f"of the type {kind}"


_WORDS: dict[Any, str] = {
    NoneType: "None",
    float: "a number",
    int: "a whole number",
    str: "a text",
    bool: "True or False",
    Path: "a Path",
    Any: "anything",
}


def _say(hint: Any) -> str:
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_say(one) for one in sorted(args, key=lambda one: one is NoneType))
    if origin in _WORDS:
        return _WORDS[origin]
    if origin is Callable:
        return "a function"
    if origin is Mapping:
        return f"a dict, of which each key is {_say(args[0])} and each value {_say(args[1])}"
    if origin is Iterable:
        return f"several, of which each is {_say(args[0])}"
    if args:
        return f"a tuple or list, of which each is {_say(args[0])}"
    name = origin.__name__
    made = f", {_MADE_BY[name]}" if name in _MADE_BY else ""
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}{made}"
