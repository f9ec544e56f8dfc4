"""Options and fixtures for all tests."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: two threads spin on a busy machine

# The first example of a run builds the parser's table, which no deadline allows for.
# CI draws the same examples every time: what a random run finds belongs to whoever made it.
settings.register_profile("topoc", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("topoc")


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite .expect files; a reviewer reads them"
    )


def pytest_configure(config):
    if (
        "PYTEST_XDIST_WORKER" not in os.environ
    ):  # workers inherit it: no test touches a user's cache
        os.environ["XDG_CACHE_HOME"] = config.cache_home = tempfile.mkdtemp(prefix="topoc-cache-")
    if config.getoption("--update-golden") and os.environ.get("CI"):
        message = "--update-golden rewrites what tests expect, which CI must not do"
        raise pytest.UsageError(message)


def pytest_unconfigure(config):
    if hasattr(config, "cache_home"):
        shutil.rmtree(config.cache_home, ignore_errors=True)


@pytest.fixture
def golden(request):
    """Compare a text with what a file expects; rewrite the file when asked to."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.write_text(text, "utf-8")
        assert path.exists(), f"{path} is missing; run pytest --update-golden and read the diff"
        assert text == path.read_text("utf-8")

    return compare
