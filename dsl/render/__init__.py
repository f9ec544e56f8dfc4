"""Findings for people and programs: text, JSON, SARIF and GitHub annotations, one a file."""

from topoc.dsl.render.document import as_json
from topoc.dsl.render.github import as_github
from topoc.dsl.render.sarif import as_sarif
from topoc.dsl.render.text import Paint, as_text, count, plain

__all__ = ["Paint", "as_github", "as_json", "as_sarif", "as_text", "count", "plain"]
