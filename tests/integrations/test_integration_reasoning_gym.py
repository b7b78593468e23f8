from __future__ import annotations

import pytest

import srpo_envs

pytest.importorskip("reasoning_gym")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
MODULE = "srpo_envs.integrations.reasoning_gym"


def make(name: str = "Voting", **kwargs: object) -> srpo_envs.SetEnv:
    return srpo_envs.make(f"{MODULE}:reasoning_gym/{name}-v0", **kwargs)


def test_a_team_votes_on_an_item_and_the_data_sets_own_score_pays() -> None:
    env = make(dataset="leg_counting", size=8)
    active = env.reset(seed=1)
    gold = env.episode.task["gold"]
    result = env.step(active.outputs([rf"\boxed{{{gold}}}", "no box", r"\boxed{-1}"]))
    assert result.event.cardinality == 3
    result = env.step(result.next.outputs([r"\boxed{1}"]))
    assert (result.reward, result.info["correct"]) == (1.0, True)


def test_a_stored_episode_finds_its_environment_again() -> None:
    env = make("SingleAgent", dataset="chain_sum", size=8)
    env.step(env.reset(seed=2).outputs([r"\boxed{0}"]))
    episode = env.episode
    assert episode.env_id == f"{MODULE}:reasoning_gym/SingleAgent-v0"
    assert srpo_envs.replay(episode) == episode


def test_partial_credit_is_kept_and_is_no_success() -> None:
    """spell_backward pays a share for a word that is nearly right."""
    import reasoning_gym

    from srpo_envs.integrations.reasoning_gym import ReasoningGym

    family = ReasoningGym("spell_backward", size=4)
    task = family.task(0)
    nearly = task.gold[:-1] + ("a" if task.gold[-1] != "a" else "b")
    data = reasoning_gym.create_dataset("spell_backward", seed=0, size=8)
    expected = data.score_answer(nearly, data[task.info["index"]])
    assert family.grade(task, task.gold) == 1.0
    assert family.grade(task, nearly) == expected < 1.0


def test_train_and_test_never_share_a_question() -> None:
    from srpo_envs.integrations.reasoning_gym import ReasoningGym

    train = {ReasoningGym("chain_sum", size=40).task(index).question for index in range(40)}
    test = {ReasoningGym("chain_sum", split="test", size=8).task(index).question for index in range(8)}
    assert train.isdisjoint(test)


def test_tasks_are_the_same_however_they_are_reached() -> None:
    from srpo_envs.integrations.reasoning_gym import ReasoningGym

    assert ReasoningGym("chain_sum", size=9).task(7) == [ReasoningGym("chain_sum", size=9).task(i) for i in range(8)][7]


def test_every_workflow_that_answers_questions_is_registered() -> None:
    make(size=2)
    names = {name.rpartition("/")[2] for name in srpo_envs.list_envs() if name.startswith("reasoning_gym/")}
    assert names == {
        f"{name}-v0"
        for name in (
            "EvalOpt",
            "OrchestratorWorkers",
            "SingleAgent",
            "SolverVerifier",
            "SolverVerifierFixed",
            "SolverVerifierRouted",
            "Voting",
        )
    }


def test_mistakes_are_named() -> None:
    with pytest.raises(srpo_envs.errors.UnknownIdError, match="did you mean 'leg_counting'"):
        make(dataset="leg_countng")
    with pytest.raises(srpo_envs.errors.ConfigError, match="refuses"):
        make(dataset="chain_sum", config={"min_terms": -3})
    with pytest.raises(srpo_envs.errors.ConfigError, match="split"):
        make(split="dev")


def test_the_contract_holds() -> None:
    srpo_envs.check_set_env(lambda: make(dataset="chain_sum", size=8), num_episodes=2)
