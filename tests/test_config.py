"""Settings: every key documented, unknown ones refused, flags over file over defaults."""

import json
import math
import os
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from overflow_fixer.calibration.options import ImageOptions
from overflow_fixer.config import FixConfig, check_folders, make_config, read_config_file
from overflow_fixer.errors import ConfigError, ModelError
from overflow_fixer.records import PlanPolicy, Tolerance

DEFAULTS = Path(__file__).parents[1] / "configs" / "default.toml"
FLAGS = {"model": "m.onnx", "calib": "data"}


def _uncommented() -> str:
    """default.toml with its commented keys and tables made live; its first three lines are prose."""
    lines = DEFAULTS.read_text().splitlines()[3:]
    return "\n".join(line.removeprefix("# ") for line in lines)


def _keys(table: object) -> set[str]:
    if isinstance(table, BaseModel):
        return set(type(table).model_fields)
    return {field.name for field in fields(table)} if is_dataclass(table) else set()


def test_default_toml_is_the_defaults() -> None:
    assert make_config(DEFAULTS, FLAGS) == make_config(None, FLAGS)


def test_default_toml_documents_every_key(tmp_path: Path) -> None:
    path = tmp_path / "all.toml"
    path.write_text(_uncommented())
    tables = read_config_file(path)
    assert make_config(path, {}).calibration.images is not None
    for name, field in FixConfig.model_fields.items():
        assert name in tables
        if _keys(field.default):
            assert set(tables[name]) == _keys(field.default)
    images = make_config(path, {}).calibration.images
    assert images is not None
    assert set(tables["calibration"]["images"]) == _keys(images)


def test_flags_win_over_the_file_which_wins_over_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "fix.toml"
    path.write_text('calib = "there"\n[plan]\nthreshold = 500\nmasks = "pin"\n')
    config = make_config(path, {"model": "m.onnx", "plan": {"threshold": 700.0, "masks": None}})
    assert (config.plan.threshold, config.plan.masks, config.calib) == (700.0, "pin", "there")
    assert config.verify.min_snr_db == Tolerance().min_snr_db


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "fix.toml"
    path.write_bytes('\ufeffcalib = "dät"\r\n[plan]\r\nthreshold = 500\r\n'.encode())
    config = make_config(path, {"model": "m.onnx"})
    assert (config.calib, config.plan.threshold) == ("dät", 500.0)


def test_the_defaults_are_those_of_the_records() -> None:
    config = make_config(None, FLAGS)
    assert config.plan.policy() == PlanPolicy()
    assert config.verify.tolerance() == Tolerance()


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "fix.toml"
    path.write_text("[plan]\ntreshold = 5\n[verify]\nmin_agreement = 2\n[nowhere]\n")
    with pytest.raises(ConfigError) as refusal:
        make_config(path, FLAGS)
    text = str(refusal.value)
    assert all(key in text for key in ("plan.treshold", "verify.min_agreement", "nowhere", "fix.toml"))


def test_a_misspelt_model_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "fix.toml"
    path.write_text("modle = 'm.onnx'\n")
    with pytest.raises(ConfigError, match="model: field required; calib: field required; modle: unknown key"):
        make_config(path, {})
    (tmp_path / "m.onnx").touch()
    with pytest.raises(ConfigError, match="No calibration data was named"):
        make_config(None, {"model": tmp_path / "m.onnx"})
    with pytest.raises(ModelError, match=r"nowhere\.onnx cannot be read: No such file"):
        make_config(None, {"model": tmp_path / "nowhere.onnx"})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"calibration": {"images": {"size": [224]}}}, "calibration.images.size.1: field required."),
        ({"build": {"profile": {"x": [[1], [2]]}}}, "build.profile.x.2: field required."),
    ],
)
def test_what_is_missing_in_a_table_is_told_as_that(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make_config(None, {**FLAGS, **settings})
    assert told in str(refusal.value)


def test_an_output_folder_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="out: it names no folder; leave it out"):
        make_config(None, {**FLAGS, "out": ""})


@pytest.mark.parametrize("value", [3, ["a", "b"]])
def test_a_path_of_another_type_is_told_by_its_key_alone(value: object) -> None:
    for key, told in (("model", "a path"), ("calib", 'a path, or "random"'), ("out", "a path")):
        with pytest.raises(ConfigError) as refusal:
            make_config(None, {**FLAGS, key: value})
        assert f"from a flag: {key}: input should be {told}, not {value!r}. Expected" in str(refusal.value)


@pytest.mark.parametrize(
    ("calibration", "told"),
    [
        ({"batch_size": 0}, "calibration: batch_size must be at least 1, not 0."),
        ({"batchsize": 2}, "calibration.batchsize: unknown key."),
        ({"images": {"layot": "NCHW"}}, "calibration.images.layot: unknown key."),
        ({"images": {"std": [0]}}, "calibration.images: scale and std must not be 0."),
    ],
)
def test_what_is_wrong_with_the_calibration_is_told(calibration: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make_config(None, {**FLAGS, "calibration": calibration})
    assert told in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"plan": {"threshold": True}}, "plan.threshold: input should be a valid number, not true."),
        ({"plan": {"threshold": "500"}}, "plan.threshold: input should be a valid number, not '500'."),
        ({"build": {"compare": "no"}}, "build.compare: input should be a valid boolean, not 'no'."),
        ({"build": {"tf32": 1}}, "build.tf32: input should be a valid boolean, not 1."),
        (
            {"build": {"workspace_gib": True}},
            "build.workspace_gib: input should be a valid number, not true.",
        ),
        (
            {"build": {"profile": {"x": [[1], ["8"], [32]]}}},
            "build.profile.x.1.0: input should be a valid integer, not '8'.",
        ),
        (
            {"verify": {"per_output": {"y": "40"}}},
            "verify.per_output.y: input should be a valid number, not '40'.",
        ),
        ({"repair": {"max_rounds": True}}, "repair.max_rounds: input should be a valid integer, not true."),
        ({"repair": {"max_builds": 3.0}}, "repair.max_builds: input should be a valid integer, not 3.0."),
        (
            {"calibration": {"batch_size": "2"}},
            "calibration.batch_size: input should be a valid integer, not '2'.",
        ),
        (
            {"calibration": {"allow_nonfinite": "no"}},
            "calibration.allow_nonfinite: input should be a valid boolean, not 'no'.",
        ),
        (
            {"calibration": {"images": {"mean": [True]}}},
            "calibration.images.mean.0: input should be a valid number, not true.",
        ),
        ({"refuse_layernorm": "yes"}, "refuse_layernorm: input should be a valid boolean, not 'yes'."),
    ],
)
def test_a_value_of_another_type_is_not_converted(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make_config(None, {**FLAGS, **settings})
    assert told in str(refusal.value)


def test_each_problem_is_told_with_its_value_and_the_flag_or_file_that_it_came_from(tmp_path: Path) -> None:
    path = tmp_path / "fix.toml"
    path.write_text("[plan]\nthreshold = 500\n[verify]\nmin_agreement = 2\n[calibration]\nseed = 3\n")
    flags = {**FLAGS, "plan": {"threshold": -1.0}, "calibration": {"seed": None, "batch_size": 0}}
    names = {"threshold": "--threshold", "batch_size": "--batch-size", "seed": "--seed"}
    with pytest.raises(ConfigError) as refusal:
        make_config(path, flags, names)
    text = str(refusal.value)
    assert "from --threshold: plan.threshold: input should be greater than 0, not -1.0; from" in text
    assert (
        f"the config file {path}: verify.min_agreement: input should be less than or equal to 1, not 2"
        in text
    )
    assert "from --batch-size: calibration: batch_size must be at least 1, not 0" in text


def test_a_value_is_told_in_no_more_than_a_line() -> None:
    with pytest.raises(ConfigError) as refusal:
        make_config(None, {**FLAGS, "plan": {"threshold": "9" * 500}})
    assert len(str(refusal.value)) < 400


def test_a_whole_number_serves_where_a_number_is_asked_for() -> None:
    given = {"plan": {"threshold": 500}, "calibration": {"images": {"scale": 1, "mean": [0, 0.5, 1]}}}
    config = make_config(None, {**FLAGS, **given})
    assert (config.plan.threshold, config.calibration.images) == (
        500.0,
        ImageOptions(scale=1.0, mean=(0.0, 0.5, 1.0)),
    )


@pytest.mark.parametrize("threshold", [0, -1, 65505, float("nan"), float("inf")])
def test_a_threshold_out_of_fp16_is_refused(threshold: float) -> None:
    told = "finite number" if not math.isfinite(threshold) else "(greater than 0|less than or equal to 65504)"
    with pytest.raises(ConfigError, match=f"plan.threshold: input should be (a )?{told}"):
        make_config(None, {**FLAGS, "plan": {"threshold": threshold}})


@pytest.mark.parametrize(
    "settings",
    [
        {"verify": {"min_snr_db": math.nan}},
        {"verify": {"min_snr_db": math.inf}},
        {"verify": {"per_output": {"y": math.nan}}},
        {"verify": {"max_abs_error": math.inf}},
        {"repair": {"max_minutes": math.inf}},
        {"build": {"workspace_gib": math.inf}},
        {"build": {"workspace_gib": 1e308}},
    ],
)
def test_a_limit_that_is_no_number_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"finite number|less than or equal to 1048576"):
        make_config(None, {**FLAGS, **settings})


def test_libraries_are_told_apart_by_their_content(tmp_path: Path) -> None:
    library, plugin = tmp_path / "ops.so", tmp_path / "plugin.so"
    config = make_config(None, {**FLAGS, "custom_ops": (library,), "build": {"plugins": (plugin,)}})
    hashes = {config.hash_libraries()}
    for path in (library, plugin):
        for content in (b"one", b"two"):
            path.write_bytes(content)
            hashes.add(config.hash_libraries())
    assert len(hashes) == 5


@pytest.mark.parametrize("key", ["model", "calib", "out", "custom_ops"])
def test_a_path_that_is_not_utf8_is_refused(key: str) -> None:
    path = os.fsdecode(b"a\xff.{}.onnx")
    value = (path,) if key == "custom_ops" else path
    with pytest.raises(ConfigError) as caught:
        make_config(None, {**FLAGS, key: value})
    assert str(caught.value).startswith(r"The path 'a\udcff.{}.onnx' is not UTF-8. Expected the names of the")
    assert "symbolic link" in str(caught.value)
    assert "configs/default.toml" not in str(caught.value)
    with pytest.raises(ValueError, match=r"the path 'a\\udcff.{}.onnx' is not UTF-8; rename it"):
        FixConfig.model_validate({**FLAGS, key: value})


@pytest.mark.parametrize(
    "key", ["model", "calib", "out", "custom_ops", "build.plugins", "build.timing_cache"]
)
def test_a_path_that_holds_a_nul_is_refused(key: str, tmp_path: Path) -> None:
    """A config file can name one, which a command line cannot."""
    section, _, name = key.rpartition(".")
    value = ["a\0b"] if name in ("custom_ops", "plugins") else "a\0b"
    path = tmp_path / "c.toml"
    table = f"[{section}]\n" if section else ""
    path.write_text(f"{table}{name} = {json.dumps(value)}\n")
    others = {other: value for other, value in FLAGS.items() if other != key}
    with pytest.raises(ConfigError) as caught:
        make_config(path, others)
    assert f"from the config file {path}: {key}" in str(caught.value)
    assert ": it holds a NUL character, which no path can hold. Expected" in str(caught.value)


def test_the_word_random_stays_a_word() -> None:
    assert make_config(None, {**FLAGS, "calib": "random"}).calib == "random"


def test_random_data_and_a_folder_of_that_name_are_told_apart_in_json() -> None:
    for calib, read in (("random", "random"), (Path("random"), "./random"), (Path("data"), "data")):
        config = FixConfig(model="m.onnx", calib=calib)
        assert FixConfig.model_validate_json(config.model_dump_json()).calib == read
        assert config.model_dump()["calib"] == calib


def test_results_among_the_data_are_refused_behind_links_too(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    for folder, calib in (("link/out", "data"), ("data/out", "link"), ("link", "data")):
        with pytest.raises(ConfigError, match="lies in the folder of the calibration data"):
            check_folders(tmp_path / folder, tmp_path / calib)
    check_folders(tmp_path / "data2", tmp_path / "data")
    check_folders(tmp_path / "data" / "out", "random")


@pytest.mark.parametrize("content", [b"masks = auto\n", b"# \xff\n"])
def test_a_file_that_is_not_toml_is_told_with_the_place_and_what_to_do(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_config_file(path)
    told = str(caught.value)
    assert "position 2" in told or "(at line 1, column 9)" in told
    assert "Correct it there; text stands in quotes, and the file is UTF-8." in told
