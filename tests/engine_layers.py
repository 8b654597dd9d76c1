"""What an engine's file tells of its layers."""

from __future__ import annotations

from overflow_fixer.backends.tensorrt.emission import inspect_runner, open_runner
from overflow_fixer.backends.tensorrt.inspection import EngineLayer
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Artifact, BuildSettings


def inspect_artifact(artifact: Artifact, graph: Graph, settings: BuildSettings) -> tuple[EngineLayer, ...]:
    """The layers of the engine in the artifact's file, with the nodes that their metadata and names tell."""
    runner = open_runner(artifact, settings)
    runner.set_shapes(settings.shapes)
    return inspect_runner(runner, graph, settings)
