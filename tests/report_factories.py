"""Reports made by hand, for the tests of every format."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from overflow_fixer.records import (
    Artifact,
    Clamp,
    Confidence,
    Engine,
    Finding,
    FixReport,
    FusedModel,
    Growth,
    Kept,
    Latency,
    OutputVerdict,
    Pin,
    PinOutcome,
    PrecisionPlan,
    Price,
    Range,
    RangeTable,
    RepairRound,
    Share,
    TensorError,
    Tolerance,
    Verification,
)

SHA = "0123456789abcdef" * 4
BATCHES = ("frames/0001.npz", "frames/0002.npz", "frames/0003.npz")
HOSTILE = "<script>alert('x')</script>[bold]/a&b[/bold]"
CONTROL = "tensor\x1b[31m\nred\u202e"
LONG = "/encoder/" + "very_long_module_name/" * 20 + "MatMul_output_0"
NAN, INF = math.nan, math.inf


def make_range(tensor: str, max_abs: float = 1.0, **changes: Any) -> Range:
    found = Range(tensor, max_abs, -max_abs, max_abs / 2, 0.001, 4096, 0, 0, 0, 1)
    return replace(found, **changes)


def make_error(tensor: str, snr_db: float = 62.5, **changes: Any) -> TensorError:
    error = TensorError(
        tensor=tensor,
        element_count=3000,
        compared=3000,
        candidate_nan=0,
        candidate_inf=0,
        reference_nan=0,
        reference_inf=0,
        mismatched=0,
        max_abs_error=0.0123,
        mean_abs_error=0.0012,
        max_rel_error=0.004,
        max_abs_reference=12.5,
        cosine=0.99999,
        snr_db=snr_db,
        worst_batch=BATCHES[2],
        worst_batch_snr_db=55.5,
        quiet_batch="batch_quiet",
        quiet_batch_snr_db=3.75,
        quiet_count=2,
        worst_batch_agreement=0.9975,
    )
    return replace(error, **changes)


def make_lost_error(tensor: str) -> TensorError:
    """Every element NaN or infinite: nothing left to compare."""
    nothing = {"max_abs_error": NAN, "mean_abs_error": NAN, "max_rel_error": NAN, "cosine": NAN}
    nothing["worst_batch_snr_db"] = NAN
    counts = {"compared": 0, "candidate_nan": 2990, "candidate_inf": 10, "mismatched": 3000}
    return make_error(tensor, NAN, **nothing, **counts)


def make_passing(*outputs: str) -> Verification:
    return Verification(tuple(OutputVerdict(make_error(name), True, "") for name in outputs), 3)


def make_failing(*outputs: str, first: str = "/conv3/out") -> Verification:
    reason = "3000 of 3000 elements are NaN or Inf where FP32 is finite"
    verdicts = tuple(OutputVerdict(make_lost_error(name), False, reason) for name in outputs)
    return Verification(verdicts, 3, make_lost_error(first))


def make_finding(node: str, tensor: str = "/conv3/out", **changes: Any) -> Finding:
    reason = f"{tensor} reaches 81234.5, over the threshold of 10000"
    return replace(Finding("range", node, tensor, 81234.5, 10000.0, reason, BATCHES[1]), **changes)


def make_pin(node: str, op_type: str = "Conv", tensor: str = "/conv3/out", **changes: Any) -> Pin:
    return Pin(node, op_type, (f"{node}/out",), (make_finding(node, tensor, **changes),))


def make_table(*ranges: Range, not_observed: dict[str, str] | None = None) -> RangeTable:
    maxima = np.array([[r.max_abs] * len(BATCHES) for r in ranges], np.float32).reshape(-1, len(BATCHES))
    return RangeTable(SHA, "frames (3 npz files)", False, ranges, BATCHES, maxima, not_observed or {})


def make_plan(*pins: Pin, **changes: Any) -> PrecisionPlan:
    return replace(PrecisionPlan(SHA, 10000.0, pins), **changes)


def make_report(folder: Path, **changes: Any) -> FixReport:
    """A usual success: plain FP16 fails, three nodes are pinned, one mask is clamped."""
    report = FixReport(
        model=Path("models/chain.onnx"),
        model_sha256=SHA,
        tool_version="0.1.0",
        versions={"onnx": "1.19.0", "onnxruntime": "1.31.1", "numpy": "2.1.0"},
        backend="onnx",
        backend_reason="no GPU was found, so a typed ONNX model was built",
        calibration="frames (3 npz files)",
        synthetic=False,
        ranges=make_table(
            make_range("/conv1/out", 8.0),
            make_range("/conv3/out", 81234.5, over_fp16_count=17),
            make_range("/relu3/out", 12000.0),
            make_range("mask", 3.4028234663852886e38, over_fp16_count=99, worst_batch=0),
        ),
        plan=make_plan(
            make_pin("/conv3"),
            make_pin("/relu3", "Relu"),
            make_pin("/conv4"),
            clamps=(Clamp("mask", 65504.0, "Softmax gives zero for it either way", ("mask", "/add/out")),),
            considered=(make_finding("/conv2", "/conv2/out", value=900.0, action="none"),),
        ),
        initial_pins=2,
        artifact=Artifact(
            backend="onnx",
            path=folder / "model.fp16.onnx",
            files=(folder / "model.fp16.onnx",),
            fp16_nodes=("/conv1", "/conv2"),
            fp32_nodes=("/conv3", "/relu3", "/conv4", "/norm"),
            kept=(Kept("/norm", "LayerNormalization", "LayerNormalization stays in FP32"),),
            cast_count=4,
        ),
        naive=make_failing("logits", "boxes"),
        fixed=make_passing("logits", "boxes"),
        rounds=(
            RepairRound(1, "pinned the neighbours of /conv3", ("/conv4",), 10000.0, True, 62.5, 0, True),
        ),
        share=Share(96, 100, 3_210_000_000, 3_300_000_000, 2),
        tolerance=Tolerance(
            min_snr_db=30.0,
            per_output={"boxes": 40.0},
            max_abs_error=1e-6,
            fills={"logits": (-1e9,)},
            samples=("image",),
        ),
        files=(folder / "ranges.h5", folder / "plan.json", folder / "model.fp16.onnx"),
        durations_seconds={"scan": 1.5, "plan": 0.1},
        confidence=make_confidence("/conv1/out"),
    )
    return replace(report, **changes)


def make_fused(**changes: Any) -> FusedModel:
    """One LayerNorm that was fused, one that was not."""
    left = {"/ln_2/Add_1": "its axes are not the last ones, or not known"}
    fused = FusedModel(
        Path("chain.onnx"), "ab" * 32, (Path("fused/chain.onnx"),), ("/ln_1/Add_1",), left, 2.5e-7
    )
    return replace(fused, **changes)


def make_confidence(tensor: str) -> Confidence:
    """One tensor that may pass the threshold with more data, and one that stays within."""
    near = Growth(tensor, 8123.5, 3.01, 0.3, 0.21, 1)
    return Confidence(len(BATCHES), (near, Growth("/conv2/out", 900.0, 6.2, 3.5, 0.04, -1)), (near,))


def make_engine(**changes: Any) -> Engine:
    """Every kind of layer, every fate of a pin but "not honoured", and more warnings than a terminal shows."""
    engine = Engine(
        tensorrt="8.6.0",
        gpu="NVIDIA H200",
        compute_capability=(9, 0),
        typing="weak",
        constraints="obey",
        layers=215,
        fp32_layers=41,
        fp16_layers=150,
        reformat_layers=19,
        opaque_layers=3,
        pins=(
            PinOutcome("/conv3", "honoured", ("/conv3 + /relu3",)),
            PinOutcome("/relu3", "honoured", ("/conv3 + /relu3",)),
            PinOutcome("/softmax", "not visible", ("{ForeignNode[/norm.../softmax]}",)),
            PinOutcome("/scale", "no layer"),
        ),
        skipped=(
            Kept("(Unnamed Layer* 7) [Shuffle]", "Reshape", "it moves integers, which have no precision"),
        ),
        dropped=(
            Kept("/transpose", "Transpose", "no FP32 implementation was found, and it only moves data"),
        ),
        builds=6,
        build_seconds=182.34,
        warnings=tuple(f"{i}: weights of /conv{i} have been clamped to the range of FP16" for i in range(7)),
    )
    return replace(engine, **changes)


def make_price(**changes: Any) -> Price:
    price = Price(
        batch=BATCHES[0],
        latencies=(
            Latency("naive FP16", 0.812, 0.901, 200),
            Latency("fixed", 1.015, 1.12, 200),
            Latency("FP32 (TF32)", 1.624, 1.8, 200),
            Latency("FP32 (no TF32)", 2.436, 2.5, 200),
        ),
        fp32_time_share=0.357,
        opaque_time_share=0.215,
        remarks=("Batch 1 is too small for this GPU: most layers wait to be started rather than compute.",),
    )
    return replace(price, **changes)


def make_engine_report(folder: Path, **changes: Any) -> FixReport:
    """An engine, with everything that can be told of one."""
    report = make_report(folder)
    pinned = [("/conv3", "Conv"), ("/relu3", "Relu"), ("/softmax", "Softmax"), ("/scale", "Mul")]
    pins = [make_pin(node, kind) for node, kind in (*pinned, ("/transpose", "Transpose"))]
    artifact = replace(
        report.artifact, backend="tensorrt", path=folder / "model.engine", cast_count=0, engine=make_engine()
    )
    engine_report = replace(
        report,
        backend="tensorrt",
        backend_reason="TensorRT 8.6.0 and an NVIDIA H200 were found",
        plan=replace(report.plan, pins=tuple(pins)),
        artifact=artifact,
        price=make_price(),
        fp32_engine=replace(make_passing("logits", "boxes"), first_wrong=None),
        files=(folder / "ranges.h5", folder / "plan.json", folder / "model.engine"),
    )
    return replace(engine_report, **changes)


def make_preferred(folder: Path, **changes: Any) -> FixReport:
    """The last resort: pins that TensorRT ignored, on a model that its own FP32 engine gets wrong."""
    report = make_engine_report(folder)
    pins = (
        PinOutcome("/conv3", "not honoured", ("/conv3 + /relu3",)),
        PinOutcome("/relu3", "not honoured", ("/conv3 + /relu3",)),
        PinOutcome("/softmax", "honoured", ("/softmax",)),
    )
    engine = make_engine(constraints="prefer", pins=pins)
    preferred = replace(
        report,
        artifact=replace(report.artifact, engine=engine),
        fixed=make_failing("logits", "boxes"),
        fp32_engine=make_failing("boxes"),
    )
    return replace(preferred, **changes)


def make_uncompared(folder: Path, **changes: Any) -> FixReport:
    """An engine built with --no-compare: nothing is known of plain FP16, nor of what the fix costs."""
    report = make_engine_report(folder, naive=None, price=None, fp32_engine=None)
    pins = tuple(pin for pin in report.plan.pins if pin.node in ("/conv3", "/relu3"))
    engine = make_engine(pins=make_engine().pins[:2], skipped=(), dropped=(), warnings=())
    return replace(
        report,
        plan=replace(report.plan, pins=pins),
        artifact=replace(report.artifact, engine=engine),
        **changes,
    )


ENGINE_FACTORIES: list[Callable[[Path], FixReport]] = [make_engine_report, make_preferred, make_uncompared]


def make_untouched(folder: Path, **changes: Any) -> FixReport:
    """Nothing over the threshold, nothing pinned, plain FP16 right."""
    quiet = make_report(
        folder,
        ranges=make_table(make_range("/conv1/out", 8.0)),
        plan=make_plan(),
        initial_pins=0,
        naive=make_passing("logits"),
        fixed=make_passing("logits"),
        rounds=(),
        share=Share(100, 100, 10, 10, 0),
    )
    return replace(quiet, **changes)


def make_failed(folder: Path, **changes: Any) -> FixReport:
    """Repair ran and did not help."""
    rounds = tuple(
        RepairRound(
            i, f"threshold down to {10000 / 2**i:g}", (f"/n{i}",), 10000 / 2**i, False, NAN, 3000, False
        )
        for i in (1, 2)
    )
    right = make_passing("boxes").outputs
    fixed = make_failing("logits", first="/head/Exp_output_0")
    return replace(
        make_report(folder), fixed=replace(fixed, outputs=right + fixed.outputs), rounds=rounds, **changes
    )


def make_lost(folder: Path, **changes: Any) -> FixReport:
    """NaN and infinities wherever a record allows them."""
    gone = {
        "nan_count": 4096,
        "max_abs": NAN,
        "min": NAN,
        "max": NAN,
        "min_nonzero_abs": NAN,
        "worst_batch": -1,
    }
    table = make_table(
        make_range("all_nan", **gone),
        make_range("inf", INF, inf_count=3, over_fp16_count=3),
        make_range("empty", NAN, min=NAN, max=NAN, element_count=0, worst_batch=-1),
        not_observed={"sequence": "it is a sequence, not a tensor"},
    )
    odd = make_finding("/exp", "all_nan", value=NAN, limit=NAN, batch=None)
    plan = make_plan(
        Pin("/exp", "Exp", ("y",), (odd, replace(odd, value=-INF, limit=INF))),
        Pin("/log", "Log", ("z",), ()),
        clamps=(Clamp("mask", INF, "no reason"),),
        threshold=INF,
    )
    error = make_error("logits", -INF, cosine=NAN, max_rel_error=INF, reference_nan=5, reference_inf=6)
    broken = Verification(
        (OutputVerdict(error, False, "SNR is -inf dB"),), 3, replace(error, worst_batch=None)
    )
    return replace(
        make_report(folder),
        ranges=table,
        plan=plan,
        naive=broken,
        fixed=broken,
        rounds=(RepairRound(1, "threshold", (), NAN, False, -INF, 3, True),),
        share=Share(0, 0, 0, 0, 4),
        tolerance=Tolerance(-99.0, 0.0, {"logits": 1e300}, 1e300),
        durations_seconds={"scan": NAN},
        price=Price("", (Latency("fixed", NAN, INF, 0), Latency("naive FP16", 1.0, NAN, 0)), NAN, NAN),
        **changes,
    )


def make_hostile(folder: Path, name: str = HOSTILE, **changes: Any) -> FixReport:
    """One name everywhere a model, a file or a user can put one."""
    report = make_report(
        folder,
        model=Path(name),
        calibration=name,
        backend_reason=name,
        ranges=replace(
            make_table(make_range(name, 70000.0, worst_batch=0), not_observed={name: name}),
            calibration=name,
            batch_names=(name, *BATCHES[1:]),
        ),
        plan=make_plan(
            Pin(name, name, (name,), (make_finding(name, name, reason=name, batch=name),)),
            clamps=(Clamp(name, 65504.0, name, (name,)),),
            considered=(make_finding(name, name),),
        ),
        naive=make_failing(name, first=name),
        fixed=make_failing(name, first=name),
        rounds=(RepairRound(1, name, (name,), 1.0, False, 1.0, 1, False),),
        files=(folder / name.replace("/", "_"),),
        warnings=(name,),
    )
    kept = (Kept(name, name, name),)
    pins = (PinOutcome(name, "not honoured", (name,)), PinOutcome(name + "2", "not visible", (name,)))
    engine = make_engine(
        tensorrt=name,
        gpu=name,
        pins=pins,
        skipped=kept,
        dropped=(),
        warnings=(name, name),
        constraints="prefer",
    )
    return replace(
        report,
        artifact=replace(report.artifact, kept=kept, engine=engine),
        versions={name: name},
        price=Price(name, (Latency(name, 1.5, 2.5, 100),), 0.5, 0.1, (name,)),
        confidence=make_confidence(name),
        fused=make_fused(source=Path(name), fused=(name,), left={name: name}),
        fp32_engine=make_failing(name, first=name),
        **changes,
    )


def make_crowded(folder: Path, count: int = 400, **changes: Any) -> FixReport:
    """Hundreds of pins of dozens of causes, and as many tensors over the threshold."""
    pins = tuple(
        make_pin(
            f"/layer{i // 8}/node{i}", ("MatMul", "Add", "Pow")[i % 3], f"/layer{i // 8}/out", value=1e4 + i
        )
        for i in range(count)
    )
    table = make_table(*(make_range(f"/t{i}", 10001.0 + 200 * i) for i in range(count)))
    names = [f"out{i}" for i in range(25)]
    return replace(
        make_report(folder),
        plan=make_plan(*pins),
        ranges=table,
        naive=make_failing(*names),
        fixed=make_passing(*names),
        **changes,
    )
