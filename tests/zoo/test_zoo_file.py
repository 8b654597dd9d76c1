"""A zoo file: defaults under each model, globs, and every problem told at once with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from overflow_fixer.config import SECTIONS, FixConfig
from overflow_fixer.errors import ConfigError
from overflow_fixer.zoo.zoo_file import EntryOptions, read_zoo_file

EXAMPLE = Path(__file__).parents[2] / "configs" / "zoo.toml"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with a.onnx, b.onnx and sub/c.onnx, and data for each; nothing of them is read."""
    for name in ("a", "b", "sub/c"):
        path = tmp_path / f"{name}.onnx"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
        path.with_suffix(".npz").write_bytes(b"")
    return tmp_path


def _write(folder: Path, text: str) -> Path:
    path = folder / "zoo.toml"
    path.write_text(text)
    return path


def test_defaults_stand_under_each_model_and_globs_name_several(models: Path) -> None:
    zoo = read_zoo_file(
        _write(
            models,
            """
out = "results"
[defaults]
calib = "{stem}.npz"
timeout_minutes = 5
[defaults.plan]
threshold = 500
masks = "pin"
[[model]]
path = "?.onnx"
priority = 3
[[model]]
path = "sub/c.onnx"
name = "deep/c"
calib = "{folder}/{stem}.npz"
memory_gib = 2
[model.plan]
threshold = 700
""",
        )
    )
    assert (zoo.folder, [entry.name for entry in zoo.entries]) == (models / "results", ["a", "b", "deep/c"])
    a, _, c = zoo.entries
    assert (a.priority, a.timeout_minutes, a.memory_gib, a.retries) == (3, 5, None, 1)
    assert (c.priority, c.timeout_minutes, c.memory_gib) == (0, 5, 2)
    assert (a.config.plan.threshold, a.config.plan.masks) == (500, "pin")
    assert (c.config.plan.threshold, c.config.plan.masks) == (700, "pin")
    assert (a.config.model, a.config.calib) == (models / "a.onnx", models / "a.npz")
    assert (c.config.calib, c.folder) == (models / "sub/c.npz", models / "results/deep/c")


def test_a_file_with_a_byte_order_mark_is_read(models: Path) -> None:
    zoo = read_zoo_file(_write(models, '\ufeff[[model]]\npath = "a.onnx"\ncalib = "a.npz"\n'))
    assert [entry.name for entry in zoo.entries] == ["a"]


def test_a_path_that_holds_a_nul_is_refused_with_its_line(models: Path) -> None:
    path = _write(
        models,
        """\
out = "z\\u0000"
[[model]]
path = "a\\u0000/*.onnx"
calib = "a.npz"
[[model]]
path = "a.onnx"
calib = "a\\u0000.npz"
[[model]]
path = "a.onnx"
calib = "a.npz"
""",
    )
    with pytest.raises(ConfigError) as refused:
        read_zoo_file(path)
    told = str(refused.value)
    for place in ("line 3: path", "line 7: calib", "line 8: out"):
        assert f"{place}: it holds a NUL character" in told


def test_every_problem_is_told_at_once_with_its_line(models: Path) -> None:
    path = _write(
        models,
        """\
wrong = 1
[defaults]
calib = "{stem}.npz"
name = "all"
[defaults.plan]
treshold = 5
[[model]]
path = "nothing*.onnx"
[[model]]
path = "not_there.onnx"
timeout_minutes = inf
[model.verify]
min_agreement = 2
[[model]]
path = "b.onnx"
calib = "not_there"
[[model]]
path = "?.onnx"
name = "one"
[[model]]
calib = "a.npz"
""",
    )
    with pytest.raises(ConfigError) as refused:
        read_zoo_file(path)
    text = str(refused.value)
    for told in (
        "line 1: wrong: unknown key",
        "line 4: defaults.name: a model's own",
        "line 6: plan.treshold: unknown key",
        "line 8: path: ",
        "line 10: path: ",
        "line 11: timeout_minutes: input should be a finite number",
        "line 13: verify.min_agreement: input should be less than or equal to 1",
        "line 16: calib: ",
        "line 19: name: one name for the 2 models",
        "line 20: path: field required",
    ):
        assert told in text, told
    assert text.index("line 1:") < text.index("line 11:") < text.index("line 20:")
    assert text.endswith("Nothing was run.")


def test_paths_are_relative_to_the_file(models: Path) -> None:
    absolute = models / "sub/c.onnx"
    build = f'[model.build]\nplugins = ["b.npz", "{absolute}"]\ntiming_cache = "t.cache"\n'
    text = '[[model]]\npath = "a.onnx"\ncalib = "a.npz"\ncustom_ops = ["a.npz"]\n' + build
    (entry,) = read_zoo_file(_write(models, text)).entries
    assert entry.config.custom_ops == (models / "a.npz",)
    assert entry.config.build.plugins == (models / "b.npz", absolute)
    assert entry.config.build.timing_cache == models / "t.cache"


def test_libraries_that_are_not_there_are_told_with_their_lines(models: Path) -> None:
    text = '[[model]]\npath = "a.onnx"\ncalib = "a.npz"\ncustom_ops = ["b.npz", "c.so"]\n[model.build]\nplugins = ["p.so"]\n'
    with pytest.raises(ConfigError) as refused:
        read_zoo_file(_write(models, text))
    told = (
        f"line 4: custom_ops: {models / 'c.so'} is not there; line 6: plugins: {models / 'p.so'} is not there"
    )
    assert told in str(refused.value)


@pytest.mark.parametrize("calib", ["{folder}/a.npz", "{stem}.npz"])
def test_a_zoo_file_that_is_named_by_a_relative_path_finds_its_data(
    calib: str, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(models, f'[[model]]\npath = "a.onnx"\ncalib = "{calib}"\n')
    monkeypatch.chdir(models.parent)
    (entry,) = read_zoo_file(path.relative_to(models.parent)).entries
    assert entry.config.calib == Path(models.name, "a.npz")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1: no [[model]] is in it"),
        ("[[model]\n", "is not TOML"),
        ("out = zoo\n", "(at line 1, column 7). Expected the layout of configs/zoo.toml. Correct it there"),
        ("model = 3\n", "each model as [[model]]"),
        ('out = 3\n[[model]]\npath = "a.onnx"\ncalib = "a.npz"\n', "line 1: out: input should be a path"),
        (
            '[[model]]\npath = "a.onnx"\ncalib = "a.npz"\nname = "../out"\n',
            "line 4: name: '../out' leads out",
        ),
        (
            '[[model]]\npath = "a.onnx"\ncalib = "a.npz"\n[[model]]\npath = "b.onnx"\ncalib = "b.npz"\nname = "a"\n',
            "line 7: name: 'a' is the name of 2 models",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(models: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_zoo_file(_write(models, text))
    assert told in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml cannot be read: No such file"):
        read_zoo_file(tmp_path / "nowhere.toml")


def test_random_data_stay_a_word_and_a_folder_of_that_name_a_folder(models: Path) -> None:
    (models / "random").mkdir()
    text = '[[model]]\npath = "a.onnx"\ncalib = "random"\n[[model]]\npath = "b.onnx"\ncalib = "./random"\n'
    word, folder = read_zoo_file(_write(models, text)).entries
    assert (word.config.calib, folder.config.calib) == ("random", models / "random")


def test_the_example_documents_every_key() -> None:
    text = EXAMPLE.read_text()
    for key in EntryOptions.model_fields:
        assert f"\n{key} = " in text or f"\n# {key} = " in text or key in SECTIONS, key
    assert set(EntryOptions.model_fields) >= set(FixConfig.model_fields) - {"model", "out"}


def test_the_example_is_read(tmp_path: Path) -> None:
    for name in ("vision/r.onnx", "nlp/bert.onnx", "nlp/sentences.npz", "calib/r/x.npz"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    zoo = read_zoo_file(_write(tmp_path, EXAMPLE.read_text()))
    assert [(entry.name, entry.priority, entry.config.plan.threshold) for entry in zoo.entries] == [
        ("r", 0, 10000),
        ("bert", 10, 5000),
    ]
    assert zoo.entries[1].config.build.profile == {"input_ids": ((1, 16), (8, 128), (32, 512))}
    defaults = EntryOptions(path="-", calib="-")
    for key in ("timeout_minutes", "retries", "priority"):
        assert getattr(zoo.entries[0], key) == getattr(defaults, key)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("retries = true", "retries: input should be a valid integer"),
        ("timeout_minutes = '5'", "timeout_minutes: input should be a valid number"),
        ("refuse_layernorm = 1", "refuse_layernorm: input should be a valid boolean"),
        ("plan.threshold = true", "plan.threshold: input should be a valid number"),
    ],
)
def test_a_value_of_another_type_is_told_with_its_line(models: Path, line: str, told: str) -> None:
    path = _write(models, f"[[model]]\npath = 'a.onnx'\ncalib = 'a.npz'\n{line}\n")
    with pytest.raises(ConfigError, match=f"line 4: {told}"):
        read_zoo_file(path)
