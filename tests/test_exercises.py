"""The exercises prove themselves: solutions are right, stubs are open, usual mistakes are named."""

import inspect
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from minivllm.config import SchedulerConfig
from minivllm.lab.checks import check, check_value, report, solution
from minivllm.lab.exam import Exam, Wrong
from minivllm.lab.exercise import Exercise, Mistake, Question
from minivllm.lab.model_trial import bytes_jobs, model_trial
from minivllm.lab.notebooks import exercise_id_of, exercise_ids, solve, strip
from minivllm.lab.registry import all_exercises, find
from minivllm.lab.trial import jobs, trial
from minivllm.scheduler import Scheduler
from minivllm.step_records import SchedulerOutput

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.ipynb"))
ITEMS = all_exercises()
MISTAKES = [(item, number) for item in ITEMS.values() for number in range(len(item.mistakes))]


# ---- each exercise ----


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_the_reference_solution_is_right(item: Exercise | Question):
    """What `solution` shows passes its own check."""
    answer = item.reference if isinstance(item, Exercise) else item.value
    assert report(item.id, answer).startswith("✓"), report(item.id, answer)


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_a_stub_is_open(item: Exercise | Question):
    """An answer that raises NotImplementedError is not wrong, it is not done yet."""

    def stub(*arguments: object, **options: object) -> None:
        raise NotImplementedError

    answer = stub if isinstance(item, Exercise) else ...
    assert report(item.id, answer).startswith("○")
    assert "\n" not in report(item.id, answer)


@pytest.mark.parametrize(
    "item, number", MISTAKES, ids=[f"{item.id}-{number}" for item, number in MISTAKES]
)
def test_a_usual_mistake_is_caught_and_named(item: Exercise | Question, number: int):
    """Its message tells what was misunderstood, and no other mistake's words."""
    wrong_answer, says = item.wrong_answers()[number]
    line = report(item.id, wrong_answer).splitlines()[0]
    assert line.startswith("✗")
    assert says[1:] in line, line
    assert report(item.id, wrong_answer) == report(item.id, wrong_answer), "not the same each time"


# ---- the notebooks ----


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def test_every_exercise_stands_in_its_chapter():
    """The ids in the notebooks are those of the registry, each once, in their chapter."""
    in_notebooks = [(key, path) for path in NOTEBOOKS for key in exercise_ids(read(path))]
    for key, path in in_notebooks:
        assert int(key.split(".")[0]) == int(path.name[:2]), f"{key} stands in {path.name}"
    chapters = {int(path.name[:2]) for path in NOTEBOOKS}
    known = [key for key in ITEMS if int(key.split(".")[0]) in chapters]
    assert sorted(key for key, _ in in_notebooks) == sorted(known)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_exercises_are_stored_open_and_solutions_folded(path: Path):
    """An exercise's cell is a stub whose check says so; no cell shows a solution."""
    for cell in read(path).cells:
        code = [line for line in cell.source.splitlines() if not line.lstrip().startswith("#")]
        assert cell.cell_type == "markdown" or not any("solution(" in line for line in code)
        if key := exercise_id_of(cell):
            assert "exercise" in cell.metadata.tags
            text = "".join(output.get("text", "") for output in cell.outputs)
            assert text.startswith("○") and f" {key}" in text, f"{key}: {text}"


def test_what_a_class_is_given_has_no_outputs_and_the_same_cells():
    """`make student`: everything but the outputs; the notebook itself stays as it is."""
    notebook = read(NOTEBOOKS[0])
    given = strip(notebook)
    assert [cell["source"] for cell in given["cells"]] == [cell.source for cell in notebook.cells]
    code = [cell for cell in given["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    assert notebook == read(NOTEBOOKS[0])


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_solved_notebook_runs_and_passes_every_check(path: Path):
    """Solutions put in the place of the stubs work with what the notebook has imported."""
    solved = nbformat.from_dict(solve(read(path)))
    NotebookClient(
        solved, timeout=120, kernel_name="python3", resources={"metadata": {"path": FOLDER}}
    ).execute()
    for cell in solved.cells:
        if key := exercise_id_of(cell):
            text = "".join(output.get("text", "") for output in cell.outputs)
            assert text.startswith("✓") and len(text.splitlines()) == 1, f"{key}: {text}"


# ---- the checks themselves ----


def test_check_prints_one_line_and_never_raises(capsys: pytest.CaptureFixture):
    """Unknown ids, unsuitable answers, answers that raise: each gives a line, no traceback."""
    check("99.9", None)
    check("nonsense", print)
    check_value("0.1", "a word")
    check("0.3", None)
    check("0.3", lambda *a: 1 / 0)
    check("0.3", int)
    solution("99.9")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    assert lines[0] == lines[6] == "? there is no exercise '99.9'"
    assert all(line.startswith("✗") for line in lines[2:6]), lines
    assert "ZeroDivisionError" in lines[4]


def test_an_endless_loop_is_ended(monkeypatch: pytest.MonkeyPatch):
    """`while True` in an answer must not hang the notebook."""
    monkeypatch.setattr("minivllm.lab.exam.SECONDS", 0.2)

    def answer(*arguments: object) -> None:
        while True:
            pass

    assert "does a loop never end?" in report("0.3", answer)


def test_an_unknown_exercise_is_a_value_error():
    with pytest.raises(ValueError, match="there is no exercise '0.99'"):
        find("0.99")


def test_a_mistake_must_still_fit_the_solution():
    """An edit of text that is no longer there would test nothing."""
    mistake = Mistake("no such text", "", says="nothing")
    with pytest.raises(ValueError, match="stands there 0 times"):
        mistake.applied_to(inspect.getsource)


def test_an_exercise_needs_three_mistakes():
    with pytest.raises(ValueError, match="lists 1 mistakes"):
        Exercise("0.0", len, [Mistake(wrong=max, says="the largest, not the number")], [([],)])


# ---- a learner's part in the engine ----


class Pool:
    """The least a pool must be."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks))

    @property
    def num_free_blocks(self) -> int:
        return len(self.free)

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        return [self.free.pop(0) for _ in range(num_blocks)]

    def free_blocks(self, block_ids: list[int]) -> None:
        self.free += block_ids


class LeakyPool(Pool):
    def free_blocks(self, block_ids: list[int]) -> None:
        self.free += block_ids[1:]


class GenerousPool(Pool):
    """Hands a block out without taking it from the free ones."""

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        return self.free[:num_blocks]


class GreedyScheduler(Scheduler):
    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        output.num_scheduled_tokens = [count + 1 for count in output.num_scheduled_tokens]
        return output


class ForgetfulScheduler(Scheduler):
    """Runs requests one behind the other, and forgets the blocks of whoever ends."""

    def _release(self, request: object) -> bool:
        request.block_table.block_ids = []
        return super()._release(request)


WORK = jobs([6, 9, 5], outputs=[8, 8, 8])
CONFIG = SchedulerConfig(num_blocks=12, block_size=4)


def test_a_plain_pool_runs_the_whole_engine():
    run = trial(WORK, CONFIG, pool=Pool)
    assert run.num_steps == 8
    assert {name: len(tokens) for name, tokens in run.tokens.items()} == dict(r0=8, r1=8, r2=8)


@pytest.mark.parametrize(
    "parts, words",
    [
        ({"pool": LeakyPool}, "blocks are held by nobody"),
        ({"pool": GenerousPool}, "num_free_blocks is 12, but 10 blocks"),
        ({"scheduler": GreedyScheduler}, "r0 is given 7 tokens, it lacks 6"),
        ({"scheduler": ForgetfulScheduler}, "has ref_cnt 1, but 0 holders"),
        ({"reserve": lambda request: 5}, "have room for 8"),
        ({"reserve": lambda request: 100}, "the pool has 12"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_the_rule_that_broke_is_named_and_shown(parts: dict, words: str):
    """Each fault stops at the iteration where it shows, with the block map of that moment."""
    with pytest.raises(Wrong, match=words) as caught:
        trial(WORK, CONFIG, **parts)
    assert "iteration" in str(caught.value)
    assert "blocks in use" in caught.value.picture


def test_a_learners_attention_must_give_the_packages_tokens():
    """Halved values answer otherwise, and the first other token is named."""
    from minivllm.attention import paged_attention, paged_attention_reference

    work = bytes_jobs(["The cat sat", "on", "the mat, and"], outputs=[6, 9, 4])
    run = model_trial(work, SchedulerConfig(16, 4), attention=paged_attention_reference)
    assert [len(tokens) for tokens in run.tokens.values()] == [6, 9, 4]

    def halved(q, k_cache, v_cache, metadata, scale):
        return paged_attention(q, k_cache, v_cache * 0.5, metadata, scale)

    with pytest.raises(Wrong, match="the package.s engine gives"):
        model_trial(work, SchedulerConfig(16, 4), attention=halved)


def test_an_exam_tells_what_was_raised():
    exam = Exam("f")
    exam.run(lambda exam, answer: answer(), lambda: [][1])
    assert exam.wrong == "it raised IndexError: list index out of range"
