"""The documentation's Python runs as it stands, and its links lead somewhere."""

import re
import shutil
from pathlib import Path

import pytest

from overflow_fixer.rules import DEFAULT_RULES

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    )
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_python_in_the_documentation_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = ROOT / "calib_data" / "conv_chain"
    shutil.copy(sample / "model.onnx", tmp_path)
    shutil.copytree(sample / "data", tmp_path / "calib")
    monkeypatch.chdir(tmp_path)
    exec(code.replace("some/tensor", "/conv4/Conv_output_0"), {})
    assert list(tmp_path.rglob("model.fp16.onnx"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for path, heading in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", page.read_text(encoding="utf-8")):
        target = page.parent / path if path else page
        assert target.exists()
        assert not heading or heading in _list_headings(target)


def _list_headings(page: Path) -> set[str]:
    """As links name them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_rule_is_told_of() -> None:
    page = ROOT / "docs" / "numerics.md"
    rows = re.findall(r"^\| (.*?) \| ", page.read_text(encoding="utf-8"), re.MULTILINE)
    told = {re.sub(r"\[(.*)\]\(.*\)", r"\1", row) for row in rows}
    assert set(DEFAULT_RULES) - {"control_flow"} | {"region", "repair"} <= told
