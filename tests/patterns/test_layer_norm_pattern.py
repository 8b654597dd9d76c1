"""Every spelling of LayerNorm is one region, from the mean to the bias; what only looks like one is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import make_model, node, save
from spellings import (
    BETA,
    CONSTANTS,
    EPSILON,
    GAMMA,
    SHAPE,
    check_computes,
    layer_norm,
    normalize,
    place,
    spell,
)

from overflow_fixer.graph.model import Graph
from overflow_fixer.patterns.layer_norm import find_layer_norm, match_layer_norms

MEAN = "ReduceMean x -> m\nSub x m -> d\n"
VARIANCE = MEAN + "Pow d two -> q\nReduceMean q -> v\nAdd v eps -> s\n"
DIVIDED = VARIANCE + "Sqrt s -> r\nDiv d r -> n\n"
AFFINE = "Mul n gamma -> w\nAdd w beta -> y\n"
INVERSE = VARIANCE + "Sqrt s -> r\nReciprocal r -> i\n"


def _std(x: np.ndarray) -> np.ndarray:
    """With an epsilon on the root and the variance of n - 1."""
    root = np.sqrt(x.var(-1, keepdims=True) * 2) + EPSILON
    return (x - x.mean(-1, keepdims=True)) / root


SPELLINGS = {
    "torch": spell(DIVIDED + AFFINE, layer_norm),
    "square by Mul": spell(
        MEAN + "Mul d d -> q\nReduceMean q -> v\nAdd v eps -> s\nSqrt s -> r\nDiv d r -> n\n" + AFFINE,
        layer_norm,
    ),
    "weight first, no bias": spell(DIVIDED + "Mul gamma n -> y", lambda x: normalize(x) * GAMMA),
    "no affine": spell(VARIANCE + "Sqrt s -> r\nDiv d r -> y", normalize),
    "bias alone": spell(DIVIDED + "Add n beta -> y", lambda x: normalize(x) + BETA),
    "two Subs": spell(
        "ReduceMean x -> m\nSub x m -> d\nSub x m -> e\nPow d two -> q\nReduceMean q -> v\nAdd eps v -> s\n"
        "Sqrt s -> r\nDiv e r -> n\n" + AFFINE,
        layer_norm,
    ),
    "reciprocal": spell(INVERSE + "Mul d i -> n\n" + AFFINE, layer_norm),
    "one over": spell(
        VARIANCE + "Sqrt s -> r\nDiv one r -> i\nMul i d -> n\n" + AFFINE,
        layer_norm,
    ),
    "root by Pow": spell(VARIANCE + "Pow s half -> r\nDiv d r -> n\n" + AFFINE, layer_norm),
    "root of the inverse": spell(
        VARIANCE + "Reciprocal s -> i\nSqrt i -> r\nMul d r -> n\n" + AFFINE, layer_norm
    ),
    "root of 1 over it": spell(VARIANCE + "Div one s -> i\nSqrt i -> r\nMul d r -> n\n" + AFFINE, layer_norm),
    "inverse by Pow": spell(VARIANCE + "Pow s minus_half -> i\nMul d i -> n\n" + AFFINE, layer_norm),
    "scaled inverse": spell(INVERSE + "Mul i gamma -> a\nMul d a -> w\nAdd w beta -> y", layer_norm),
    "TensorFlow": spell(
        INVERSE + "Mul i gamma -> a\nMul x a -> p\nMul m a -> o\nSub beta o -> b\nAdd p b -> y",
        layer_norm,
    ),
    "TensorFlow, no affine": spell(INVERSE + "Mul x i -> p\nMul m i -> o\nSub p o -> y", normalize),
    "Flax": spell(
        "ReduceMean x -> m\nMul x x -> q\nReduceMean q -> u\nMul m m -> c\nSub u c -> v\nMax zero v -> t\n"
        "Sub x m -> d\nAdd t eps -> s\nSqrt s -> r\nReciprocal r -> i\nMul i gamma -> a\nMul d a -> w\nAdd w beta -> y",
        layer_norm,
    ),
    "jax2tf": spell(
        "~ReduceSum x -> t\nMul x x -> q\n~ReduceSum q -> tq\nMul tq share -> u\nMul t share -> m\nMul m m -> c\n"
        "Sub u c -> v\nMax zero v -> z\nReshape z kept -> zk\nExpand zk kept -> ze\nAdd ze eps -> s\nSqrt s -> r\n"
        "Reciprocal r -> i\nMul i gamma -> a\nReshape m kept -> mk\nExpand mk kept -> me\nSub x me -> d\n"
        "Mul d a -> w\nAdd w beta -> y",
        layer_norm,
    ),
    "jax2onnx": spell(
        "~ReduceSum x -> t\nReshape t kept -> tk\nExpand tk kept -> te\nDiv te count -> m\nSub x m -> d\n"
        "~ReduceSumSquare d -> q\nReshape q kept -> qk\nExpand qk kept -> qe\nDiv qe count -> v\nAdd v eps -> s\n"
        "Sqrt s -> r\nDiv one r -> i\nMul d i -> y",
        normalize,
    ),
    "Unsqueeze": spell(
        "~ReduceMean x -> t\nUnsqueeze t last -> m\nSub x m -> d\nMul d d -> q\n~ReduceMean q -> v\nAdd v eps -> s\n"
        "Sqrt s -> r\nUnsqueeze r last -> k\nExpand k shape -> e\nDiv d e -> n\n" + AFFINE,
        layer_norm,
    ),
    "tf.nn.moments": spell(
        "ReduceMean x -> m\nIdentity m -> g\nSub x g -> d\n"
        + INVERSE.removeprefix(MEAN).replace("Pow d two", "Mul d d")
        + "Mul i gamma -> a\nMul x a -> p\nMul m a -> o\nSub beta o -> b\nAdd p b -> y",
        layer_norm,
    ),
    "Keras": spell(
        INVERSE + "Mul i gamma -> a\nMul x a -> p\nNeg m -> k\nMul k a -> o\nAdd o beta -> b\nAdd p b -> y",
        layer_norm,
    ),
    "Keras, no affine": spell(INVERSE + "Mul x i -> p\nNeg m -> k\nMul k i -> o\nAdd p o -> y", normalize),
    "inverse kept under a limit": spell(INVERSE + "Min i high -> c\nMul d c -> y", normalize),
    "E[x^2] - E[x]^2": spell(
        MEAN
        + "Mul x x -> q\nReduceMean q -> u\nMul m m -> c\nSub u c -> v\nAdd v eps -> s\nSqrt s -> r\nDiv d r -> y",
        normalize,
    ),
    "casts": spell(
        "Cast x -> h\nReduceMean h -> m\nSub h m -> d\nCast d -> dc\nPow dc two -> q\nReduceMean q -> v\nCast v -> vc\n"
        "Add vc eps -> s\nSqrt s -> r\nDiv d r -> n\nCast n -> nc\nMul nc gamma -> w\nAdd w beta -> y",
        layer_norm,
    ),
    "scaled variance, epsilon on the root": spell(
        MEAN + "Mul d d -> q\nReduceMean q -> v\nMul v two -> u\nSqrt u -> r\nAdd r eps -> s\nDiv d s -> y",
        _std,
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_one_region_that_computes_it(name: str, tmp_path: Path) -> None:
    spelling = SPELLINGS[name]
    graph = place(spelling, tmp_path)
    (region,) = find_layer_norm(graph)
    begin = "h" if name == "casts" else "x"
    nodes = spelling.labels[1:] if name == "casts" else spelling.labels
    assert (region.kind, region.source, region.output, region.nodes) == ("LayerNorm", begin, "y", nodes)
    check_computes(graph, region, spelling.function)


@pytest.mark.parametrize(
    ("name", "epsilon", "scales", "biases"),
    [
        ("E[x^2] - E[x]^2", EPSILON, (), ()),
        ("torch", EPSILON, ("gamma",), ("beta",)),
        ("no affine", EPSILON, (), ()),
        ("bias alone", EPSILON, (), ("beta",)),
        ("scaled inverse", EPSILON, ("gamma",), ("beta",)),
        ("TensorFlow", EPSILON, ("gamma",), ("beta",)),
        ("TensorFlow, no affine", EPSILON, (), ()),
        ("Flax", None, ("gamma",), ("beta",)),
        ("inverse kept under a limit", None, (), ()),
        ("jax2tf", None, ("gamma",), ("beta",)),
        ("jax2onnx", EPSILON, (), ()),
        ("Unsqueeze", EPSILON, ("gamma",), ("beta",)),
        ("tf.nn.moments", EPSILON, ("gamma",), ("beta",)),
        ("Keras", EPSILON, ("gamma",), ("beta",)),
        ("Keras, no affine", EPSILON, (), ()),
        ("scaled variance, epsilon on the root", None, (), ()),
    ],
)
def test_the_parameters(
    name: str, epsilon: float | None, scales: tuple[str, ...], biases: tuple[str, ...], tmp_path: Path
) -> None:
    (norm,) = match_layer_norms(place(SPELLINGS[name], tmp_path))
    assert norm.axes == (-1,)
    assert norm.epsilon == (None if epsilon is None else float(np.float32(epsilon)))
    assert (norm.scales, norm.biases) == (scales, biases)
    assert norm.spread == (name in ("Flax", "jax2tf", "E[x^2] - E[x]^2"))


def test_without_an_epsilon_it_is_zero(tmp_path: Path) -> None:
    text = MEAN + "Pow d two -> q\nReduceMean q -> v\nSqrt v -> r\nDiv d r -> y"
    (norm,) = match_layer_norms(place(spell(text, normalize), tmp_path))
    assert norm.epsilon == 0


@pytest.mark.parametrize(
    "text",
    [
        "ReduceMean raw -> m\nSub x m -> d\nPow d two -> q\nReduceMean q -> v\nSqrt v -> r\nDiv d r -> y",
        MEAN + "Pow d half -> q\nReduceMean q -> v\nSqrt v -> r\nDiv d r -> y",
        MEAN + "Mul d x -> q\nReduceMean q -> v\nSqrt v -> r\nDiv d r -> y",
        MEAN + "Pow d two -> q\nReduceMean q -> v\nPow v two -> r\nDiv d r -> y",
        MEAN + "Pow d two -> q\nReduceMean q -> v\nSqrt v -> r\nDiv r d -> y",
        MEAN + "Pow d two -> q\nReduceMean q -> v\nAdd v x -> s\nSqrt s -> r\nDiv d r -> y",
        MEAN + "Pow d two -> q\nReduceMax q -> v\nSqrt v -> r\nDiv d r -> y",
        INVERSE + "Mul x i -> p\nMul x i -> o\nSub p o -> y",
        INVERSE + "Mul x i -> p\nMul m i -> o\nAdd p o -> y",
        INVERSE + "Mul x i -> p\nNeg m -> k\nMul k i -> o\nSub p o -> y",
        INVERSE + "Mul x i -> p\nNeg m -> k\nMul k i -> o\nSub o beta -> b\nAdd p b -> y",
        "ReduceSum x -> t\nMul t two -> m\n" + DIVIDED.removeprefix("ReduceMean x -> m\n"),
        "ReduceSum x -> t\nDiv t two -> m\n" + DIVIDED.removeprefix("ReduceMean x -> m\n"),
        "ReduceSum x -> t\nDiv count t -> m\n" + DIVIDED.removeprefix("ReduceMean x -> m\n"),
        "ReduceMax x -> t\nDiv t count -> m\n" + DIVIDED.removeprefix("ReduceMean x -> m\n"),
    ],
)
def test_what_only_looks_like_one_is_none(text: str, tmp_path: Path) -> None:
    assert list(find_layer_norm(place(spell(text, normalize), tmp_path))) == []


def _reduced(folder: Path, first: dict[str, object], second: dict[str, object]) -> Graph:
    nodes = [
        node("ReduceMean", "x", "m", **first),
        node("Sub", "x m", "d"),
        node("Pow", "d two", "q"),
        node("ReduceMean", "q", "v", **second),
        node("Sqrt", "v", "r"),
        node("Div", "d r", "y"),
    ]
    return save(make_model(nodes, {"x": [4, 4]}, "y", CONSTANTS, opset=13), folder)


def test_a_pool_is_a_mean_over_all_but_two_axes(tmp_path: Path) -> None:
    """tf2onnx writes it for a mean over the last of three axes."""
    spelling = spell(DIVIDED.replace("ReduceMean", "GlobalAveragePool") + AFFINE, layer_norm)
    graph = place(spelling, tmp_path)
    (norm,) = match_layer_norms(graph)
    assert (norm.axes, norm.region.nodes) == ((2,), spelling.labels)
    check_computes(graph, norm.region, layer_norm)


def test_mean_and_variance_go_over_the_same_axes_and_keep_them(tmp_path: Path) -> None:
    assert [norm.axes for norm in match_layer_norms(_reduced(tmp_path, {"axes": [0]}, {"axes": [0]}))] == [
        (0,)
    ]
    assert [n.axes for n in match_layer_norms(_reduced(tmp_path, {"keepdims": 0}, {"keepdims": 0}))] == [()]
    assert list(find_layer_norm(_reduced(tmp_path, {"axes": [0]}, {"axes": [1]}))) == []
    dropped = {"axes": [1], "keepdims": 0}  # a mean of [4] is subtracted from columns, not from its rows
    assert list(find_layer_norm(_reduced(tmp_path, dropped, dropped))) == []


@pytest.mark.parametrize("reads", ["n", "w"])
def test_an_affine_step_belongs_to_it_only_if_nothing_else_reads_what_is_before(
    reads: str, tmp_path: Path
) -> None:
    nodes = (*SPELLINGS["torch"].nodes, node("Exp", reads, "other"))
    graph = save(make_model(nodes, {"x": list(SHAPE)}, "y other", CONSTANTS, opset=13), tmp_path)
    (region,) = find_layer_norm(graph)
    assert region.output == reads


def test_a_scale_or_bias_that_is_computed_is_none_of_its_own(tmp_path: Path) -> None:
    nodes = (*spell(DIVIDED + "Mul n x -> w\nAdd w beta -> y", normalize).nodes,)
    graph = save(make_model(nodes, {"x": list(SHAPE)}, "y", CONSTANTS, opset=13), tmp_path)
    (region,) = find_layer_norm(graph)
    assert region.output == "n"


def test_a_scale_made_of_constants_alone_is_its_own(tmp_path: Path) -> None:
    text = DIVIDED + "Add gamma one -> g\nMul n g -> y"
    spelling = spell(text, lambda x: normalize(x) * (GAMMA + 1))
    (region,) = find_layer_norm(place(spelling, tmp_path))
    assert region.nodes == tuple(label for label in spelling.labels if label != "Add_g")


def test_a_model_of_many_has_each(tmp_path: Path) -> None:
    nodes = []
    for index, (before, after) in enumerate((("x", "t"), ("t", "u"), ("u", "y"))):
        names = {"x": before, "y": after}
        for one in SPELLINGS["torch"].nodes:
            inputs = [names.get(n, n if n in CONSTANTS else f"{n}{index}") for n in one.input]
            output = names.get(one.output[0], f"{one.output[0]}{index}")
            attributes = {"axes": [-1]} if one.op_type == "ReduceMean" else {}
            nodes.append(node(one.op_type, " ".join(inputs), output, **attributes))
    graph = save(make_model(nodes, {"x": list(SHAPE)}, "y", CONSTANTS, opset=13), tmp_path)
    found = list(find_layer_norm(graph))
    assert [(region.source, region.output) for region in found] == [("x", "t"), ("t", "u"), ("u", "y")]
    assert [label for region in found for label in region.nodes] == [at.label for at in graph.nodes]
