"""Which outputs are samples of an image or of sound, and that they are judged by their SNR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import floats, ints, make_model, node, pinned_by, save, scalar, scan
from onnx import TensorProto

from overflow_fixer import FixConfig, fix
from overflow_fixer.evidence.integers.integer_samples import find_samples
from overflow_fixer.records import Array, Batch, Tolerance
from overflow_fixer.rules.lost_integer import find_lost_integers
from overflow_fixer.verification.comparison import verify

RNG = np.random.default_rng(0)
CONSTANTS = {
    "byte": scalar(255),
    "sound": scalar(32767),
    "less": scalar(1 / 255),
    "few": scalar(18),
    "none": scalar(0),
    "half": scalar(0.5),
    "means": floats(123.7, 116.3, 103.5),
    "deviations": floats(58.4, 57.1, 57.4),
    "colours": floats(0, 255, 20),
    "w": RNG.normal(size=(3, 3)).astype(np.float32),
    "axes": ints(0),
}
UINT8, UINT16, INT16, INT64 = TensorProto.UINT8, TensorProto.UINT16, TensorProto.INT16, TensorProto.INT64


def _cast(tensor: str, to: int = UINT8, output: str = "y") -> Any:
    return node("Cast", tensor, output, to=to)


SCALED = [node("Sigmoid", "x", "s"), node("Mul", "s byte", "m")]
MASK = [node("Greater", "x half", "g"), node("Cast", "g", "f", to=TensorProto.FLOAT)]
ANOTHER = [node("Less", "x none", "g2"), node("Cast", "g2", "f2", to=TensorProto.FLOAT)]
AS_IMAGE = [node("Mul", "e byte", "m"), _cast("m")]
SAMPLES = {
    "as it is": [*SCALED, _cast("m")],
    "rounded and bounded": [*SCALED, node("Round", "m", "r"), node("Clip", "r none byte", "c"), _cast("c")],
    "bounded alone": [node("MatMul", "x w", "p"), node("Clip", "p none byte", "c"), _cast("c")],
    "moved": [*SCALED, _cast("m", output="i"), node("Transpose", "i", "t"), node("Unsqueeze", "t axes", "y")],
    "sound": [node("Tanh", "x", "t"), node("Mul", "sound t", "m"), _cast("m", INT16)],
    "divided": [node("Sigmoid", "x", "s"), node("Div", "s less", "m"), _cast("m")],
    "standardised before": [node("MatMul", "x w", "p"), node("Mul", "p deviations", "m"), node("Add", "m means", "a"), _cast("a")],
    "of two": [*SCALED, node("Add", "m x", "a"), node("Clip", "a none byte", "c"), _cast("c")],
    "of two, one of which is a mask": [*MASK, node("Exp", "x", "s"), node("Mul", "f s", "e"), *AS_IMAGE],
    "of a mask that is fed": [*MASK, node("Mul", "f x", "e"), *AS_IMAGE],
    "one of two ways": [node("Greater", "x half", "g"), node("Exp", "x", "e"), node("Where", "g x e", "w1"),
        node("Mul", "w1 byte", "m"), _cast("m")],
}  # fmt: skip
OTHERS = {
    "a class": [node("ArgMax", "x", "i", axis=1), _cast("i")],
    "a mask": [node("Greater", "x half", "g"), _cast("g")],
    "a mask as an image": [node("Greater", "x half", "g"), _cast("g", TensorProto.FLOAT, "f"), node("Mul", "f byte", "m"), _cast("m")],
    "a rounded score as an image": [node("Sigmoid", "x", "s"), node("Round", "s", "r"), node("Mul", "r byte", "m"), _cast("m")],
    "a mask of an image": [*SCALED, node("Greater", "x half", "g"), node("Where", "g m none", "z"), node("Clip", "z none byte", "c"),
        _cast("c")],
    "a palette": [node("ArgMax", "x", "i", axis=1), node("Gather", "colours i", "c"), node("Clip", "c none byte", "d"), _cast("d")],
    "a mask that is widened": [*MASK, node("Unsqueeze", "f axes", "u"), node("MaxPool", "u", "e", kernel_shape=[1]), *AS_IMAGE],
    "what two masks have in common": [*MASK, *ANOTHER, node("Mul", "f f2", "e"), *AS_IMAGE],
    "two masks side by side": [*MASK, *ANOTHER, node("Concat", "f f2", "e", axis=1), *AS_IMAGE],
    "the largest of three as an image": [node("Hardmax", "x", "e", axis=1), *AS_IMAGE],
    "few classes": [node("Sigmoid", "x", "s"), node("Mul", "s few", "m"), _cast("m")],
    "larger integers": [*SCALED, _cast("m", INT64)],
    "floats": [*SCALED, node("Round", "m", "y")],
    "what is fed": [node("Mul", "x byte", "m"), _cast("m")],
}  # fmt: skip


def _find(nodes: list[Any], folder: Path) -> tuple[str, ...]:
    used = {name for one in nodes for name in one.input}
    constants = {name: value for name, value in CONSTANTS.items() if name in used}
    last = next((one for one in nodes[-1].attribute if one.name == "to"), None)
    to = last.i if last is not None else TensorProto.FLOAT if nodes[-1].op_type == "Round" else UINT8
    return find_samples(
        save(make_model(nodes, {"x": ["N", 3]}, "y", constants, output_types={"y": to}), folder)
    )


@pytest.mark.parametrize("form", SAMPLES)
def test_samples(form: str, tmp_path: Path) -> None:
    assert _find(SAMPLES[form], tmp_path) == ("y",)


def test_bounds_as_attributes(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "p"), node("Clip", "p", "c", min=0.0, max=255.0), _cast("c")]
    model = make_model(
        nodes, {"x": ["N", 3]}, "y", {"w": CONSTANTS["w"]}, opset=10, output_types={"y": UINT8}
    )
    assert find_samples(save(model, tmp_path)) == ("y",)


@pytest.mark.parametrize("form", OTHERS)
def test_no_samples(form: str, tmp_path: Path) -> None:
    assert _find(OTHERS[form], tmp_path) == ()


class _Runner:
    output_names = ("y",)

    def __init__(self, value: Array) -> None:
        self.value = value

    def run(self, batch: Batch) -> dict[str, Array]:
        return {"y": self.value}


IMAGE = RNG.integers(0, 256, 4000).astype(np.uint8)
DARK = RNG.integers(0, 3, 4000).astype(np.uint8)


@pytest.mark.parametrize(
    ("image", "off", "share", "passes"),
    [
        (IMAGE, 1, 0.5, True),
        (IMAGE, 2, 0.5, True),
        (IMAGE, 30, 0.2, False),
        (IMAGE // 4 + 1, 1, 0.5, True),
        (DARK, 1, 0.5, False),
        (DARK, 2, 0.5, False),
    ],
)
def test_samples_pass_by_their_snr_or_where_none_is_off_by_more_than_a_step(
    image: Array, off: int, share: float, passes: bool
) -> None:
    step = np.where(image < 128, off, -off) * (RNG.random(image.shape) < share)
    found = (image + step).astype(np.uint8)
    batches = [Batch("b", {})]
    for tolerance, expected in ((Tolerance(samples=("y",)), passes), (Tolerance(), False)):
        verification = verify(_Runner(image), _Runner(found), batches, tolerance)
        assert verification.passed == expected
        assert verification.outputs[0].error.is_float == bool(tolerance.samples)
    assert not verify(_Runner(image), _Runner(found[:-1]), batches, Tolerance(samples=("y",))).passed


@pytest.mark.parametrize(("wrong", "passes"), [(40, True), (41, False)])
def test_where_a_step_is_much_few_may_be_off_by_one(wrong: int, passes: bool) -> None:
    """As of stars, 0 to 5, that are bounded to what 8 bits hold: half of them were wrong, and passed."""
    found = DARK + (np.arange(DARK.size) < wrong)
    verification = verify(
        _Runner(DARK), _Runner(found.astype(np.uint8)), [Batch("b", {})], Tolerance(samples=("y",))
    )
    assert verification.outputs[0].error.snr_db < Tolerance.min_snr_db
    assert verification.passed == passes


def test_a_network_of_sound_stays_in_fp16(tmp_path: Path) -> None:
    """Of samples of 16 bits FP16 has 11, so that nearly none is equal: nothing was left in FP16 for that."""
    constants = {"w": RNG.normal(size=(64, 64)).astype(np.float32) / 8, "loud": scalar(8000)}
    nodes = [
        node("MatMul", "x w", "h"),
        node("Tanh", "h", "t"),
        node("Mul", "t loud", "m"),
        node("Round", "m", "r"),
        _cast("r", INT16),
    ]
    model = make_model(nodes, {"x": ["N", 64]}, "y", constants, output_types={"y": INT16})
    graph = save(model, tmp_path)
    np.savez(tmp_path / "b.npz", x=RNG.normal(size=(64, 64)).astype(np.float32))
    report = fix(FixConfig(model=graph.path, calib=str(tmp_path / "b.npz"), out=tmp_path / "out"))
    assert report.passed
    assert report.tolerance.samples == ("y",)
    assert "MatMul_h" in report.artifact.fp16_nodes
    (verdict,) = report.fixed.outputs
    assert verdict.error.is_float
    assert verdict.error.snr_db > 50


@pytest.mark.parametrize(("nodes", "outputs", "pins"), [
    ([_cast("q", UINT16)], "y", []),
    ([node("Round", "q", "r"), _cast("r", UINT16)], "y", []),
    ([_cast("q", UINT16, "i"), node("Identity", "i", "y")], "y", []),
    ([_cast("q", UINT16, "i"), node("Cast", "i", "k", to=INT64), node("Gather", "table k", "z"), node("Identity", "i", "y")], "y z",
        ["Sigmoid_s", "Mul_q", "Cast_i"]),
    ([_cast("q", UINT16), node("Cast", "y", "k", to=INT64), node("Gather", "table k", "z")], "y z", ["Sigmoid_s", "Mul_q", "Cast_y"]),
])  # fmt: skip
def test_samples_are_told_apart_only_where_something_else_reads_them(
    nodes: list[Any], outputs: str, pins: list[str], tmp_path: Path
) -> None:
    constants = {"top": scalar(8000)} | ({"table": np.zeros(8192, np.float32)} if " " in outputs else {})
    first = [node("Sigmoid", "x", "s"), node("Mul", "s top", "q")]
    model = make_model([*first, *nodes], {"x": [None]}, outputs, constants, output_types={"y": UINT16})
    graph, ranges = scan(model, tmp_path, {"x": floats(0.3, 0.7, 100)})
    assert pinned_by(find_lost_integers, graph, ranges) == pins
