"""`srpo_train.reporting.comparison`: golden tables from literal runs and evaluations, and what does not compare."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from report_world import HOSTILE, make_evaluation, make_run

from srpo_envs.errors import ConfigError, RecordError
from srpo_train.engines.base import Sampling
from srpo_train.evaluation import PLAN_FILE, EvalPlan, World
from srpo_train.reporting.comparison import comparison_document, write_comparison
from srpo_train.reporting.entries import find_runs, read_entries
from srpo_train.reporting.markdown import table_to_markdown
from srpo_train.reporting.tables import Document, Table


def document(*paths: Path, with_paper: bool = False, **labels: str) -> Document:
    by_path = {path: labels[path.name] for path in paths if path.name in labels}
    return comparison_document(read_entries(paths, by_path), with_paper=with_paper)


def tables(*paths: Path, **labels: str) -> dict[str, Table]:
    return {table.title: table for section in document(*paths, **labels).sections for table in section.tables}


def body(table: Table) -> list[str]:
    """The lines of a table in Markdown, without heading and rule."""
    return [line for line in table_to_markdown(table).split("\n") if line.startswith("|")][2:]


# --- evaluation during training -----------------------------------------------------------------------------------


def test_runs_that_differ_by_seed_are_one_line_with_mean_and_sample_deviation(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a0", "seed=0", evaluations={0: (0.2, 0.3), 1: (0.8, 0.9)})
    second = make_run(tmp_path / "a1", "seed=1", evaluations={1: (0.84, 0.95)})
    other = make_run(tmp_path / "b0", "objective.preset=dr_mas", evaluations={0: (0.9, 0.9), 1: (0.7, 0.75)})
    found = tables(first, second, other)["Held-out tasks, last and best evaluation (%)"]
    # (80, 84): mean 82, deviation sqrt(2 * 2^2 / 1) = 2.83; (90, 95): 92.5 and 3.54. The best of b is before training.
    assert table_to_markdown(found).split("\n")[2:] == [
        "| Method | Last evaluation Avg@2 | Last evaluation Pass@2 | Best evaluation Avg@2 | Best evaluation Pass@2 |",
        "| :--- | ---: | ---: | ---: | ---: |",
        "| *builtin:tiny-team* |  |  |  |  |",
        "| Setwise SRPO (n=2) | **82.0 ± 2.8** | **92.5 ± 3.5** | 82.0 ± 2.8 | **92.5 ± 3.5** |",
        "| LLM sharing Dr. MAS | 70.0 | 75.0 | **90.0** | 90.0 |",
        "",
        "The best evaluation of a run is chosen by Avg@k on the very tasks it is scored on, and so flatters; the last "
        "one does not.",
    ]


def test_costs_stand_beside(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", evaluations={1: (0.5, 0.6)})
    found = tables(run)["Cost of a query (mean over samples)"]
    # 640 tokens and 320 calls of 64 episodes; half of the episodes right at 10 tokens each: 50,000 per million
    assert body(found) == [
        "| *builtin:tiny-team · last evaluation* |  |  |  |  |",
        "| Setwise SRPO | 10 | 5.00 | 0.00 | 50,000 |",
    ]


def test_other_tasks_and_another_k_stand_in_tables_of_their_own(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", evaluations={1: (0.5, 0.6)}),
        make_run(tmp_path / "b", "env.kwargs.level=3", evaluations={1: (0.5, 0.6)}),
        make_run(tmp_path / "c", "eval.samples_per_task=4", evaluations={1: (0.5, 0.6)}),
        make_run(tmp_path / "d", "eval.num_tasks=32", evaluations={1: (0.5, 0.6)}),
        make_run(tmp_path / "e", "env.id=srpo_envs/ArithmeticSolverVerifierFixed-v0", evaluations={1: (0.5, 0.6)}),
    ]
    found = document(*runs)
    assert [section.title for section in found.sections] == [
        "Evaluation during training: Arithmetic (level=2, split=test), 64 tasks, k = 2",
        "Evaluation during training: Arithmetic (level=3, split=test), 64 tasks, k = 2",
        "Evaluation during training: Arithmetic (level=2, split=test), 64 tasks, k = 4",
        "Evaluation during training: Arithmetic (level=2, split=test), 32 tasks, k = 2",
        "What was run on what",
    ]
    first = found.sections[0].tables[0]
    assert [row.name for row in first.blocks[0].rows] == [
        "Setwise SRPO (ArithmeticSolverVerifier-v0)",
        "Setwise SRPO (ArithmeticSolverVerifierFixed-v0)",
    ]
    assert "Evaluations with different k (2, 4) stand in tables of their own" in found.paragraphs[1]


def test_what_was_run_on_what_is_said_once_for_the_seeds_of_a_method(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"a{seed}", f"seed={seed}", evaluations={1: (0.5, 0.6)}) for seed in (0, 3)]
    line = tables(*runs)["Runs and evaluations"].blocks[0].rows[0]
    assert [cell.text for cell in line.cells] == [
        f"{runs[0]}; {runs[1]}",
        "0; 3",
        "srpo_envs/ArithmeticSolverVerifier-v0 level=2, num_solvers=3",
        "1 of 80",
        "Arithmetic (level=2, split=test): 64 tasks, k=2, temperature 1",
        "step 1, best at step 1",
        "cpu (Linux), engine transformers",
        "srpo 0.1.0, torch 2.13.0, revision 0123456789ab-dirty",
    ]


# --- benchmarks ---------------------------------------------------------------------------------------------------


def test_benchmarks_have_an_average_that_is_taken_within_each_seed(tmp_path: Path) -> None:
    ours = make_evaluation(tmp_path / "a", {"math500": {0: [4, 2], 1: [4, 4]}, "aime24": {0: [0, 1], 1: [0, 3]}})
    half = make_evaluation(tmp_path / "b", {"math500": {0: [4, 1]}}, method="half")
    found = tables(ours, half)["Avg@4 and Pass@4 by benchmark (%)"]
    # Seeds of a: math500 75 and 100 (mean 87.5, deviation 17.7), aime24 12.5 and 37.5 (25, 17.7); the averages are
    # 43.75 and 68.75 (56.25 and 17.7). Pass: 100 both times, and 50; b lacks aime24 and so has no average.
    assert body(found) == [
        "| *Qwen3-4B* |  |  |  |  |  |  |",
        "| mine (2 sampling seeds) | **87.5 ± 17.7** | **100.0 ± 0.0** | 25.0 ± 17.7 | 50.0 ± 0.0 | 56.2 ± 17.7 "
        "| 75.0 ± 0.0 |",
        "| half | 62.5 | **100.0** | – | – | – | – |",
    ]
    assert found.columns[2].group == "AIME'24"


def test_seeds_of_training_are_what_is_averaged_where_there_are_several(tmp_path: Path) -> None:
    for seed, right in ((0, [4, 4]), (1, [2, 2])):
        run = make_run(tmp_path / f"run{seed}", f"seed={seed}")
        make_evaluation(run / "evals/math", {"math500": {0: right, 1: [0, 0]}}, method="srpo", source=str(run))
    found = tables(tmp_path / "run0", tmp_path / "run1")["Avg@4 and Pass@4 by benchmark (%)"]
    # Within the runs 50 and 25 over their sampling seeds; over the runs mean 37.5 and deviation 17.7.
    assert body(found)[1] == "| Setwise SRPO (n=2) | 37.5 ± 17.7 | 50.0 ± 0.0 |"
    assert [column.group for column in found.columns] == ["MATH500", "MATH500"]  # one benchmark is its own average


def test_costs_are_told_by_benchmark(tmp_path: Path) -> None:
    costs = {
        "tokens_per_query": 1234.0,
        "calls_per_query": 4.5,
        "tool_calls_per_query": 2.0,
        "utility": 405.0,
        "latency_p50_s": 1.5,
        "latency_p95_s": 3.25,
    }
    one = make_evaluation(tmp_path / "a", {"nq": {0: [4, 2]}, "popqa": {0: [1, 1]}}, costs=costs)
    two = make_evaluation(tmp_path / "b", {"nq": {0: [4, 2]}}, costs=costs | {"utility": 404.0}, method="other")
    assert body(tables(one, two)["Cost of a query (mean over samples)"]) == [
        "| *Qwen3-4B · NQ* |  |  |  |  |  |  |",
        "| mine | 1,234 | 4.50 | 2.00 | **405** | 1.50 | 3.25 |",
        "| other | 1,234 | 4.50 | 2.00 | 404 | 1.50 | 3.25 |",
        "| *Qwen3-4B · PopQA* |  |  |  |  |  |  |",
        "| mine | 1,234 | 4.50 | 2.00 | 405 | 1.50 | 3.25 |",
    ]


def test_a_table_shows_what_was_measured_and_is_left_out_where_nothing_was(tmp_path: Path) -> None:
    one = make_evaluation(tmp_path / "a", {"nq": {0: [4, 2]}}, costs={"tokens_per_query": 9.6, "wall_s": 1.0})
    other = make_evaluation(tmp_path / "b", {"nq": {0: [4, 2]}}, method="other")
    assert body(tables(one, other)["Cost of a query (mean over samples)"])[1:] == ["| mine | 10 |", "| other | – |"]
    assert "Cost of a query (mean over samples)" not in tables(other)


def test_methods_on_the_same_tasks_are_tested_in_pairs(tmp_path: Path) -> None:
    base = make_evaluation(tmp_path / "a", {"math500": {0: [0] * 10}, "nq": {0: [1] * 10}}, method="base")
    better = make_evaluation(tmp_path / "b", {"math500": {0: [4] * 10}, "nq": {0: [1] * 10}}, method="better")
    other = make_evaluation(tmp_path / "c", {"nq": {0: [1] * 10}}, model="another model")
    found = tables(base, better, other)
    paired = found["Differences on Qwen3-4B, in points"]
    assert [block.title for block in paired.blocks] == ["better, against base"]
    # All ten queries differ by one: two of 2^10 signs are as extreme, 2/1024 = 0.002, by McNemar too. Average: half.
    assert body(paired)[1:] == [
        "| MATH500 | 10 | 100.0 | \\[100.0, 100.0\\] | 0.002 | 100.0 | \\[100.0, 100.0\\] | 0.002 |",
        "| NQ | 10 | 0.0 | \\[0.0, 0.0\\] | 1.000 | 0.0 | \\[0.0, 0.0\\] | 1.000 |",
        "| Average | 20 | 50.0 | \\[50.0, 50.0\\] | 0.002 | 50.0 | \\[50.0, 50.0\\] | 0.002 |",
    ]
    assert "Differences on another model, in points" not in found


def write_plan(directory: Path, run: Path, env_id: str, name: str, **changes: object) -> None:
    world = World(env_id=env_id, env_kwargs={"level": 2, "split": "test"}, num_tasks=2, set_size=2, digest="d1")
    values = {"source": str(run), "method": "srpo", "model": "m", "checkpoint": 40, "samples": 4, **changes}
    content = asdict(EvalPlan(worlds={name: world}, **values))
    (directory / PLAN_FILE).write_text(json.dumps(content))


def test_an_environments_own_tasks_are_one_column_whichever_workflow_answers(tmp_path: Path) -> None:
    paths = []
    for method, env_id in (("srpo", "ArithmeticSolverVerifier-v0"), ("alone", "ArithmeticSingleAgent-v0")):
        run = make_run(tmp_path / method)
        name = f"{env_id},level=2,split=test"
        paths.append(make_evaluation(run / "evals/x", {name: {0: [4, 2]}}, method=method, source=str(run)))
        write_plan(paths[-1], run, f"srpo_envs/{env_id}", name)
    found = tables(*paths)["Avg@4 and Pass@4 by benchmark (%)"]
    assert [column.group for column in found.columns] == ["Arithmetic (level=2, split=test)"] * 2
    assert [row.name for row in found.blocks[0].rows] == ["Setwise SRPO", "alone"]
    facts = tables(*paths)["Runs and evaluations"].blocks[0].rows[0]
    assert facts.cells[4].text == (
        "Arithmetic (level=2, split=test) (2); k=4, sampling seeds 0, temperature 1, top-p 1"
    )
    assert facts.cells[5].text == "step 40"


def test_other_checkpoints_and_other_sampling_are_other_lines(tmp_path: Path) -> None:
    run, paths = make_run(tmp_path / "a"), []
    for name, changes in {"x": {}, "y": {"checkpoint": 80}, "z": {"sampling": Sampling(temperature=0.6)}}.items():
        paths.append(make_evaluation(run / f"evals/{name}", {"nq": {0: [4, 2]}}, method="srpo", source=str(run)))
        write_plan(paths[-1], run, "srpo_envs/QASearch-v0", "nq", **changes)
    assert [row.name for row in tables(run)["Avg@4 and Pass@4 by benchmark (%)"].blocks[0].rows] == [
        "Setwise SRPO (checkpoint=40, temperature=1.0)",
        "Setwise SRPO (checkpoint=80, temperature=1.0)",
        "Setwise SRPO (checkpoint=40, temperature=0.6)",
    ]


def test_lost_samples_and_partial_sets_are_said(tmp_path: Path) -> None:
    one = make_evaluation(tmp_path / "a", {"math500": {0: [4, 2], 1: [1, 1]}}, num_failed=3, set_size=500)
    assert tables(one)["Avg@4 and Pass@4 by benchmark (%)"].notes == (
        "MATH500: 2 of 500 tasks.",
        "mine (2 sampling seeds): 6 samples lost to broken surroundings, counted nowhere.",
    )


def test_a_benchmark_that_fewer_seeds_have_is_said(tmp_path: Path) -> None:
    one = make_evaluation(tmp_path / "a", {"math500": {0: [4, 2], 1: [4, 4], 2: [4, 4]}, "aime24": {1: [0, 3]}})
    found = tables(one)["Avg@4 and Pass@4 by benchmark (%)"]
    assert found.notes[1] == (
        "mine (3 sampling seeds): fewer seeds of AIME'24 (1); the average is over those that have all."
    )
    assert [cell.text for cell in found.blocks[0].rows[0].cells] == ["91.7", "100.0", "37.5", "50.0", "68.8", "75.0"]


def test_the_papers_lines_stand_below_where_benchmarks_and_k_are_the_same(tmp_path: Path) -> None:
    names = ["olympiadbench", "aime24", "aime25", "amc23", "math500", "minerva"]
    same = make_evaluation(tmp_path / "a", {name: {0: [16, 8]} for name in names}, samples=16)
    found = document(same, with_paper=True)
    ours = found.sections[0].tables[0]
    assert [block.title for block in ours.blocks] == [
        "Qwen3-4B",
        "Qwen3-4B, quoted from the paper (Table 1, section 5.1)",
        "Qwen3-8B, quoted from the paper (Table 1, section 5.1)",
    ]
    assert [column.group for column in ours.columns[::2]] == [
        "AIME'24", "AIME'25", "AMC'23", "MATH500", "Minerva", "Olympiad", "Average",
    ]  # fmt: skip
    assert not any("Math results" in table.title for table in found.sections[-1].tables)
    assert "quoted from the paper are marked so" in " ".join(found.paragraphs)
    other_k = make_evaluation(tmp_path / "b", {name: {0: [4, 2]} for name in names}, samples=4)
    alone = document(other_k, with_paper=True)
    assert len(alone.sections[0].tables[0].blocks) == 1
    assert any("Math results" in table.title for table in alone.sections[-1].tables)
    assert document(same).sections[-1].title == "What was run on what"


# --- what does not compare ----------------------------------------------------------------------------------------


def test_a_benchmark_of_different_tasks_is_refused(tmp_path: Path) -> None:
    one = make_evaluation(tmp_path / "a", {"math500": {0: [4, 2]}})
    other = make_evaluation(tmp_path / "b", {"math500": {0: [4, 2]}}, digest="d2", method="other")
    with pytest.raises(ConfigError, match=r"math500: .*a and .*b evaluated different tasks \(2 with digest d1, 2 with"):
        document(one, other)


def test_one_run_twice_is_not_two_seeds(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", evaluations={1: (0.5, 0.6)})
    copy = make_run(tmp_path / "b", evaluations={1: (0.5, 0.6)})
    with pytest.raises(ConfigError, match=r"the same method and seed, both with 'last evaluation'.*--label .*/b="):
        document(run, copy)
    found = tables(run, copy, b="again")["Held-out tasks, last and best evaluation (%)"]
    assert [row.name for row in found.blocks[0].rows] == ["Setwise SRPO", "again"]


def test_one_label_makes_one_line_of_seeds(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"a{seed}", f"seed={seed}", evaluations={1: (0.5, 0.6)}) for seed in (0, 1)]
    found = tables(*runs, a0="mine", a1="mine")["Held-out tasks, last and best evaluation (%)"]
    assert [row.name for row in found.blocks[0].rows] == ["mine (n=2)"]


def test_a_folder_stands_for_all_that_lies_in_it(tmp_path: Path) -> None:
    for cell, seed in (("k1", 0), ("k1", 1), ("k3", 0)):
        change = f"env.kwargs.num_solvers={cell[1]}"
        make_run(tmp_path / f"sweep/{cell}/seed-{seed}", f"seed={seed}", change, evaluations={1: (0.5, 0.6)})
    make_run(tmp_path / "sweep/k5/seed-0", "env.kwargs.num_solvers=5", steps=())
    found = tables(tmp_path / "sweep")["Held-out tasks, last and best evaluation (%)"]
    assert [row.name for row in found.blocks[0].rows] == [
        "Setwise SRPO (num_solvers=1) (n=2)",
        "Setwise SRPO (num_solvers=3)",
    ]
    assert [run.name for run in find_runs(tmp_path / "sweep")] == ["seed-0", "seed-1", "seed-0"]


def test_what_holds_nothing_to_report_is_told(tmp_path: Path) -> None:
    never = make_run(tmp_path / "never")
    with pytest.raises(RecordError, match=r"never: was never evaluated; train with eval.every above 0"):
        read_entries([never])
    with pytest.raises(RecordError, match="no metrics to report yet"):
        read_entries([make_run(tmp_path / "begun", steps=())])
    with pytest.raises(ConfigError, match=r"nevr: no such directory; did you mean 'never'"):
        read_entries([tmp_path / "nevr"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty: expected a run \(with recipe.toml\), an evaluation"):
        read_entries([tmp_path / "empty"])
    with pytest.raises(ConfigError, match=r"empty: expected a run \(with recipe.toml\), or a folder of runs"):
        find_runs(tmp_path / "empty")
    nothing = make_evaluation(tmp_path / "nothing", {})
    with pytest.raises(RecordError, match="holds no results yet"):
        read_entries([nothing])


def test_a_damaged_software_log_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", evaluations={1: (0.5, 0.6)})
    (run / "software.jsonl").write_text("{}\n{broken\n")
    with pytest.raises(RecordError, match=r"software.jsonl:2: not JSON"):
        read_entries([run])


# --- files --------------------------------------------------------------------------------------------------------


def test_every_format_is_written_with_hostile_names(tmp_path: Path) -> None:
    paths = [
        make_evaluation(tmp_path / f"e{number}", {"nq": {0: [1, 2]}, f"my {name}": {0: [4]}}, method=name, model=name)
        for number, name in enumerate(HOSTILE)
    ]
    written = write_comparison(paths, tmp_path / "out", formats=("md", "latex"))
    assert [path.name for path in written] == ["comparison.md", "comparison.tex"]
    texts = [path.read_text() for path in written]
    assert not re.search(r"(?<!\\)<script", "".join(texts))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", "".join(texts))
    assert "\\input" not in texts[1].replace("\\textbackslash{}input", "")


def test_an_unknown_format_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no format 'pdf'; known: 'latex', 'md'"):
        write_comparison([tmp_path / "nothing"], tmp_path / "out", formats=("pdf",))
    assert not (tmp_path / "out").exists()
