from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from zoo_models import AddModel, write_endless, write_greedy, write_model


@pytest.fixture
def add_model(tmp_path: Path) -> AddModel:
    """Writes a model and its data: see zoo_models.write_model."""
    return partial(write_model, tmp_path)


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    return write_endless(tmp_path)


@pytest.fixture
def greedy(tmp_path: Path) -> Path:
    return write_greedy(tmp_path)
