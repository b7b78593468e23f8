"""The command line: what it prints, how it ends, and that it stays light until it has to work."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from srpo_envs.records import read_episodes, write_episodes
from srpo_train.cli import app

ROOT = Path(__file__).parents[3]
COMMANDS = (
    "train", "sweep", "eval", "budget-curve", "compare", "benchmarks", "play", "audit", "replay", "envs", "report",
    "dynamics", "make-tiny-policy", "study", "alarms", "trace", "view", "presets",
)  # fmt: skip
TEAM = "ArithmeticSolverVerifier-v0"


def srpo(*arguments: object, given: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=given, env={"COLUMNS": "120"})


def refused(*arguments: object, given: str | None = None) -> str:
    """The one line a misused command ends with."""
    result = srpo(*arguments, given=given)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.stderr


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """Two steps of training on random weights, started from the command line."""
    folder = tmp_path_factory.mktemp("runs")
    result = srpo(*training(folder, tiny_checkpoint))
    assert result.exit_code == 0, result.output
    assert f"run directory: {folder}/small" in result.stdout
    return folder / "small"


def training(folder: Path, model: Path) -> list[object]:
    changes = {
        "output_dir": folder,
        "policies.team.model": model,
        "env.kwargs.max_new_tokens": 6,
        "eval.every": 0,
        "rollout.prompts_per_step": 2,
        "rollout.group_size": 2,
        "train.num_steps": 2,
        "train.checkpoint_every": 1,
        "log.tensorboard": "false",
        "log.save_events": "all",
    }
    sets = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    return ["train", ROOT / "recipes/tiny-arithmetic.toml", "--name", "small", *sets]


# --- help and endings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_every_option_and_ends_with_examples(command: str) -> None:
    result = srpo(command, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert f"srpo {command}" in result.stdout.split("Examples:")[1]


def test_help_names_every_command() -> None:
    result = srpo("--help")
    for command in COMMANDS:
        assert command in result.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["envs"], ["envs", TEAM], ["benchmarks"]])
def test_light_commands_do_not_load_torch(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from srpo_train.cli import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "sys.exit(3 if 'torch' in sys.modules else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_ctrl_c_ends_a_command_with_130_and_no_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "srpo_train.cli", "play", TEAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"PYTHONUNBUFFERED": "1", "PATH": "/usr/bin:/bin"},
        # Whoever runs the tests in the background has interrupts ignored, and a child would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "answers" in line:
            break
    time.sleep(0.2)  # from the prompt to the read
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.strip() == "error: interrupted"


def test_a_wrong_recipe_and_a_wrong_key_end_in_one_line() -> None:
    assert refused("train", "none.toml") == "error: none.toml: no such recipe; the ones shipped are in recipes/\n"
    message = refused("train", ROOT / "recipes/tiny-arithmetic.toml", "--set", "optim.lrr=1")
    assert message == "error: --set optim.lrr=1: optim.lrr: unknown key; did you mean 'lr'?\n"


# --- envs ---------------------------------------------------------------------------------------------------------


def test_envs_lists_whole_ids_and_arguments() -> None:
    import srpo_envs

    result = srpo("envs")
    for env_id in srpo_envs.list_envs():
        assert env_id in result.stdout


def test_envs_shows_one_with_arguments_and_roles() -> None:
    result = srpo("envs", TEAM)
    assert re.search(r"num_solvers +int +3", result.stdout)
    assert re.search(r"invalid_penalty +float \| Mapping\[str, float\] \| None +None", result.stdout)
    assert re.search(r"solver +3 +40 +0\.1", result.stdout)
    assert "did you mean 'srpo_envs/ArithmeticSolverVerifier-v0'" in refused("envs", "ArithmeticSolverVerifer-v0")


# --- presets ------------------------------------------------------------------------------------------------------


def test_presets_lists_every_method_with_its_preset_and_source() -> None:
    from srpo_train.objective import METHODS

    result = srpo("presets")
    for method in METHODS:
        assert re.search(rf"{re.escape(method.name)} +{method.preset} ", result.stdout), method.name
    assert "arXiv:2602.08847" in result.stdout


def test_presets_shows_one_with_formula_policies_and_every_choice() -> None:
    result = srpo("presets", "dr_mas")
    assert "a single row: mean 0, sd 1" in " ".join(result.stdout.split())
    assert re.search(r"Dr\. MAS, non-shared +a policy for each role", result.stdout)
    assert re.search(r"group_key +\('group', 'agent'\)", result.stdout)
    assert re.search(r"dual_clip +3\.0", result.stdout)
    assert "did you mean 'dr_mas'" in refused("presets", "dr_maas")


# --- play ---------------------------------------------------------------------------------------------------------

# The chain of test task 3 at level 2 is 3-1*5: 3-1 is 2, times 5 is 10, modulo ten 0.
SOLUTION = "\\boxed{0}\n\nfirst line\nthen \\boxed{0}\n\nno box\n\n<verify>approve</verify>\n\n\\boxed{0}\n\n"


def test_a_person_plays_an_episode_from_a_pipe() -> None:
    result = srpo("play", TEAM, "--split", "test", "--task", 3, given=SOLUTION)
    assert result.exit_code == 0
    assert "Compute 3-1*5 from left to right" in result.stdout
    assert "to solver_0, solver_1, solver_2" in result.stdout
    assert result.stdout.count("read as 0") == 3
    assert "malformed no boxed answer" in result.stdout
    assert "reward -0.1 (penalty 0.1)" in result.stdout
    assert "terminated, team reward 1, penalties 0.1" in result.stdout
    assert "| e0 solver     | question only      | 3 solver (1 malformed) |" in result.stdout


def test_an_input_that_ends_early_fails_and_says_so() -> None:
    result = srpo("play", TEAM, given="\\boxed{0}\n\n")
    assert result.exit_code == 1
    assert "the input ended before the episode did" in result.stderr


def test_the_last_answer_needs_no_empty_line() -> None:
    result = srpo("play", TEAM, "--split", "test", "--task", 3, given=SOLUTION.rstrip("\n"))
    assert result.exit_code == 0
    assert "team reward 1" in result.stdout


def test_a_wrong_argument_or_value_of_an_environment_ends_in_one_line() -> None:
    assert "no argument 'leve'; did you mean 'level'" in refused("play", TEAM, "--arg", "leve=3")
    assert "level: expected one of [1, 2, 3, 4], got 9" in refused("play", TEAM, "--arg", "level=9")
    assert "'level': expected --arg name=value" in refused("play", TEAM, "--arg", "level")


def test_a_policy_is_watched_and_the_same_seed_plays_the_same(tiny_checkpoint: Path) -> None:
    watched = [srpo("play", TEAM, "--policy", tiny_checkpoint, "--seed", 3).stdout for _ in range(2)]
    assert re.search(r"solver_2 \(\d+ tokens\)", watched[0])
    assert "terminated" in watched[0] or "truncated" in watched[0]
    assert watched[0] == watched[1]


def test_a_person_plays_one_role_beside_a_policy(tiny_checkpoint: Path) -> None:
    verdicts = "<verify>approve</verify>\n\n"
    result = srpo("play", TEAM, "--policy", tiny_checkpoint, "--as", "verifier", given=verdicts)
    assert result.exit_code == 0
    assert "verifier_0 answers" in result.stdout
    assert "read as approve" in result.stdout
    assert "no such role; did you mean 'verifier'" in refused(
        "play", TEAM, "--policy", tiny_checkpoint, "--as", "verifer"
    )


# --- train and what looks at a run --------------------------------------------------------------------------------


def test_a_run_leaves_its_report(run_dir: Path) -> None:
    assert "2 of 2 training steps" in (run_dir / "report.md").read_text()
    assert (run_dir / "curves.png").exists()


def test_a_second_run_of_the_same_name_is_refused_and_a_longer_one_resumes(
    tmp_path: Path, tiny_checkpoint: Path
) -> None:
    first = training(tmp_path, tiny_checkpoint)
    assert srpo(*first).exit_code == 0
    assert "already holds a run" in refused(*first)
    assert srpo(*first, "--resume", "--set", "train.num_steps=3").exit_code == 0
    assert (tmp_path / "small/checkpoints/step-000003").is_dir()


def test_a_run_directory_is_continued_from_any_working_directory(
    tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert srpo(*training(Path("runs"), tiny_checkpoint)).exit_code == 0
    monkeypatch.chdir(tmp_path / "there")
    result = srpo("train", tmp_path / "here/runs/small", "--resume", "--set", "train.num_steps=3")
    assert result.exit_code == 0
    assert (tmp_path / "here/runs/small/checkpoints/step-000003").is_dir()
    assert not list((tmp_path / "there").iterdir())


def test_audit_passes_on_a_whole_run_and_shows_an_episode(run_dir: Path) -> None:
    result = srpo("audit", run_dir, "--replay", "--table")
    assert result.exit_code == 0
    assert "every rule holds" in result.stdout
    assert "episodes replayed" in result.stdout
    assert "| event " in result.stdout


def test_audit_fails_on_a_run_with_a_lost_member(run_dir: Path, tmp_path: Path) -> None:
    import dataclasses

    episode = next(read_episodes(run_dir / "events/step-000001.jsonl"))
    first = dataclasses.replace(episode.events[0], members=episode.events[0].members[:-1])
    broken = dataclasses.replace(episode, events=(first, *episode.events[1:]))
    write_episodes(tmp_path / "events/step-000001.jsonl", [broken])
    result = srpo("audit", tmp_path)
    assert result.exit_code == 1
    assert "cardinality" in result.stdout


def test_audit_of_a_directory_without_events_ends_in_one_line(tmp_path: Path) -> None:
    result = srpo("audit", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")


def test_replay_shows_a_stored_episode_and_proves_it(run_dir: Path) -> None:
    episode = next(read_episodes(run_dir / "events/step-000002.jsonl"))
    result = srpo("replay", run_dir, "--episode", episode.episode_id)
    assert result.exit_code == 0
    assert f"{episode.episode_id}/e0" in result.stdout
    assert "the replay is identical to the record" in result.stdout
    assert "no stored episode 'nobody'" in refused("replay", run_dir, "--episode", "nobody")


def test_replay_branches_into_another_ending(run_dir: Path) -> None:
    result = srpo("replay", run_dir, "--branch", 1, given="<verify>approve</verify>\n\n\\boxed{3}\n\n")
    assert result.exit_code == 0
    assert "~1/e1" in result.stdout
    assert "read as approve" in result.stdout
    assert "answer: 3" in result.stdout


def test_a_branch_beyond_the_end_is_refused(run_dir: Path) -> None:
    assert "--branch 99: episode 'step" in refused("replay", run_dir, "--branch", 99)


def test_eval_refuses_more_tasks_than_there_are(run_dir: Path) -> None:
    assert f"257 tasks to evaluate, but 'srpo_envs/{TEAM}' has 256" in refused("eval", run_dir, "--num-tasks", 257)


def test_report_is_written_again(run_dir: Path) -> None:
    (run_dir / "report.md").unlink()
    assert srpo("report", run_dir).stdout.strip() == str(run_dir / "report.md")
    assert (run_dir / "report.md").exists()


def test_eval_scores_the_newest_checkpoint_of_a_run_on_its_own_test_split(run_dir: Path) -> None:
    result = srpo("eval", run_dir, "--num-tasks", 2, "--samples", 2, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["method"], found["source"]) == ("srpo", str(run_dir))
    assert Path(found["directory"]).parent == run_dir / "evals"
    assert Path(found["directory"]).name.startswith(f"step-2-{TEAM}-k2-")
    (scores,) = found["benchmarks"].values()
    assert (scores["num_samples"], scores["num_failed"]) == (4, 0)
    (samples,) = Path(found["directory"]).glob("*/seed-0/samples.jsonl")
    assert {episode.env_kwargs["split"] for episode in read_episodes(samples)} == {"test"}


def test_eval_takes_an_older_checkpoint_and_shows_its_figures(run_dir: Path) -> None:
    result = srpo("eval", run_dir, "--step", 1, "--num-tasks", 1)
    assert "evals/step-1-" in result.stdout
    assert re.search(r"^% +tasks +Avg@1 +95 % +Pass@1", result.stdout, re.MULTILINE)
    assert re.search(r"^valid_rate/solver +\d", result.stdout, re.MULTILINE)
    unknown = srpo("eval", run_dir, "--step", 7)
    assert unknown.exit_code == 1
    assert "no checkpoint of step 7; kept: [1, 2]" in unknown.stderr


def test_eval_of_a_model_needs_an_environment(tiny_checkpoint: Path, tmp_path: Path) -> None:
    assert "--env" in refused("eval", tiny_checkpoint)
    assert "so it has no checkpoints" in refused("eval", tiny_checkpoint, "--env", TEAM, "--step", 1)
    options = ("--env", TEAM, "--split", "test", "--num-tasks", 1, "--arg", "num_solvers=2", "--out", tmp_path / "e")
    result = srpo("eval", tiny_checkpoint, *options)
    assert result.exit_code == 0, result.output
    assert f"{TEAM},num_solvers=2,split=test: the first 1 of 256 tasks" in result.stdout


def test_eval_of_a_recipe_takes_the_policies_training_would_begin_with(tiny_checkpoint: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text(f'name = "x"\n[env]\nid = "{TEAM}"\n[policies.team]\nmodel = "{tiny_checkpoint}"\n')
    result = srpo("eval", recipe, "--num-tasks", 1, "--out", tmp_path / "e", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["method"], found["model"], found["source"]) == ("untrained", str(tiny_checkpoint), str(recipe))


# --- make-tiny-policy ---------------------------------------------------------------------------------------------


def test_make_tiny_policy_passes_on_its_arguments_and_shows_the_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import srpo_train.tiny.make

    asked = []

    def make(output_dir: Path, curriculum: Any, seed: int, *, width: int, show_progress: bool) -> dict[str, object]:
        asked.append((output_dir, curriculum.name, seed, width, show_progress))
        return {"settings": {"num_parameters": 1234}, "measured": {"team": {"accuracy": 0.25}}}

    monkeypatch.setattr(srpo_train.tiny.make, "make_tiny_policy", make)
    result = srpo("make-tiny-policy", tmp_path / "p", "--seed", 4)
    srpo("make-tiny-policy", tmp_path / "q", "--like", "tiny-searchers", "--width", 96)
    assert asked == [(tmp_path / "p", "tiny-team", 4, 64, True), (tmp_path / "q", "tiny-searchers", 0, 96, True)]
    assert "1,234 parameters" in result.stdout
    assert re.search(r"team +accuracy 0\.250", result.stdout)


def test_make_tiny_policy_knows_its_names(tmp_path: Path) -> None:
    assert "did you mean 'tiny-team'" in refused("make-tiny-policy", tmp_path / "p", "--like", "tiny-tem")


def test_make_tiny_policy_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    result = srpo("make-tiny-policy", tmp_path)
    assert result.exit_code == 1
    assert "expected a new or empty folder" in result.stderr


def test_play_shows_a_line_for_each_passage_a_search_found() -> None:
    search = ("<route>1</route>", "<think></think><search>boss of Bafo</search>", "<verify>approve</verify>")
    given = "\n\n".join((*search, "<route>STOP</route>", "<think></think><answer>x</answer>", ""))
    shown = srpo("play", "VillageSearch-v0", "--seed", 0, "--arg", "top_k=2", given=given).output
    assert "search query = boss of Bafo · top_k = 2" in shown
    assert "1. Bafo  The boss of Bafo is Tiri." in shown
    assert shown.count("    2. ") == 1


# --- dry run ------------------------------------------------------------------------------------------------------


def test_a_dry_run_shows_the_plan_and_leaves_nothing(
    tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes((tiny_checkpoint / "config.json").read_bytes())  # there are no weights to read
    result = srpo(*training(tmp_path / "runs", folder), "--dry-run")
    assert result.exit_code == 0, result.output
    for title in ("policies", "engines", "memory (estimate)", "each step", "run"):
        assert f"\n{title}\n" in f"\n{result.stdout}"
    assert re.search(r"^episodes +4 *$", result.stdout, re.MULTILINE)
    assert re.search(r"^cpu +at most at once +0\.\d+ *$", result.stdout, re.MULTILINE)
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_refuses_what_training_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    recipe = ROOT / "recipes/tiny-arithmetic.toml"
    assert "did you mean" in refused("train", recipe, "--dry-run", "--set", "policies.team.model=builtin:tiny-taem")
