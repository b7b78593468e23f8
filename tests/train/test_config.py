"""`srpo_train.config`: recipes, overrides and errors that say where, what and how to mend it."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import pytest

from srpo_envs.errors import ConfigError, UnknownIdError
from srpo_train.config import ObjectiveConfig, Recipe, load_recipe, parse_override, parse_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))

MINIMAL = """
name = "small"
[env]
id = "srpo_envs/ArithmeticSingleAgent-v0"
[policies.team]
model = "builtin:tiny-team"
"""


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(MINIMAL)
    return path


def failure(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_recipe(path, overrides)
    return str(caught.value)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_shipped_recipe_is_valid_and_named_after_its_file(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert recipe.objective.build().name == recipe.objective.preset


def test_there_are_recipes_to_check() -> None:
    assert {"tiny-arithmetic", "tiny-arithmetic-single-agent", "math-qwen3-4b"} <= {path.stem for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_resolved_recipe_reads_back_equal(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(path, ["objective.dual_clip=inf", "env.kwargs.extra=[1, {a = 'x'}]"])
    saved = tmp_path / "recipe.toml"
    saved.write_text(recipe.to_toml())
    assert load_recipe(saved) == recipe


def test_defaults_fill_what_the_recipe_leaves_out(minimal: Path) -> None:
    recipe = load_recipe(minimal)
    assert (recipe.rollout.prompts_per_step, recipe.rollout.group_size) == (16, 8)
    assert recipe.run_dir == Path("runs/small")
    assert recipe.policy_of("anybody") == "team"


def test_an_override_is_read_as_toml_and_otherwise_as_text(minimal: Path) -> None:
    recipe = load_recipe(
        minimal,
        ["optim.lr=1e-6", "env.kwargs.variant=routed", "optim.betas=[0.5, 0.6]", "log.wandb=true", "roles.*=team"],
    )
    assert recipe.optim.lr == 1e-6
    assert recipe.env.kwargs == {"variant": "routed"}
    assert recipe.optim.betas == (0.5, 0.6)
    assert recipe.log.wandb is True
    assert recipe.roles == {"*": "team"}


def test_an_override_value_cannot_smuggle_in_a_second_key() -> None:
    assert parse_override("a.b=1\nc=2") == (("a", "b"), "1\nc=2")


@pytest.mark.parametrize("text", ["optim.lr", "=3", "optim..lr=3"])
def test_an_override_without_key_or_value_is_refused(minimal: Path, text: str) -> None:
    assert "expected --set section.key=value" in failure(minimal, text)


def test_an_override_below_a_value_is_refused(minimal: Path) -> None:
    assert failure(minimal, "name.first=x") == "--set name.first=x: name is 'small', not a section"


def test_an_unknown_key_names_file_key_and_nearest_name(minimal: Path) -> None:
    minimal.write_text(MINIMAL + "[optim]\nlearning_rate = 1\nwarmup_step = 3\n")
    message = failure(minimal)
    assert f"{minimal}: optim.warmup_step: unknown key; did you mean 'warmup_steps'" in message
    assert f"{minimal}: optim.learning_rate: unknown key" in message


def test_an_unknown_key_below_a_named_policy_is_explained(minimal: Path) -> None:
    minimal.write_text(MINIMAL + 'dtyp = "float32"\n')
    assert f"{minimal}: policies.team.dtyp: unknown key; did you mean 'dtype'?" in failure(minimal)


def test_an_unknown_section_is_explained(minimal: Path) -> None:
    assert "--set optimm.lr=1: optimm: unknown key; did you mean 'optim'?" in failure(minimal, "optimm.lr=1")


def test_a_wrong_override_is_blamed_on_the_override_and_not_on_the_file(minimal: Path) -> None:
    assert failure(minimal, "optim.lr=-1") == "--set optim.lr=-1: optim.lr: should be greater than 0, got -1"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.num_steps=ten", "train.num_steps: should be a valid integer, got 'ten'"),
        ("train.num_steps=true", "train.num_steps: should be a valid integer, got True"),
        ("optim.lr='1e-6'", "optim.lr: should be a valid number, got '1e-6'"),
        ("optim.schedule=cosin", "should be 'constant', 'linear' or 'cosine', got 'cosin'"),
        ("optim.betas=[0.9]", "optim.betas.1: is required and missing"),
        ("optim.betas=[0.9, 1.0]", "optim.betas.1: should be less than 1, got 1.0"),
        ("name='a/b'", "name: String should match pattern"),
    ],
)
def test_a_wrong_value_says_what_was_expected_and_what_was_given(minimal: Path, override: str, expected: str) -> None:
    assert expected in failure(minimal, override)


def test_over_sampling_needs_episodes_that_finish_at_their_own_time(minimal: Path) -> None:
    assert "rounds finish together" in failure(minimal, "rollout.oversample=2")
    recipe = load_recipe(
        minimal, ["rollout.oversample=2", "rollout.mode=asynchronous", "rollout.request_timeout_s=inf"]
    )
    assert (recipe.rollout.oversample, recipe.rollout.request_timeout_s) == (2, math.inf)


def test_a_missing_section_is_named(minimal: Path) -> None:
    minimal.write_text('name = "x"\n[policies.a]\nmodel = "m"\n')
    assert failure(minimal) == f"{minimal}: env: is required and missing"


def test_a_missing_file_and_a_syntax_error_are_explained(tmp_path: Path) -> None:
    assert "no such recipe" in failure(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("name = unquoted\n")
    assert "not valid TOML" in failure(broken)
    assert "line 1" in failure(broken)


def test_a_role_must_name_an_existing_policy(minimal: Path) -> None:
    message = failure(minimal, "roles.solver=taem")
    assert "roles.solver: no policy 'taem' in [policies]; did you mean 'team'?" in message


def test_a_policy_nobody_uses_and_an_unshared_pair_are_refused(minimal: Path) -> None:
    second = "policies.other.model=m"
    assert "policies.other: no entry of [roles] uses this policy" in failure(minimal, second, "roles.*=team")
    assert "roles: needed to share out the policies ['other', 'team']" in failure(minimal, second)


def test_roles_are_mapped_with_a_default_and_checked_against_the_environment(minimal: Path) -> None:
    recipe = load_recipe(minimal, ["policies.judge.model=m", "roles.verifier=judge", "roles.*=team"])
    assert recipe.role_map(["solver", "verifier"]) == {"solver": "team", "verifier": "judge"}
    with pytest.raises(ConfigError, match="has no such role; known: 'solver'"):
        recipe.role_map(["solver"])
    partial = load_recipe(minimal, ["roles.verifier=team"])
    with pytest.raises(ConfigError, match="no policy for role 'solver'"):
        partial.policy_of("solver")


def test_minibatches_cannot_outnumber_the_events_of_a_step(minimal: Path) -> None:
    assert load_recipe(minimal, ["optim.num_minibatches=128"]).optim.num_minibatches == 128  # 16 x 8 episodes
    assert "at most the 128 episodes" in failure(minimal, "optim.num_minibatches=129")


def test_warmup_fits_the_run(minimal: Path) -> None:
    assert "at most train.num_steps = 10" in failure(minimal, "optim.warmup_steps=11", "train.num_steps=10")


def test_a_token_budget_needs_a_constant_learning_rate(minimal: Path) -> None:
    assert "token_budget" in failure(minimal, "train.token_budget=100", "optim.schedule=cosine")
    assert load_recipe(minimal, ["train.token_budget=100"]).train.token_budget == 100


@pytest.mark.parametrize("key", ["optim.lr", "optim.eps", "sampling.temperature", "policies.team.optim.lr"])
def test_a_number_that_leaves_nothing_of_a_step_is_refused(minimal: Path, key: str) -> None:
    assert f"{key}: should be a finite number, got inf" in failure(minimal, f"{key}=inf")


def test_truncated_sampling_needs_a_bound_on_what_is_left(minimal: Path) -> None:
    assert "a top_k from 1 to 1024" in failure(minimal, "sampling.top_p=0.9")
    assert "a top_k from 1 to 1024" in failure(minimal, "sampling.top_k=1025")
    sampling = load_recipe(minimal, ["sampling.top_p=0.9", "sampling.top_k=50"]).sampling
    assert (sampling.top_p, sampling.top_k) == (0.9, 50)


def test_a_correction_is_built_under_truncated_sampling_as_without(minimal: Path) -> None:
    corrected = ["objective.correction=event", "objective.correction_cap=3.0"]
    built = load_recipe(minimal, [*corrected, "sampling.top_k=20"]).objective.build()
    assert (built.correction, built.correction_cap) == ("event", 3.0)


def test_evaluation_lays_its_arguments_over_those_of_training(minimal: Path) -> None:
    recipe = load_recipe(minimal, ["env.kwargs={level = 3, split = 'train'}"])
    assert recipe.eval_env.kwargs == {"level": 3, "split": "test"}


def test_objective_keys_are_the_fields_of_the_objective() -> None:
    from srpo_train.objective import AdvantageSpec, Objective

    theirs = {item.name for kind in (Objective, AdvantageSpec) for item in dataclasses.fields(kind)}
    assert set(ObjectiveConfig.model_fields) - {"preset"} == theirs - {"name", "advantage"}


def test_objective_overrides_change_the_preset_and_nothing_else(minimal: Path) -> None:
    from srpo_train.objective import preset

    recipe = load_recipe(minimal, ["objective.preset=dr_mas", "objective.clip_high=0.3", "objective.dual_clip=inf"])
    assert recipe.objective.build() == preset("dr_mas", clip_high=0.3, dual_clip=None)


def test_objective_names_are_checked_when_it_is_built(minimal: Path) -> None:
    with pytest.raises(UnknownIdError, match="did you mean 'srpo"):
        load_recipe(minimal, ["objective.preset=srop"]).objective.build()
    with pytest.raises(ConfigError, match="scaling"):
        load_recipe(minimal, ["objective.scaling=cubic"]).objective.build()


def test_differences_name_the_keys_that_changed(minimal: Path) -> None:
    before = load_recipe(minimal)
    after = load_recipe(minimal, ["optim.lr=0.5", "env.kwargs.level=2", "objective.scaling=none"])
    assert before.differences(after) == ["env.kwargs.level", "objective.scaling", "optim.lr"]
    assert before.differences(before) == []


def test_a_recipe_is_checked_without_torch(minimal: Path) -> None:
    code = (
        "import sys; from srpo_train.config import load_recipe; load_recipe(sys.argv[1]); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(minimal)], check=False).returncode == 0


def test_every_field_has_its_sentence() -> None:
    sections = {"env", "eval", "policies", "engine", "sampling", "rollout", "objective", "optim", "train"}
    sections |= {"alarms", "critic", "distributed", "ray", "log"}
    for name, field in Recipe.model_fields.items():
        assert name in sections or field.description, name


def test_a_recipe_can_be_made_from_a_mapping_and_cannot_be_changed() -> None:
    recipe = parse_recipe({"name": "x", "env": {"id": "e"}, "policies": {"p": {"model": "m"}}})
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 3  # type: ignore[misc]


# --- settings of one policy ---------------------------------------------------------------------------------------


def test_a_policy_s_own_settings_lie_over_those_of_the_run(minimal: Path) -> None:
    own = ["optim.lr=1e-4", "optim.schedule=cosine", "objective.clip_low=0.1", "sampling.temperature=0.7"]
    recipe = load_recipe(
        minimal,
        ["policies.judge.model=m", "roles.verifier=judge", "roles.*=team", "optim.lr=1e-6", "optim.betas=[0.5, 0.6]"]
        + [f"policies.judge.{text}" for text in own],
    )
    judge, team = recipe.optim_of("judge"), recipe.optim_of("team")
    assert (judge.lr, judge.schedule, judge.betas) == (1e-4, "cosine", (0.5, 0.6))
    assert team == recipe.optim
    assert recipe.objective_of("judge").build().clip_low == 0.1
    assert recipe.objective_of("team") == recipe.objective
    assert [recipe.sampling_of(name).temperature for name in ("judge", "team")] == [0.7, 1.0]


def test_a_policy_may_turn_a_preset_s_dual_clip_off(minimal: Path) -> None:
    recipe = load_recipe(minimal, ["objective.preset=dr_mas", "policies.team.objective.dual_clip=inf"])
    assert recipe.objective.build().dual_clip == 3.0
    assert recipe.objective_of("team").build().dual_clip is None


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("policies.team.adapter.dropout=0.1", "policies.team.adapter: dropout: must be 0, got 0.1"),
        ("policies.team.adapter.rnk=8", "policies.team.adapter.rnk: unknown key; did you mean 'rank'?"),
        ("policies.team.optim.num_epochs=2", "policies.team.optim.num_epochs: unknown key"),
        ("policies.team.objective.kl_coef=0.1", "policies.team.objective.kl_coef: unknown key"),
        ("policies.team.adapter.targets=[]", "Tuple should have at least 1 item"),
        ("policies.team.trainable=false", "policies: every one has trainable = false"),
        ("policies.team.sampling.top_p=0.9", "policies.team.sampling: top_p = 0.9, top_k = 0: what is left"),
        ("policies.team.optim.warmup_steps=101", "policies.team.optim.warmup_steps: should be at most"),
    ],
)
def test_what_one_policy_cannot_have_is_refused(minimal: Path, override: str, expected: str) -> None:
    assert expected in failure(minimal, override)


@pytest.mark.parametrize(
    ("setting", "message"), [("adapter.rank=4", "a new adapter"), ("optim.lr=1.0", "no optimiser")]
)
def test_a_policy_that_is_not_trained_has_nothing_to_train(minimal: Path, setting: str, message: str) -> None:
    frozen = ["policies.judge.model=m", "policies.judge.trainable=false", "roles.verifier=judge", "roles.*=team"]
    assert not load_recipe(minimal, frozen).policies["judge"].trainable
    assert message in failure(minimal, *frozen, f"policies.judge.{setting}")


def test_policies_are_loaded_from_the_recipe_the_checkpoint_or_as_references(minimal: Path) -> None:
    recipe = load_recipe(
        minimal,
        [
            "policies.judge.model=m",
            "policies.judge.trainable=false",
            "policies.solver.model=s",
            "policies.solver.adapter.rank=4",
            "roles.solver=solver",
            "roles.verifier=judge",
            "roles.*=team",
        ],
    )
    fresh, stored = recipe.policy_specs(), recipe.policy_specs(Path("c"))
    assert {name: spec["source"] for name, spec in fresh.items()} == {
        "team": "builtin:tiny-team",
        "judge": "m",
        "solver": "s",
    }
    assert fresh["solver"]["adapter"].rank == 4
    assert {name: spec["source"] for name, spec in stored.items()} == {
        "team": "c/team",
        "judge": "m",  # never changed, so never stored
        "solver": "c/solver",
    }
    assert stored["solver"]["base"] == "s"
    assert "adapter" not in stored["solver"]
    references = recipe.reference_specs()
    assert {(spec["source"], spec["trainable"], spec["adapter"]) for spec in references.values()} == {
        (source, False, None) for source in ("builtin:tiny-team", "m", "s")
    }


# --- servers ------------------------------------------------------------------------------------------------------

SERVED = ["engine.kind=served", "engine.served.servers={team = ['http://gpu-1:8000', 'http://gpu-2:8000']}"]


def test_a_recipe_names_the_servers_of_each_policy(minimal: Path) -> None:
    recipe = load_recipe(minimal, SERVED)
    assert recipe.engine.served is not None
    assert recipe.engine.served.servers == {"team": ("http://gpu-1:8000", "http://gpu-2:8000")}
    minimal.write_text(recipe.to_toml())
    assert load_recipe(minimal) == recipe


def test_servers_that_do_not_fit_the_policies_are_refused(minimal: Path) -> None:
    assert "needs to know the servers" in failure(minimal, "engine.kind=served")
    assert 'set kind = "served"' in failure(minimal, SERVED[1])
    assert "only one has 'judge'" in failure(minimal, *SERVED, "engine.served.servers.judge=['http://gpu-3:8000']")
    assert "at least 1" in failure(minimal, SERVED[0], "engine.served.servers={team = []}")
    assert "^https?://" in failure(minimal, SERVED[0], "engine.served.servers={team = ['gpu-1:8000']}")
