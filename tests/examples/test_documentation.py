"""The pages do what they say: every `>>>` line and the README's program run."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PROJECT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted((PROJECT / "docs").glob("*.md")) + [PROJECT / "CONTRIBUTING.md"]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_on_the_page_give_what_it_shows(page: Path) -> None:
    outcome = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert outcome.failed == 0


@pytest.mark.slow
def test_the_programs_in_the_readme_run(capsys: pytest.CaptureFixture[str]) -> None:
    programs = re.findall(
        r"```python\n(.*?)```", (PROJECT / "README.md").read_text(), flags=re.DOTALL
    )
    names: dict[str, Any] = {}
    for program in programs:
        exec(compile(program, "README.md", "exec"), names)
    image = names["image"]
    inside = (slice(45, 85), slice(35, 95))
    assert np.allclose(names["first"][inside], image[inside], rtol=0.02)
    assert np.allclose(names["second"][inside], image[inside], rtol=0.05)
    assert np.allclose(names["B"] @ image, names["y"], rtol=1e-5)
    shown = capsys.readouterr().out
    assert "y x -> view col" in shown and "bytes moved" in shown


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs_on_the_page_run(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    programs = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {"__name__": page.stem}
    for program in programs:
        if ">>>" not in program:
            exec(compile(program, page.name, "exec"), names)
    capsys.readouterr()


@pytest.mark.parametrize("page", [*PAGES, PROJECT / "README.md"], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert all((page.parent / link).exists() for link in links)
