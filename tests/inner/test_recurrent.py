"""States of LSTM, GRU and RNN between their steps, against numpy in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import InMemoryCalibration, make_model, node, save
from ways_to_observe import scan_each_way

from overflow_fixer.graph.model import Graph
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Array, PlanPolicy, RangeTable

BATCH, INPUTS, HIDDEN = 2, 3, 4
Function = Callable[[Array], Array]
FUNCTIONS: dict[str, Function] = {
    "Sigmoid": lambda x: 1 / (1 + np.exp(-np.clip(x, -500, 500))),
    "Tanh": np.tanh,
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Relu": lambda x: np.maximum(x, 0),
    "LeakyRelu": lambda x: np.where(x >= 0, x, 0.01 * x),
    "LeakyRelu 0.5": lambda x: np.where(x >= 0, x, 0.5 * x),
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "HardSigmoid 0.1 0.75": lambda x: np.clip(0.1 * x + 0.75, 0, 1),
    "Affine 2 0.5": lambda x: 2 * x + 0.5,
}
"""By name, alpha and beta."""
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
GROWING = {"LSTM": ["Sigmoid", "Relu", "Relu"], "GRU": ["Sigmoid", "Relu"], "RNN": ["Relu"]}


@dataclass(frozen=True)
class Recurrent:
    """A node over random data. `given`: of its optional inputs B, S (lengths), H, C and P, those that it has."""

    op_type: str = "LSTM"
    activations: Sequence[str] | None = None
    direction: str = "forward"
    given: str = "B"
    outputs: str = "y"
    clip: float = 0.0
    input_forget: int = 0
    steps: int = 6
    scale: float = 1.5
    shut: float = 0.0
    """What is taken from the bias of an LSTM's output gate."""
    dims: tuple[int | None, ...] = (None, BATCH, INPUTS)
    opset: int = 17

    @property
    def functions(self) -> list[str]:
        """One after another, of each direction the same."""
        return list(self.activations or DEFAULTS[self.op_type]) * self.count

    @property
    def count(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def weights(self) -> dict[str, Array]:
        rng, gates = np.random.default_rng(0), GATES[self.op_type]
        drawn = {
            "W": rng.normal(0, self.scale, (self.count, gates * HIDDEN, INPUTS)),
            "R": rng.normal(0, 0.4, (self.count, gates * HIDDEN, HIDDEN)),
            "B": rng.normal(0, 0.5, (self.count, 2 * gates * HIDDEN)),
            "S": np.asarray([self.steps - 2, self.steps]),
            "H": rng.normal(0, 2, (self.count, BATCH, HIDDEN)),
            "C": rng.normal(0, 2, (self.count, BATCH, HIDDEN)),
            "P": rng.normal(0, 0.3, (self.count, 3 * HIDDEN)),
        }
        drawn["B"][:, HIDDEN : 2 * HIDDEN] -= self.shut
        kinds = {"S": np.int32}
        return {
            n: x.astype(kinds.get(n, np.float32)) for n, x in drawn.items() if n in "WR" or n in self.given
        }

    def data(self) -> Array:
        return np.random.default_rng(1).normal(0, 2, (self.steps, BATCH, INPUTS)).astype(np.float32)

    def scan(self, folder: Path, scan: Callable[..., RangeTable] = scan_each_way) -> tuple[Graph, RangeTable]:
        weights = self.weights()
        slots = "WRBSH" + ("CP" if self.op_type == "LSTM" else "")
        inputs = " ".join(["x", *(name if name in weights else "-" for name in slots)])
        made = node(self.op_type, inputs, self.outputs, hidden_size=HIDDEN, **self._attributes())
        written = [name for name in self.outputs.split() if name != "-"]
        model = make_model([made], {"x": [*self.dims]}, " ".join(written), weights, self.opset)
        graph = save(model, folder)
        return graph, scan(graph, InMemoryCalibration(({"x": self.data()},)))

    def _attributes(self) -> dict[str, Any]:
        attributes: dict[str, Any] = {"direction": self.direction}
        if self.activations is not None:
            parts = [name.split() for name in self.functions]
            attributes["activations"] = [name for name, *_ in parts]
            attributes["activation_alpha"] = [float(some[0]) for _, *some in parts if some] or None
            attributes["activation_beta"] = [float(some[1]) for _, *some in parts if len(some) > 1] or None
        attributes |= {"clip": self.clip} if self.clip else {}
        attributes |= {"input_forget": 1} if self.input_forget else {}
        return {name: value for name, value in attributes.items() if value is not None}

    def states(self) -> tuple[Array, Array]:
        """Hidden and cell states of all steps that are run, one below the other, in float64."""
        found = [pair for number in range(self.count) for pair in self._run(number)]
        hidden, cells = (np.stack(some) for some in zip(*found, strict=True))
        return hidden, cells

    def _run(self, number: int) -> Iterator[tuple[Array, Array]]:
        own = {name: x if name == "S" else x[number].astype(np.float64) for name, x in self.weights().items()}
        size = len(self.functions) // self.count
        functions = [FUNCTIONS[name] for name in self.functions[number * size :][:size]]
        is_reverse = self.direction == "reverse" or number == 1
        for sample in range(BATCH):
            length = int(own["S"][sample]) if "S" in own else self.steps
            steps = self.data()[:length, sample].astype(np.float64)
            h, c = (own[name][sample] if name in own else np.zeros(HIDDEN) for name in "HC")
            for x in steps[::-1] if is_reverse else steps:
                h, c = STEPS[self.op_type](self, own, functions, x, h, c)
                yield h, c

    def clipped(self, x: Array) -> Array:
        return np.clip(x, -self.clip, self.clip) if self.clip else x


def step_lstm(
    it: Recurrent, own: Mapping[str, Array], functions: Sequence[Function], x: Array, h: Array, c: Array
) -> tuple[Array, Array]:
    f, g, last = functions
    bias = own["B"].reshape(2, -1).sum(0) if "B" in own else np.zeros(4 * HIDDEN)
    sums = (own["W"] @ x + own["R"] @ h + bias).reshape(4, HIDDEN)
    peeps = own["P"].reshape(3, HIDDEN) if "P" in own else np.zeros((3, HIDDEN))
    into = f(it.clipped(sums[0] + peeps[0] * c))
    kept = 1 - into if it.input_forget else f(it.clipped(sums[2] + peeps[2] * c))
    cell = kept * c + into * g(it.clipped(sums[3]))
    return f(it.clipped(sums[1] + peeps[1] * cell)) * last(cell), cell


def step_gru(
    it: Recurrent, own: Mapping[str, Array], functions: Sequence[Function], x: Array, h: Array, c: Array
) -> tuple[Array, Array]:
    f, g = functions
    bias = own["B"].reshape(2, -1).sum(0) if "B" in own else np.zeros(3 * HIDDEN)
    taken = (own["W"] @ x + bias).reshape(3, HIDDEN)
    r = own["R"].reshape(3, HIDDEN, HIDDEN)
    update, reset = (f(taken[i] + r[i] @ h) for i in (0, 1))
    new = g(taken[2] + r[2] @ (reset * h))
    return (1 - update) * new + update * h, c


def step_rnn(
    it: Recurrent, own: Mapping[str, Array], functions: Sequence[Function], x: Array, h: Array, c: Array
) -> tuple[Array, Array]:
    bias = own["B"].reshape(2, -1).sum(0) if "B" in own else np.zeros(HIDDEN)
    return functions[0](own["W"] @ x + own["R"] @ h + bias), c


STEPS = {"LSTM": step_lstm, "GRU": step_gru, "RNN": step_rnn}
RELU = GROWING["LSTM"]
LSTMS: dict[str, Recurrent] = {
    "Relu": Recurrent(activations=RELU),
    "Relu, the cell alone": Recurrent(activations=["Sigmoid", "Relu", "Tanh"]),
    "without biases": Recurrent(activations=RELU, given=""),
    "an output gate that is shut": Recurrent(activations=RELU, shut=60.0),
    "backwards": Recurrent(activations=RELU, direction="reverse", given="BHC"),
    "both ways, with all inputs": Recurrent(activations=RELU, direction="bidirectional", given="BHCP"),
    "both ways, of some lengths": Recurrent(activations=RELU, direction="bidirectional", given="BSCP"),
    "of some lengths": Recurrent(activations=RELU, given="BSHCP"),
    "peepholes without biases": Recurrent(activations=RELU, given="P"),
    "clipped": Recurrent(activations=RELU, clip=1.5, given="BP"),
    "coupled gates": Recurrent(activations=RELU, input_forget=1),
    "other functions": Recurrent(activations=["HardSigmoid", "LeakyRelu", "Softsign"], direction="reverse"),
    "functions with arguments": Recurrent(
        activations=["HardSigmoid 0.1 0.75", "Affine 2 0.5", "LeakyRelu 0.5"], direction="bidirectional"
    ),
    "clipped, of a hard gate": Recurrent(activations=["HardSigmoid", "LeakyRelu", "Tanh"], clip=1.0),
    "no states given out": Recurrent(activations=RELU, outputs="- yh yc", given="BHC"),
    "no states given out, both ways": Recurrent(
        activations=RELU, outputs="- yh", given="BHC", direction="bidirectional"
    ),
    "opset 11": Recurrent(activations=RELU, opset=11, direction="bidirectional", given="BHCP"),
    "no shape": Recurrent(activations=RELU, dims=(None, None, None)),
}


@pytest.mark.parametrize("name", LSTMS)
def test_cells_of_all_steps(name: str, tmp_path: Path) -> None:
    lstm = LSTMS[name]
    graph, ranges = lstm.scan(tmp_path)
    hidden, cells = lstm.states()
    inner = {found.quantity: found.seen for found in ranges.inner}
    assert set(inner) == {"cell state", *(["hidden state"] if lstm.outputs != "y" else [])}
    assert_same(inner["cell state"], cells, lstm)
    if "hidden state" in inner:
        assert_same(inner["hidden state"], hidden, lstm)
    else:
        (y,) = (ranges.by_tensor[name] for name in graph.outputs)
        assert y.max_abs == pytest.approx(np.abs(hidden).max(), rel=1e-5, abs=1e-5)


def assert_same(seen: Any, states: Array, node: Recurrent) -> None:
    """Steps behind the end of a sequence have states of 0."""
    if "S" in node.given:
        states = np.append(states.ravel(), 0.0)
    expected = [np.abs(states).max(), states.min(), states.max()]
    np.testing.assert_allclose([seen.max_abs, seen.min, seen.max], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_hidden_states_that_are_no_output(op_type: str, direction: str, tmp_path: Path) -> None:
    node = Recurrent(op_type, GROWING[op_type], direction, "BH", outputs="- yh")
    _, ranges = node.scan(tmp_path)
    inner = {found.quantity: found.seen for found in ranges.inner}
    assert_same(inner["hidden state"], node.states()[0], node)


@pytest.mark.parametrize(
    "node",
    [
        Recurrent(outputs="- yh"),
        Recurrent("GRU", outputs="- yh"),
        Recurrent("RNN", outputs="- yh"),
        Recurrent(activations=["HardSigmoid", "Softsign", "Relu"]),
        Recurrent("GRU", ["Sigmoid", "Relu"]),
        Recurrent("RNN", ["Relu"]),
    ],
    ids=lambda node: f"{node.op_type} {node.activations}",
)
def test_nothing_is_measured_of_states_that_cannot_grow_or_are_seen(node: Recurrent, tmp_path: Path) -> None:
    assert node.scan(tmp_path)[1].inner == ()


@pytest.mark.parametrize(
    "node",
    [
        Recurrent(activations=["Relu", "Relu", "Tanh"]),
        Recurrent(activations=RELU, direction="reverse", given="BSH"),
        Recurrent(activations=RELU, opset=9),
    ],
    ids=["an output gate that is no sigmoid", "lengths backwards from a state", "opset 9"],
)
def test_cells_that_are_not_measured(node: Recurrent, tmp_path: Path) -> None:
    assert node.scan(tmp_path)[1].inner == ()


@pytest.mark.parametrize(("steps", "is_measured"), [(10000, False), (10001, True)])
def test_so_many_steps_that_a_cell_grows(steps: int, is_measured: bool, tmp_path: Path) -> None:
    lstm = Recurrent(steps=steps, dims=(steps, BATCH, INPUTS))
    _, ranges = lstm.scan(tmp_path, collect_ranges)
    assert [found.quantity for found in ranges.inner] == ["cell state"] * is_measured


def test_a_cell_over_the_threshold_pins_the_node(tmp_path: Path) -> None:
    """Where hidden states, and the last cell, are small."""
    lstm = Recurrent(activations=["Sigmoid", "Relu", "Tanh"], scale=4e3)
    graph, ranges = lstm.scan(tmp_path)
    largest = np.abs(lstm.states()[1]).max()
    assert ranges.by_tensor["y"].max_abs <= 1.0001
    assert largest > 10000
    (pin,) = plan_precision(graph, ranges, PlanPolicy()).pins
    (finding,) = (found for found in pin.findings if found.rule == "inner_value")
    assert finding.value == pytest.approx(largest, rel=1e-5)
    assert finding.reason.startswith("inside, the cell state of a step reaches ")
