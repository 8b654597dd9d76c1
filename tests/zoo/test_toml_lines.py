"""Keys are found in the lines in which they stand, whatever form they have."""

from __future__ import annotations

import pytest

from overflow_fixer.zoo.toml_lines import Key, find_lines, line_of

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
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("out",), 1),
        (("defaults",), 2),
        (("defaults", "calib"), 3),
        (("defaults", "plan", "threshold"), 5),
        (("defaults", "plan", "plan2", "deep", "key"), 6),
        (("model", 0), 7),
        (("model", 0, "path"), 8),
        (("model", 0, "plan"), 9),
        (("model", 0, "plan", "threshold"), 10),
        (("model", 1, "path"), 12),
        (("model", 1, "quoted key"), 13),
        (("model", 1, "build", "profile", "x"), 15),
        (("model", 1, "build", "profile", "x", 0, 1), 15),
        (("model", 1, "verify", "min_snr_db"), 11),
        (("nowhere",), None),
    ],
)
def test_a_key_has_its_line_or_that_of_the_table_around_it(key: Key, line: int | None) -> None:
    assert line_of(key, find_lines(TEXT)) == line
