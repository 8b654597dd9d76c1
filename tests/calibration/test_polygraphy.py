from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from calibration_specs import refusal, spec, walk

DATA = Path(__file__).parent / "data"
INPUTS = (spec("x", 1, 4), spec("ids", 1, 4, dtype=np.int64))


def npy(array, save=np.save):
    file = io.BytesIO()
    save(file, array)
    return file.getvalue()


def encoded(array):
    return {"array": base64.b64encode(npy(array)).decode(), "polygraphy_class": "ndarray"}


def write(folder, content):
    path = folder / "inputs.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def assert_made_by_loader(batches):
    """The values that data/README.md's loader.py gave to Polygraphy."""
    for index, batch in enumerate(batches):
        x = np.arange(4, dtype=np.float32).reshape(1, 4) * 1000.5 - index
        np.testing.assert_array_equal(batch.feeds["x"], x)
        np.testing.assert_array_equal(batch.feeds["ids"], [[index, 2, 3, 4]])


def test_a_list_that_polygraphy_wrote():
    batches = walk(DATA / "polygraphy_inputs.json", *INPUTS)
    assert [batch.name for batch in batches] == [f"polygraphy_inputs.json[{index}]" for index in range(3)]
    assert_made_by_loader(batches)


def test_a_folder_that_polygraphy_wrote():
    batches = walk(DATA / "polygraphy_folder", *INPUTS)
    assert [batch.name for batch in batches] == [f"000000000{index}.json" for index in range(3)]
    assert_made_by_loader(batches)


def test_saved_outputs_are_refused_by_what_they_are():
    text = refusal(DATA / "polygraphy_outputs.json", *INPUTS)
    assert "polygraphy_outputs.json cannot be read: it holds a RunResults, not inputs" in text
    assert "--save-inputs" in text


def test_layouts_of_older_releases(tmp_path):
    x, ids = np.array([[1, 2, 3, 4]], np.float32), np.array([[5, 6, 7, 8]])
    marker = {"__polygraphy_encoded_ndarray": "polygraphy_serialized_json_type"}
    latin = {"array": npy(x).decode("latin-1"), **marker}
    npz = {"array": npy(ids, np.savez).decode("latin-1"), **marker}
    (batch,) = walk(write(tmp_path, [{"x": latin, "ids": npz}]), *INPUTS)
    np.testing.assert_array_equal(batch.feeds["x"], x)
    np.testing.assert_array_equal(batch.feeds["ids"], ids)


def test_a_wrapped_array_is_unwrapped(tmp_path):
    value = {"values": encoded(np.ones((1, 4), np.float32)), "polygraphy_class": "LazyArray"}
    (batch,) = walk(write(tmp_path, {"x": value}), INPUTS[0])
    assert batch.name == "inputs.json"
    np.testing.assert_array_equal(batch.feeds["x"], np.ones((1, 4)))


def test_names_with_brackets_quotes_and_escapes_do_not_confuse_the_scan(tmp_path):
    name = 'a]}{["\\" é'
    (first, second) = walk(
        write(tmp_path, [{name: encoded(np.full(1, i, np.float32))} for i in (1, 2)]), spec(name, 1)
    )
    assert first.feeds[name] == 1
    assert second.feeds[name] == 2


ARRAY = json.dumps(encoded(np.ones((1, 4), np.float32)))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("", "empty file"),
        ("[]", "it holds no batch"),
        ("[1, 2]", "belongs to no batch"),
        ("hello", "belongs to no batch"),
        (f'[{{"x": {ARRAY}}}, 3]', "belongs to no batch"),
        (f'[{{"x": {ARRAY}}}', "its brackets do not match"),
        (f'{{"x": {ARRAY}}} {{"x": {ARRAY}}}', "belongs to no batch"),
        (f'[{{"x": {ARRAY}}}] [{{"x": {ARRAY}}}]', "belongs to no batch"),
        (f'[{{"x" {ARRAY}}}]', "delimiter"),
        ("[[1]]", "not an object of arrays by input name"),
        ('{"images": [{"id": 1}]}', "input 'images' is not an array that Polygraphy encoded"),
        ('{"x": {"array": 3, "polygraphy_class": "ndarray"}}', "'x' is not an array"),
        ('{"x": {"array": "AAAA", "polygraphy_class": "ndarray"}}', "magic string"),
        (f'[{{"x": {ARRAY}, "x": {ARRAY}}}]', "the key 'x' is given twice"),
        ('{"x": {"tensor": "AAAA", "polygraphy_class": "Tensor"}}', "'x' is a pickled PyTorch tensor"),
    ],
)
def test_what_polygraphy_did_not_write_is_refused(tmp_path, content, found):
    path = write(tmp_path, content)
    text = refusal(path, INPUTS[0])
    assert text.startswith(f"{path} cannot be read: ")
    assert found in text


def test_an_input_of_several_arrays_is_refused(tmp_path):
    two = npy(np.ones((1, 4), np.float32), lambda file, array: np.savez(file, array, array))
    path = write(tmp_path, {"x": {"array": two.decode("latin-1"), "polygraphy_class": "ndarray"}})
    assert "an input is a .npz of 2 arrays" in refusal(path, INPUTS[0])


def test_pickled_objects_are_never_loaded(tmp_path):
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    value = {"array": base64.b64encode(file.getvalue()).decode(), "polygraphy_class": "ndarray"}
    assert "pickled Python objects" in refusal(write(tmp_path, {"x": value}), INPUTS[0])


def test_one_list_may_hold_a_batch_that_does_not_fit(tmp_path):
    good, bad = encoded(np.ones((1, 4), np.float32)), encoded(np.ones((1, 5), np.float32))
    text = refusal(write(tmp_path, [{"x": good}, {"x": bad}]), INPUTS[0])
    assert "batch inputs.json[1]: input 'x' has shape [1, 5]" in text
