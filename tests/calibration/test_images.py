from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from calibration_specs import refusal, spec, walk
from PIL import Image

from overflow_fixer.calibration import ImageOptions
from overflow_fixer.calibration.pixels import read_pixels

RGB = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [10, 20, 30]]], np.uint8)
X = spec("x", 1, 3, 2, 2)
PLAIN = {"scale": 1}


@pytest.fixture
def folder(tmp_path):
    """Images 0.png to 5.png of 2 x 2; number n is RGB with n for the last pixel's blue."""
    for index in range(6):
        pixels = RGB.copy()
        pixels[1, 1, 2] = index
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    return tmp_path


def save(tmp_path, image, name="a.png", **keywords):
    image.save(tmp_path / name, **keywords)
    return tmp_path / name


def test_each_step_in_its_order(tmp_path):
    save(tmp_path, Image.fromarray(RGB))
    images = {"scale": 0.5, "mean": (1, 2, 3), "std": (2, 4, 8)}
    (batch,) = walk(tmp_path, X, images=images)
    assert batch.name == "a.png"
    expected = ((RGB * 0.5 - [1, 2, 3]) / [2, 4, 8]).transpose(2, 0, 1)[np.newaxis]
    np.testing.assert_array_equal(batch.feeds["x"], expected.astype(np.float32))


def test_the_default_scale_takes_pixels_to_one(tmp_path):
    save(tmp_path, Image.fromarray(RGB))
    (batch,) = walk(tmp_path, X, images={})
    assert batch.feeds["x"].dtype == np.float32
    assert batch.feeds["x"][0, 0].tolist() == [[1, 0], [0, np.float32(10 / 255)]]


def test_bgr_and_nhwc(tmp_path):
    path = save(tmp_path, Image.fromarray(RGB))
    images = {"channels": "BGR", "layout": "NHWC", "mean": (1, 2, 3), **PLAIN}
    (batch,) = walk(path, spec("x", 1, 2, 2, 3), images=images)
    np.testing.assert_array_equal(batch.feeds["x"][0], RGB[:, :, ::-1] - np.float32([1, 2, 3]))


def test_one_channel_is_luma(tmp_path):
    save(tmp_path, Image.fromarray(RGB))
    (batch,) = walk(tmp_path, spec("x", 1, 1, 2, 2), images={"channels": "L", **PLAIN})
    luma = RGB @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(batch.feeds["x"][0, 0], luma, atol=0.51)


def test_bilinear_resize_to_the_models_size_or_to_ones_own(tmp_path):
    save(tmp_path, Image.fromarray(np.array([[0, 100]], np.uint8)))
    (fixed,) = walk(tmp_path, spec("x", 1, 1, 3, 4), images={"channels": "L", **PLAIN})
    assert fixed.feeds["x"][0, 0].tolist() == [[0, 25, 75, 100]] * 3
    (free,) = walk(tmp_path, spec("x", "n", 1, "h", "w"), images={"channels": "L", "size": (3, 4), **PLAIN})
    np.testing.assert_array_equal(free.feeds["x"], fixed.feeds["x"])


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_other_float_inputs(tmp_path, dtype):
    save(tmp_path, Image.fromarray(RGB))
    (batch,) = walk(tmp_path, spec("x", 1, 3, 2, 2, dtype=dtype), images={})
    assert batch.feeds["x"].dtype == dtype
    np.testing.assert_array_equal(batch.feeds["x"], (RGB * (1 / 255)).transpose(2, 0, 1)[None].astype(dtype))


@pytest.mark.parametrize(("dtype", "mean"), [(np.uint8, 0), (np.int8, 128), (np.int32, 7)])
def test_integer_inputs_take_whole_pixels(tmp_path, dtype, mean):
    save(tmp_path, Image.fromarray(RGB))
    images = {"scale": 1, "mean": (mean,)}
    (batch,) = walk(tmp_path, spec("x", 1, 3, 2, 2, dtype=dtype), images=images)
    np.testing.assert_array_equal(batch.feeds["x"][0], RGB.transpose(2, 0, 1).astype(int) - mean)


@pytest.mark.parametrize(
    ("dtype", "images"),
    [
        (np.uint8, {}),
        (np.uint8, {"scale": 1, "mean": (1,)}),
        (np.int8, PLAIN),
        (np.uint8, {"scale": 2}),
        (bool, PLAIN),
    ],
)
def test_an_integer_input_that_would_lose_levels_is_refused(folder, dtype, images):
    text = refusal(folder, spec("x", 1, 3, 2, 2, dtype=dtype), images=images)
    assert f"the model's input 'x' is {np.dtype(dtype).name}" in text
    assert "Set scale = 1" in text


def test_an_input_without_a_batch_axis(folder):
    batches = walk(folder, spec("x", 3, 2, 2), images=PLAIN, batch_size=4)
    assert len(batches) == 6
    np.testing.assert_array_equal(batches[5].feeds["x"][2, 1, 1], 5)


def test_as_many_images_a_batch_as_the_model_fixes(folder):
    batches = walk(folder, spec("x", 3, 3, 2, 2), images=PLAIN)
    assert [batch.name for batch in batches] == ["0.png..2.png", "3.png..5.png"]
    assert batches[1].feeds["x"][:, 2, 1, 1].tolist() == [3, 4, 5]


@pytest.mark.parametrize("dims", [("n", 3, 2, 2), (None, 3, 2, 2), None])
def test_batch_size_where_the_model_leaves_it_open(folder, dims):
    import dataclasses

    free = dataclasses.replace(X, dims=dims)
    batches = walk(folder, free, images={"size": (2, 2)}, batch_size=4)
    assert [batch.feeds["x"].shape for batch in batches] == [(4, 3, 2, 2), (2, 3, 2, 2)]


def test_images_that_do_not_fill_a_batch_are_refused(folder):
    text = refusal(folder, spec("x", 4, 3, 2, 2), images={})
    assert f"{folder} holds 6 images, which cannot be cut into batches of 4" in text


def test_no_preprocessing_is_guessed(folder):
    text = refusal(folder, X)
    assert "0.png is the first" in text
    assert "[calibration.images]" in text


@pytest.mark.parametrize(
    ("dims", "images", "advice"),
    [
        ((1, 1, 2, 2), {}, "Set layout and channels"),
        ((1, 2, 2, 3), {}, "Set layout and channels"),
        ((1, 3, "h", "w"), {}, "Set size = [height, width]"),
        ((1, 3, 2, 2), {"size": (4, 4)}, "Set size to the model's own"),
        ((1, 12), {}, "Use .npz files"),
    ],
)
def test_preprocessing_that_does_not_fit_the_model_is_refused(folder, dims, images, advice):
    text = refusal(folder, spec("x", *dims), images=images)
    assert advice in text
    assert "input 'x'" in text


def test_other_inputs_have_values_of_their_own(folder):
    images = {"input": "x", "other_inputs": {"im_shape": [[2, 2]], "n": 7, "b": [True]}}
    inputs = (spec("im_shape", 1, 2), spec("n", dtype=np.int64), X, spec("b", 1, dtype=bool))
    batches = walk(folder, *inputs, images=images)
    assert len(batches) == 6
    assert batches[5].feeds["im_shape"].tolist() == [[2, 2]]
    assert batches[5].feeds["im_shape"].dtype == np.float32
    assert batches[5].feeds["n"].dtype == np.int64
    assert batches[5].feeds["b"].tolist() == [True]


@pytest.mark.parametrize(
    "images", [{}, {"input": "x"}, {"input": "y", "other_inputs": {"n": 1}}, {"other_inputs": {"n": 1}}]
)
def test_several_inputs_must_each_be_spoken_for(folder, images):
    text = refusal(folder, X, spec("n", dtype=np.int64), images=images)
    assert "Expected one of the model's inputs ['x', 'n']" in text


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.5, np.int64),
        (300, np.uint8),
        (2, bool),
        ("a", np.float32),
        ([[1], 2], np.float32),
        (float("nan"), np.int64),
    ],
)
def test_a_value_that_the_type_cannot_hold_is_refused(folder, value, dtype):
    images = {"input": "x", "other_inputs": {"n": value}}
    text = refusal(folder, X, spec("n", dtype=dtype), images=images)
    assert f"gives {value!r} for input 'n'" in text


def test_exif_orientation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # shown rotated by 90 degrees clockwise
    path = save(tmp_path, Image.fromarray(RGB), exif=exif.tobytes())
    np.testing.assert_array_equal(read_pixels(path, "RGB", (2, 2)), np.rot90(RGB, -1))


def test_sixteen_bit_gray_is_read_as_its_high_byte(tmp_path):
    path = save(tmp_path, Image.fromarray(np.array([[0, 255, 256, 65535]], np.uint16)))
    assert read_pixels(path, "L", (1, 4)).ravel().tolist() == [0, 0, 1, 255]
    assert read_pixels(path, "RGB", (1, 4))[0, 3].tolist() == [255, 255, 255]


def test_alpha_is_dropped_not_blended(tmp_path):
    rgba = np.dstack([RGB, np.array([[0, 128], [255, 1]], np.uint8)])
    path = save(tmp_path, Image.fromarray(rgba))
    np.testing.assert_array_equal(read_pixels(path, "RGB", (2, 2)), RGB)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("transparency", [None, 0, b"\x00\x80"])
def test_a_palette_is_looked_up(tmp_path, transparency):
    image = Image.new("P", (2, 1))
    image.putpalette([1, 2, 3, 40, 50, 60])
    image.putpixel((1, 0), 1)
    path = save(tmp_path, image, **({} if transparency is None else {"transparency": transparency}))
    assert read_pixels(path, "RGB", (1, 2)).tolist() == [[[1, 2, 3], [40, 50, 60]]]


def test_gray_becomes_three_equal_channels(tmp_path):
    path = save(tmp_path, Image.new("1", (1, 1), 1))
    assert read_pixels(path, "BGR", (1, 1)).tolist() == [[[255, 255, 255]]]


def test_jpeg_in_rgb_and_cmyk(tmp_path):
    for mode, color in (("RGB", (200, 100, 50)), ("CMYK", (55, 155, 205, 0))):
        path = save(tmp_path, Image.new(mode, (16, 16), color), f"{mode}.JPG", format="JPEG")
        np.testing.assert_allclose(read_pixels(path, "RGB", (1, 1)).ravel(), [200, 100, 50], atol=4)
    assert len(walk(tmp_path, X, images={})) == 2


@pytest.mark.parametrize("content", [b"", b"not an image", None])
def test_an_unreadable_image_is_refused_by_name(folder, content):
    path = folder / "3.png"
    path.write_bytes(path.read_bytes()[:-30] if content is None else content)
    text = refusal(folder, X, images={})
    assert text.startswith(f"{path} cannot be read: ")
    assert "PNG or JPEG" in text


@pytest.mark.parametrize("pixels", [3, 1])
def test_a_decompression_bomb_is_refused(folder, monkeypatch, pixels):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pixels)  # over it warns, over twice of it raises
    text = refusal(folder, X, images={})
    assert "0.png cannot be read" in text
    assert "decompression bomb" in text


def test_preprocessing_is_part_of_the_fingerprint(folder):
    from overflow_fixer.calibration import CalibrationOptions, open_calibration

    options = [ImageOptions(), ImageOptions(), ImageOptions(scale=1)]
    marks = [open_calibration(folder, [X], CalibrationOptions(images=o)).fingerprint for o in options]
    assert marks[0] == marks[1] != marks[2]
