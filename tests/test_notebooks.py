"""What every chapter keeps to: its size, its parts, and the form in which it is stored."""

import re
import statistics
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.ipynb"))
PATHS = re.compile(r"/(home|root|work|tmp|usr|Users|private)/|site-packages|[A-Z]:\\\\")
MOST_BYTES, MOST_LINES, MEDIAN_LINES = 200_000, 25, 6
FEWEST_CELLS, MOST_CELLS = 20, 40
MOST_OUTPUT, MOST_MAP_OUTPUT = 15, 45  # lines; a map's text has a line for each request and event


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.name)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def cells(path: Path) -> list[nbformat.NotebookNode]:
    return nbformat.read(path, as_version=4).cells


def code(cells: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    return [cell for cell in cells if cell.cell_type == "code"]


def prose(cells: list[nbformat.NotebookNode]) -> str:
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


# ---- size ----


def test_there_are_notebooks():
    assert NOTEBOOKS


def test_a_chapter_keeps_its_size(path: Path, cells: list[nbformat.NotebookNode]):
    """20 to 40 cells, short ones, in a file that any viewer opens."""
    assert path.stat().st_size < MOST_BYTES
    assert FEWEST_CELLS <= len(cells) <= MOST_CELLS
    lengths = [len(cell.source.splitlines()) for cell in code(cells)]
    assert max(lengths) <= MOST_LINES
    assert statistics.median(lengths) <= MEDIAN_LINES


def test_an_output_fits_on_a_screen(cells: list[nbformat.NotebookNode]):
    """At most 15 lines, and a map's text at most 45."""
    for cell in code(cells):
        for output in cell.outputs:
            data = output.get("data", {})
            text = output.get("text", "") or data.get("text/plain", "")
            most = MOST_MAP_OUTPUT if "text/html" in data else MOST_OUTPUT
            assert len(text.splitlines()) <= most, f"{cell.id}: {text}"


# ---- parts ----


def test_a_chapter_begins_with_what_it_teaches(path: Path, cells: list[nbformat.NotebookNode]):
    """Title with the chapter's number, three goals, what it needs, how long it runs."""
    first = cells[0].source
    assert first.startswith(f"# {int(path.name[:2])} · "), first.splitlines()[0]
    goals = first.split("**You will learn**")[1].split("**Needs**")[0]
    assert len(re.findall(r"^- ", goals, re.M)) == 3
    assert "**Runs in**" in first
    assert cells[1].cell_type == "code" and "import" in cells[1].source


def test_a_chapter_has_its_parts_in_order(cells: list[nbformat.NotebookNode]):
    """The box on the real vLLM, exercises, a summary of three lines, and the way on."""
    text = prose(cells)
    places = [text.index(part) for part in
              ("**What real vLLM does differently**", "## Exercises", "## Summary")]  # fmt: skip
    assert places == sorted(places)
    summary = text.split("## Summary")[1]
    assert len(re.findall(r"^\d\. ", summary, re.M)) == 3


def test_a_chapter_asks_and_has_three_exercises(cells: list[nbformat.NotebookNode]):
    tagged = [cell for cell in cells if "exercise" in cell.metadata.get("tags", [])]
    assert len([cell for cell in tagged if 'check("' in cell.source]) >= 3
    assert any('check_value("' in cell.source for cell in tagged), "nothing to predict"
    assert any("assert" in cell.source for cell in code(cells)), "nothing is proven"


def test_links_lead_somewhere(path: Path, cells: list[nbformat.NotebookNode]):
    """Every link is to a chapter that exists (the last may wait for the next) or the web."""
    for target in re.findall(r"\]\(([^)#]+)", prose(cells)):
        if not target.startswith("http"):
            assert (FOLDER / target).exists() or path == NOTEBOOKS[-1], target


# ---- form ----


def test_a_notebook_is_stored_as_the_tool_writes_it(cells: list[nbformat.NotebookNode]):
    """Executed once, from top to bottom; ids by position; of the metadata only tags."""
    assert [cell.execution_count for cell in code(cells)] == [*range(1, len(code(cells)) + 1)]
    assert [cell.id for cell in cells] == [f"c{index:03}" for index in range(len(cells))]
    assert all(set(cell.metadata) <= {"tags"} for cell in cells)


def test_a_notebook_holds_no_state_no_path_and_no_warning(path: Path):
    """Widget state breaks viewers; paths and warnings differ from machine to machine."""
    notebook = nbformat.read(path, as_version=4)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    for cell in code(notebook.cells):
        for output in cell.outputs:
            assert output.get("name") != "stderr", f"{cell.id}: {output.get('text')}"
            assert "application/vnd.jupyter.widget-view+json" not in output.get("data", {})
            texts = [output.get("text", ""), *map(str, output.get("data", {}).values())]
            for text in texts:
                text = re.sub(r'(?s)<script type="module">.*?</script>', "", text)
                assert not PATHS.search(text), f"{cell.id}: {PATHS.search(text)}"


def test_formulas_are_plain_text(cells: list[nbformat.NotebookNode]):
    """The site is read offline, where no MathJax sets TeX."""
    assert not re.search(r"\$[^$\n]+\$|\\\(|\\frac", prose(cells))
