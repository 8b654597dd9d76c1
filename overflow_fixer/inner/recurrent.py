"""States that LSTM, GRU and RNN keep from step to step and give out of the last one alone, or not at all.

With the activations that they have by default, states stay near 1, or grow by at most 1 a step (the cell of an LSTM);
with others, such as Relu, they can grow without a limit. Equations: the ONNX operators LSTM, GRU and RNN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found

_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_BOUNDED = frozenset({"sigmoid", "tanh", "hardsigmoid", "softsign"})
"""Activations of at most 1."""
_ALPHAS = {
    "leakyrelu": 0.01,
    "hardsigmoid": 0.2,
    "elu": 1.0,
    "affine": 1.0,
    "thresholdedrelu": 1.0,
    "scaledtanh": 1.0,
}
_BETAS = {"hardsigmoid": 0.5, "affine": 0.0, "scaledtanh": 1.0}
"""Activations with such an argument, and what it is in ONNX Runtime where the node does not say; it must say the last three."""
_OPEN = 40.0
"""The sum at which a Sigmoid is 1, and a HardSigmoid."""
_MOST_STEPS = 10000
"""So many steps bring the cell of an LSTM no further than the usual threshold."""
_INPUT_SLICES = 10
"""The opset from which on Slice takes its bounds as inputs."""


@dataclass(frozen=True)
class _Activation:
    """A function of a gate or a state by its name in lower case, with its arguments."""

    name: str
    alpha: float
    beta: float

    @property
    def is_bounded(self) -> bool:
        return self.name in _BOUNDED

    def of_large(self, x: float) -> float:
        """What a Sigmoid or HardSigmoid gives."""
        if self.name == "sigmoid":
            return 1 / (1 + math.exp(-x))
        return min(max(self.alpha * x + self.beta, 0.0), 1.0)


def find_in_lstm(expression: Expression) -> Iterator[Found]:
    """Hidden states that are no output; and cells, of which only the last is."""
    activations = _activations(expression)
    gates, inputs, outputs = (activations[at::3] for at in range(3))
    if not _gives_states(expression) and not _are_bounded(*gates, *outputs):
        yield "hidden state", _states(expression)
    can_grow = bool(gates) and not _are_bounded(*gates, *inputs)
    if (can_grow or _steps(expression) > _MOST_STEPS) and _can_hold_open(expression, gates):
        yield "cell state", _cells(expression, gates, inputs)


def find_in_hidden_states(expression: Expression) -> Iterator[Found]:
    """Hidden states of GRU and RNN that are no output."""
    if not _gives_states(expression) and not _are_bounded(*_activations(expression)):
        yield "hidden state", _states(expression)


def _activations(expression: Expression) -> list[_Activation]:
    """Those of the node, direction by direction; none where it is of a form that ONNX Runtime does not run.

    Arguments are taken from the lists in the order of the activations that have any.
    """
    defaults = _DEFAULTS[expression.node.op_type] * _count(expression)
    names = [_text(name).lower() for name in expression.attribute("activations", defaults)]
    alphas = iter(expression.attribute("activation_alpha", ()))
    betas = iter(expression.attribute("activation_beta", ()))
    found = [
        _Activation(
            name,
            next(alphas, _ALPHAS[name]) if name in _ALPHAS else 0.0,
            next(betas, _BETAS[name]) if name in _BETAS else 0.0,
        )
        for name in names
    ]
    is_run = len(found) == len(defaults) and not expression.attribute("layout", 0)
    return found if is_run and expression.attribute("hidden_size", 0) else []


def _are_bounded(*activations: _Activation) -> bool:
    return all(activation.is_bounded for activation in activations)


def _gives_states(expression: Expression) -> bool:
    return bool(expression.node.outputs[0])


def _count(expression: Expression) -> int:
    """The number of directions."""
    return 2 if _direction(expression) == "bidirectional" else 1


def _direction(expression: Expression) -> str:
    return _text(expression.attribute("direction", "forward"))


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def _steps(expression: Expression) -> int:
    """The number of steps, where the shape is sure; else 0."""
    steps = expression.dims[0] if expression.dims else None
    return steps if isinstance(steps, int) else 0


def _input(expression: Expression, slot: int) -> str:
    inputs = expression.node.inputs
    return inputs[slot] if slot < len(inputs) else ""


def _states(expression: Expression) -> str:
    """The hidden states of all steps, [steps, directions, batch, hidden]: the node's output, or that of another like it."""
    if _gives_states(expression):
        return expression.node.outputs[0]
    return expression.repeat(expression.node, *expression.node.inputs)


def _can_hold_open(expression: Expression, gates: Sequence[_Activation]) -> bool:
    """Whether an output gate can be held at a number that is known, and the state before each step is known.

    Before the first step of a sequence that is read backwards is what stands behind its end, which `sequence_lens` tells.
    """
    can_open = all(
        gate.name in ("sigmoid", "hardsigmoid") and gate.of_large(_sum(expression)) > 0 for gate in gates
    )
    is_read_backwards = _direction(expression) != "forward"
    is_lost = is_read_backwards and _input(expression, 4) and _input(expression, 5)
    return can_open and not is_lost and expression.graph.opset >= _INPUT_SLICES


def _sum(expression: Expression) -> float:
    """What is put into the output gate: the node may clip it."""
    clip = float(expression.attribute("clip", 0.0))
    return min(_OPEN, clip) if clip > 0 else _OPEN


def _cells(expression: Expression, gates: Sequence[_Activation], inputs: Sequence[_Activation]) -> str:
    """The cells of all steps, [steps, directions, batch, hidden].

    They are the hidden states of an LSTM whose output gates are held open and whose last activation changes nothing.
    The hidden states of the node come in beside the input, under the weights R; its own have weights of 0.
    """
    x, w, r = expression.node.inputs[:3]
    hidden = int(expression.attribute("hidden_size", 0))
    weights = expression.apply("Concat", *_weights(expression, w, r, hidden), axis=3)
    told = [
        expression.apply("Concat", x, *_states_before(expression, hidden), axis=2),
        expression.apply("Reshape", weights, expression.integers(0, 4 * hidden, -1)),
        expression.apply("Mul", r, expression.number(0.0)),
        _biases(expression, hidden),
        _input(expression, 4),
        "",
        _input(expression, 6),
        _peepholes(expression, hidden),
    ]
    cells = expression.apply("LSTM", *told, **_attributes(expression, gates, inputs))
    shares = [1 / gate.of_large(_sum(expression)) for gate in gates]
    return expression.apply("Mul", cells, expression.floats(shares, (len(shares), 1, 1)))


def _weights(expression: Expression, w: str, r: str, hidden: int) -> Iterator[str]:
    """W, and R for the states of each direction, [directions, 4, hidden, ...]; those of output gates are 0."""
    shut = expression.floats((1, 0, 1, 1), (4, 1, 1))
    by_gate = expression.integers(0, 4, hidden, -1)
    of_input, of_states = (
        expression.apply("Mul", expression.apply("Reshape", weights, by_gate), shut) for weights in (w, r)
    )
    yield of_input
    count = _count(expression)
    for number in range(count):
        is_own = [float(other == number) for other in range(count)]
        yield expression.apply("Mul", of_states, expression.floats(is_own, (count, 1, 1, 1)))


def _states_before(expression: Expression, hidden: int) -> Iterator[str]:
    """The hidden states of each direction before each step, [steps, batch, hidden]."""
    by_sample = expression.apply("Transpose", _states(expression), perm=[0, 2, 1, 3])
    first, last, end = (expression.integers(bound) for bound in (0, -1, 2**31))
    for number in range(_count(expression)):
        chosen = expression.apply("Gather", by_sample, expression.integers(number), axis=2)
        states = expression.apply("Reshape", chosen, expression.integers(0, 0, hidden))
        initial = _initial_state(expression, states, number)
        if _direction(expression) == "reverse" or number == 1:
            joined = expression.apply("Concat", states, initial, axis=0)
            yield expression.apply("Slice", joined, expression.integers(1), end, first)
        else:
            joined = expression.apply("Concat", initial, states, axis=0)
            yield expression.apply("Slice", joined, first, last, first)


def _initial_state(expression: Expression, states: str, number: int) -> str:
    """That before the first step, [1, batch, hidden]; zeros where none is given."""
    given = _input(expression, 5)
    if given:
        return expression.apply("Gather", given, expression.integers(number), axis=0)
    first, one = expression.integers(0), expression.integers(1)
    return expression.apply(
        "Mul", expression.apply("Slice", states, first, one, first), expression.number(0.0)
    )


def _biases(expression: Expression, hidden: int) -> str:
    """Those of the node, but that the output gate is held open by them."""
    given = _input(expression, 3)
    if given:
        by_gate = expression.apply("Reshape", given, expression.integers(0, 8, hidden))
    else:
        shape = expression.integers(_count(expression), 8, hidden)
        by_gate = expression.apply("Expand", expression.number(0.0), shape)
    kept = expression.apply("Mul", by_gate, expression.floats((1, 0, 1, 1) * 2, (8, 1)))
    opened = expression.floats((0, _sum(expression), *(0,) * 6), (8, 1))
    return expression.apply(
        "Reshape", expression.apply("Add", kept, opened), expression.integers(0, 8 * hidden)
    )


def _peepholes(expression: Expression, hidden: int) -> str:
    """Those of the node, but for the output gate's."""
    given = _input(expression, 7)
    if not given:
        return ""
    by_gate = expression.apply("Reshape", given, expression.integers(0, 3, hidden))
    kept = expression.apply("Mul", by_gate, expression.floats((1, 0, 1), (3, 1)))
    return expression.apply("Reshape", kept, expression.integers(0, 3 * hidden))


def _attributes(
    expression: Expression, gates: Sequence[_Activation], inputs: Sequence[_Activation]
) -> dict[str, Any]:
    """Those of the node, with an activation of the cell that changes nothing."""
    unchanged = _Activation("affine", 1.0, 0.0)
    functions = [function for pair in zip(gates, inputs, strict=True) for function in (*pair, unchanged)]
    kept = ("direction", "hidden_size", "clip", "input_forget")
    attributes = {name: expression.attribute(name, None) for name in kept}
    return {
        **{name: value for name, value in attributes.items() if value is not None},
        "activations": [function.name for function in functions],
        "activation_alpha": [function.alpha for function in functions if function.name in _ALPHAS],
        "activation_beta": [function.beta for function in functions if function.name in _BETAS],
    }
