"""One folder of small tasks for all tests that need one."""

from __future__ import annotations

from pathlib import Path

import pytest

from .toy import Toy, make_toy


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return make_toy(Path(tmp_path_factory.mktemp("toy")))
