"""Results of a zoo that would lie over each other, or among data: refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from overflow_fixer.config import FixConfig
from overflow_fixer.errors import ConfigError
from overflow_fixer.zoo.entries import Zoo, ZooEntry
from overflow_fixer.zoo.fixing import fix_zoo
from overflow_fixer.zoo.places import check_places


def _entry(folder: Path, name: str, calib: Path | str = "random") -> ZooEntry:
    return ZooEntry(name, FixConfig(model=Path("m.onnx"), calib=calib, out=folder / name))


def _zoo(folder: Path, *names: str) -> Zoo:
    return Zoo(Path("zoo.toml"), folder, tuple(_entry(folder, name) for name in names))


@pytest.mark.parametrize("name", ["zoo-report.json", "zoo-report.html/x", ".zoo-report.lock", "."])
def test_a_name_of_the_zoos_own_files_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"is a place of the zoo itself.*Nothing was run"):
        check_places(_zoo(tmp_path, "g", name))
    check_places(_zoo(tmp_path, "zoo-report", "my-zoo-report.json", "report.json"))


def test_a_file_in_the_place_of_the_results_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name, told in (
        ("taken", "taken is a file. Expected a folder, or"),
        ("taken/below/out", "taken is a file. Expected a folder, for .*out to lie in, or"),
        ("link", "link is a link to nothing"),
    ):
        with pytest.raises(ConfigError, match=told):
            check_places(_zoo(tmp_path / name, "m"))
    check_places(_zoo(tmp_path / "new" / "out", "m"))


@pytest.mark.parametrize("names", [("g", "g/plan.json"), ("g/fused/b", "g"), ("g", "./g/.trials-x")])
def test_a_folder_in_anothers_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="would lie in that of its model 'g'"):
        check_places(_zoo(tmp_path, *names))
    with pytest.raises(ConfigError, match="would lie in that of its model 'g'"):
        next(fix_zoo(_zoo(tmp_path, *names).entries))
    check_places(_zoo(tmp_path, "g", "g2/plan.json", "g.x", "g/x", "g/y/plan.json"))


@pytest.mark.parametrize("out", ["calib", "calib/m", "calib/m/deep"])
def test_results_among_data_are_refused(tmp_path: Path, out: str) -> None:
    """As where a zoo's `out` is the folder in which each model has its data, by its name."""
    data, folder = tmp_path / "calib" / "m", tmp_path / out
    data.mkdir(parents=True)
    zoo = Zoo(Path("zoo"), folder, (_entry(folder, "m", data), _entry(folder, "n")))
    with pytest.raises(ConfigError, match="lies in the folder of the calibration data"):
        check_places(zoo)
    with pytest.raises(ConfigError, match="lies in the folder of the calibration data"):
        next(fix_zoo(zoo.entries))
    assert list(data.iterdir()) == []


def test_another_models_data_are_no_place_either(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(ConfigError, match="lies in the folder of the calibration data"):
        check_places(
            Zoo(Path("zoo"), tmp_path, (_entry(tmp_path, "m", tmp_path / "a"), _entry(tmp_path, "a/n")))
        )
