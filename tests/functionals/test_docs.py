"""The examples of the page about functionals run."""

from __future__ import annotations

import pathlib
import re


def test_examples_of_the_page():
    page = pathlib.Path(__file__).parents[2] / "docs" / "functionals.md"
    code = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    assert len(code) >= 5
    scope: dict[str, object] = {}
    for part in code:
        exec(part, scope)
