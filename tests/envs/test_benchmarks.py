"""The table of benchmarks: what it says, what it fits, and what real files hold against it."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import srpo_envs
from srpo_envs.benchmarks import BENCHMARKS, all_tasks, digest_tasks, find_benchmark
from srpo_envs.errors import ConfigError, UnknownIdError
from srpo_envs.tasks.base import Task

DATA = Path(os.environ.get("SRPO_DATA") or Path(__file__).parents[3] / "shared" / "data")


def data_file(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"no {name}: set SRPO_DATA to the folder that holds it")
    return DATA / name


def test_the_table_holds_the_papers_benchmarks_in_its_order() -> None:
    math = ["aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench"]
    search = ["nq", "triviaqa", "popqa", "hotpotqa", "2wiki", "musique", "bamboogle"]
    code = ["humaneval", "mbpp", "livecodebench", "deepcoder", "taco"]
    assert list(BENCHMARKS) == [*math, *search, *code]
    assert sum(BENCHMARKS[name].counts[0] for name in math) == 30 + 30 + 40 + 500 + 272 + 675
    assert sum(BENCHMARKS[name].counts[0] for name in search) == 3610 + 11313 + 14267 + 7405 + 12576 + 2417 + 125


@pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=list(BENCHMARKS))
def test_every_benchmark_is_a_published_set_whose_split_exists(benchmark) -> None:
    assert benchmark.published.hub_id
    assert benchmark.split in benchmark.published.splits
    assert benchmark.prompt
    assert benchmark.grading


def test_the_family_decides_which_environments_fit() -> None:
    fitting = find_benchmark("aime24").environments
    assert {"srpo_envs/MathSingleAgent-v0", "srpo_envs/MathSolverVerifier-v0"} <= set(fitting)
    assert fitting == [env_id for env_id in srpo_envs.list_envs() if env_id.startswith("srpo_envs/Math")]
    with pytest.raises(ConfigError, match=r"'aime24' does not fit 'QASearch-v0'.*it fits Math"):
        find_benchmark("aime24").place_in("QASearch-v0", {})
    with pytest.raises(ConfigError, match="'nq' does not fit 'ArithmeticSingleAgent-v0'"):
        find_benchmark("nq").place_in("ArithmeticSingleAgent-v0", {})


def test_a_benchmark_takes_the_place_of_the_tasks_and_of_nothing_else() -> None:
    own = {"dataset": "dapo", "split": "train", "holdout": 0.02, "size": 9, "num_solvers": 5, "context": "answers"}
    kept = {"num_solvers": 5, "context": "answers"}
    placed = find_benchmark("math500").place_in("MathSolverVerifier-v0", own)
    assert placed == kept | {"dataset": "math500", "split": "test"}
    placed = find_benchmark("math500").place_in("MathSolverVerifier-v0", own, Path("m.jsonl"))
    assert placed == kept | {"dataset": "math500", "path": "m.jsonl"}


def test_an_environment_of_ones_own_fits_if_it_takes_a_data_set() -> None:
    from srpo_envs import registry
    from srpo_envs.tasks.math_problems import MathProblems
    from srpo_envs.workflows.single_agent import SingleAgent

    def own(dataset: str, split: str = "test", path: str | None = None) -> SingleAgent:
        return SingleAgent(MathProblems(dataset, split=None if path else split, path=path))

    srpo_envs.register("tests/OwnMath-v0", own)
    try:
        assert find_benchmark("amc23").place_in("tests/OwnMath-v0", {}) == {"dataset": "amc23", "split": "test"}
    finally:
        del registry._specs["tests/OwnMath-v0"]


def test_an_unknown_name_is_told_its_neighbours() -> None:
    with pytest.raises(UnknownIdError, match="no benchmark 'math50'; did you mean 'math500'"):
        find_benchmark("math50")


# --- digests ------------------------------------------------------------------------------------------------------


def test_the_digest_is_that_of_canonical_rows() -> None:
    import hashlib

    tasks = [Task("a", "What is  1+1?", "2"), Task("b", "Who?", ("Ann", "A. B."))]
    rows = '["What is 1+1?", "2"]\n["Who?", ["Ann", "A. B."]]'
    assert digest_tasks(tasks) == hashlib.sha256(rows.encode()).hexdigest()


@given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), max_size=6), st.randoms())
def test_order_and_ids_do_not_count_for_the_digest_and_contents_do(rows, random) -> None:
    tasks = [Task(str(number), question, gold) for number, (question, gold) in enumerate(rows)]
    shuffled = [dataclasses.replace(task, task_id="x") for task in tasks]
    random.shuffle(shuffled)
    assert digest_tasks(shuffled) == digest_tasks(tasks)
    if tasks:
        other = dataclasses.replace(tasks[0], gold=tasks[0].gold + "!")
        assert digest_tasks([other, *tasks[1:]]) != digest_tasks(tasks)
        assert digest_tasks(tasks[1:]) != digest_tasks(tasks)


def test_a_file_and_its_rewriting_have_one_digest(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\n{"problem": "1+2?", "answer": 3.0}\n')
    (tmp_path / "b.json").write_text(
        json.dumps([{"question": "1+2?", "solution": "so \\boxed{3}"}, {"question": "1+1?", "answer": "$2$"}])
    )
    aime = find_benchmark("aime24")
    first, second = (aime.load(tmp_path / name) for name in ("a.jsonl", "b.json"))
    assert digest_tasks(all_tasks(first)) == digest_tasks(all_tasks(second))
    assert len(list(all_tasks(first, limit=1))) == 1


# --- real files ---------------------------------------------------------------------------------------------------

FILES = {
    "aime24": "math/aime24.json",
    "amc23": "math/amc23.jsonl",
    "math500": "math/math500.jsonl",
    "minerva": "math/minerva.json",
    "olympiadbench": "math/olympiadbench.json",
    "nq": "qa/nq_open_dev.jsonl",
    "bamboogle": "qa/bamboogle.json",
    "humaneval": "code/HumanEval.jsonl.gz",
}


@pytest.mark.parametrize(("name", "file"), FILES.items(), ids=list(FILES))
def test_real_files_have_the_expected_number_of_tasks(name, file) -> None:
    benchmark = find_benchmark(name)
    assert benchmark.load(data_file(file)).num_tasks in benchmark.counts


def test_an_excerpt_does_not_have_it() -> None:
    benchmark = find_benchmark("musique")
    assert benchmark.load(data_file("qa/musique_500.json")).num_tasks not in benchmark.counts
