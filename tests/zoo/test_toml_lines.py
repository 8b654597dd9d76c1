"""Keys are found in the lines in which they stand, whatever form they have."""

from __future__ import annotations

import sys

import pytest

from overflow_fixer.zoo.toml_lines import Key, find_lines, line_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXT = """\
out = "o"
[defaults]
calib = "c"   # comment
[defaults.plan]
threshold = 5
plan2.deep.key = 1
[[model]]   # the first
path = "a"
[model.plan]
threshold = 7
[[model]]
path = "b"
"quoted key" = 1
[model.build.profile]
x = [
  [1, 2],
  [3, 4],
]
[defautls.plan]
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("out",), 1),
        (("defaults",), 2),
        (("defaults", "calib"), 3),
        (("defaults", "plan", "threshold"), 5),
        (("defaults", "plan", "plan2", "deep", "key"), 6),
        (("model",), 7),
        (("model", 0), 7),
        (("model", 0, "path"), 8),
        (("model", 0, "plan"), 9),
        (("model", 0, "plan", "threshold"), 10),
        (("model", 1, "path"), 12),
        (("model", 1, "quoted key"), 13),
        (("model", 1, "build", "profile", "x"), 15),
        (("model", 1, "build", "profile", "x", 0, 1), 15),
        (("model", 1, "verify", "min_snr_db"), 11),
        (("defautls",), 19),
        (("nowhere",), None),
    ],
)
def test_a_key_has_its_line_or_that_of_the_table_around_it(key: Key, line: int | None) -> None:
    assert line_of(key, find_lines(TEXT)) == line


@pytest.mark.parametrize(
    "value",
    [
        "[\n  [1, 2],\n  [3]\n]",
        '[ # [\n  \'a]\', # ]\n  "b\\"]",\n]',
        '"""\n[other]\ny = [\\""""',
        "'''\n[other]\ny = [\n'''",
        "1 # a line separator of Unicode ends no line: \u2028",
    ],
)
def test_what_looks_like_a_table_in_a_value_is_none(value: str) -> None:
    text = f"[model]\nx = {value}\ny = 1\n"
    assert set(tomllib.loads(text)["model"]) == {"x", "y"}
    assert find_lines(text) == {("model",): 1, ("model", "x"): 2, ("model", "y"): 3 + value.count("\n")}
