"""The version of topoc that is installed."""

from importlib.metadata import version

VERSION = version("topoc")
