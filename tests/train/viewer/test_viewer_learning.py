"""Advantages and ratios that the viewer shows are those of training."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from report_world import RECIPE

from srpo_envs.errors import CheckpointError, ConfigError, UnknownIdError
from srpo_envs.records import Episode, read_episodes
from srpo_train import loop
from srpo_train.config import load_recipe
from srpo_train.experience import Experience
from srpo_train.viewer import critic, scoring
from srpo_train.viewer.credit import credits_of, experience_of
from srpo_train.viewer.learned import learned_step
from srpo_train.viewer.opened import OpenRuns
from srpo_train.viewer.runs import Catalogue, RunPlace
from srpo_train.viewer.scoring import CheckpointScorer, load_team, score_events


def changes(folder: Path, model: Path) -> list[str]:
    return [
        f"output_dir={folder}", "name=run", f"policies.team.model={model}", "env.kwargs.max_new_tokens=6",
        "eval.every=0", "rollout.prompts_per_step=2", "rollout.group_size=3", "train.num_steps=2", "optim.lr=0.01",
        "train.checkpoint_every=1", "train.keep_last=3", "log.tensorboard=false", "log.save_events=all",
    ]  # fmt: skip


def train_watched(folder: Path, model: Path, *more: str) -> tuple[Path, list[Experience]]:
    """Train, and return the run with what its learner was given at each step."""
    given: list[Experience] = []
    build = loop.build_experience

    def watched(*arguments: Any) -> Experience:
        given.append(build(*arguments))
        return given[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "build_experience", watched)
        patch.setattr(loop, "write_report", lambda _: None)
        return loop.train(load_recipe(RECIPE, [*changes(folder, model), *more])), given


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> tuple[Path, list[Experience]]:
    """A run of two steps, and what its learner was given."""
    return train_watched(tmp_path_factory.mktemp("runs"), tiny_checkpoint)


@pytest.fixture(scope="module")
def with_critic(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> tuple[Path, list[Experience]]:
    """Three steps with a critic that moves fast."""
    more = "objective.preset=ppo", "critic.optim.lr=0.01", "train.num_steps=3"
    return train_watched(tmp_path_factory.mktemp("critic"), tiny_checkpoint, *more)


@pytest.fixture
def place(trained: tuple[Path, list[Experience]]) -> RunPlace:
    return Catalogue([trained[0]]).places()[0]


def episodes_of(place: RunPlace, step: int) -> list[Episode]:
    return list(read_episodes(place.path / f"events/step-{step:06d}.jsonl"))


def advantages_given(given: Experience) -> dict[str, float]:
    batch = given.batch
    assert batch.advantage_E is not None and batch.event_ids is not None
    return dict(zip(batch.event_ids, batch.advantage_E.tolist(), strict=True))


def advantages_shown(place: RunPlace, experience: Experience, step: int) -> dict[str, float | None]:
    return {
        name: credit.advantage
        for episode in episodes_of(place, step)
        for name, credit in credits_of(experience, episode, place.recipe).items()
    }


def test_advantages_are_those_the_learner_was_given(place: RunPlace, trained: tuple[Path, list[Experience]]) -> None:
    for step, given in enumerate(trained[1], start=1):
        shown = advantages_shown(place, experience_of(episodes_of(place, step), place.recipe), step)
        assert shown == advantages_given(given)
        assert any(shown.values())


def test_advantages_with_a_critic_are_those_the_learner_was_given(
    with_critic: tuple[Path, list[Experience]],
) -> None:
    (place,) = Catalogue([with_critic[0]]).places()
    for step, given in enumerate(with_critic[1], start=1):
        learned = learned_step(place, step, episodes_of(place, step))
        assert learned.remark == ""
        wanted = advantages_given(given)
        assert advantages_shown(place, learned.experience, step) == pytest.approx(wanted, abs=1e-6)
        values = given.batch.value_E
        assert values is not None and (values.abs().max() > 1e-3) == (step > 1)  # a new critic says 0


def test_without_the_critics_checkpoint_ratios_are_told_and_advantages_are_not(
    with_critic: tuple[Path, list[Experience]], tmp_path: Path
) -> None:
    shutil.copytree(with_critic[0], tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/step-000001")
    with OpenRuns([tmp_path / "run"]) as runs:
        (place,) = runs.catalogue.places()
        name = episodes_of(place, 2)[0].episode_id
        timeline = runs.timeline("run", name, credit=True, step=3)
        assert "as it was before step 2" in timeline.remark and "no checkpoint of step 1" in timeline.remark
        for event in timeline.events:
            assert event.advantage is None and event.credit is not None and not event.credit.left_out
            for member in event.members:
                assert member.log_ratio and member.advantage is None and member.is_clipped is None
        json.dumps(dataclasses.asdict(timeline), allow_nan=False)  # as the server sends it
        name = episodes_of(place, 3)[0].episode_id
        known = runs.timeline("run", name, credit=True, step=3)
        assert known.remark == "" and known.events[0].advantage is not None
        assert known.events[0].members[0].is_clipped in (True, False)


def test_events_that_were_not_trained_on_say_why(place: RunPlace) -> None:
    episodes = episodes_of(place, 1)
    recipe = load_recipe(place.path / "recipe.toml", ["optim.max_row_tokens=1"])
    (credit, *_) = credits_of(experience_of(episodes, recipe), episodes[0], recipe).values()
    assert (credit.advantage, credit.left_out) == (None, "overlong")


def test_advantages_that_need_a_critic_are_refused(place: RunPlace) -> None:
    recipe = load_recipe(place.path / "recipe.toml", ["objective.preset=ppo"])
    with pytest.raises(ConfigError, match="values, which the log does not"):
        experience_of(episodes_of(place, 1), recipe)


def test_the_policy_that_sampled_finds_every_ratio_1(place: RunPlace) -> None:
    """Step 2 was sampled with the weights of the checkpoint of step 1."""
    episodes = episodes_of(place, 2)
    experience = experience_of(episodes, place.recipe)
    scores = CheckpointScorer().score(place, 1, experience, episodes[0])
    assert scores.keys() == {event.event_id for event in episodes[0].events}
    for event in episodes[0].events:
        assert scores[event.event_id].ratio == pytest.approx(1.0, abs=1e-4)
        assert scores[event.event_id].is_clipped is False
        for member, scored in zip(event.members, scores[event.event_id].members, strict=True):
            assert scored.logprobs == pytest.approx(member.behavior_logprobs, abs=1e-4)
            assert len(scored.token_texts) == len(member.token_ids)


def test_a_later_policy_has_the_ratio_and_clip_of_equation_4(place: RunPlace) -> None:
    episodes = episodes_of(place, 2)
    experience = experience_of(episodes, place.recipe)
    clipped = []
    for episode in episodes:
        scores = CheckpointScorer().score(place, 2, experience, episode)
        credits = credits_of(experience, episode, place.recipe)
        for event in episode.events:
            found = scores[event.event_id]
            differences = [
                math.fsum(now - old for now, old in zip(scored.logprobs, member.behavior_logprobs, strict=True))
                for member, scored in zip(event.members, found.members, strict=True)
            ]
            assert [scored.log_ratio for scored in found.members] == pytest.approx(differences, abs=1e-6)
            log_ratio = sum(differences) / math.sqrt(event.cardinality)
            assert found.log_ratio == pytest.approx(log_ratio, abs=1e-6)
            assert found.ratio == pytest.approx(math.exp(log_ratio), rel=1e-5)
            advantage = credits[event.event_id].advantage or 0.0
            bound = (advantage > 0 and found.ratio > 1.2) or (advantage < 0 and found.ratio < 0.8)
            assert found.is_clipped is bound
            clipped.append(bound)
    assert True in clipped and False in clipped  # the step was long enough to show both


@pytest.mark.parametrize(("preset", "unit"), [("gspo", "sequence"), ("grpo", "token")])
def test_smaller_units_are_told_by_member(place: RunPlace, preset: str, unit: str) -> None:
    recipe = load_recipe(place.path / "recipe.toml", [f"objective.preset={preset}"])
    assert recipe.build_objective().unit == unit
    episodes = episodes_of(place, 2)
    experience = experience_of(episodes, recipe)
    scores = score_events(experience.batch, load_team(place, 2), recipe)
    credits = credits_of(experience, episodes[0], recipe)
    for event in episodes[0].events:
        found = scores[event.event_id]
        assert found.ratio is None and found.is_clipped is None
        assert len(credits[event.event_id].member_advantages) == len(found.members) == event.cardinality
        for member, scored in zip(event.members, found.members, strict=True):
            assert scored.is_clipped in (True, False)
            if unit == "sequence":
                mean = scored.log_ratio / len(member.token_ids)  # GSPO normalises by length
                assert scored.ratio == pytest.approx(math.exp(mean), rel=1e-4)


def test_models_are_loaded_one_at_a_time_whoever_asks(
    with_critic: tuple[Path, list[Experience]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page asks for advantages and ratios at once, each of which loads a model."""
    loading, most = [], []

    def watched(load: Any) -> Any:
        def one(*arguments: Any, **options: Any) -> Any:
            loading.append(1)
            most.append(len(loading))
            threading.Event().wait(0.2)
            try:
                return load(*arguments, **options)
            finally:
                loading.pop()

        return one

    monkeypatch.setattr(critic.Critic, "load", watched(critic.Critic.load))
    monkeypatch.setattr(scoring, "load_team", watched(scoring.load_team))
    (place,) = Catalogue([with_critic[0]]).places()
    asked = [(2, -1), (3, 3), (3, -1), (2, 2)]
    with OpenRuns([place.path]) as runs, ThreadPoolExecutor(len(asked)) as pool:

        def ask(step: int, checkpoint: int) -> Any:
            return runs.timeline("run", episodes_of(place, step)[0].episode_id, credit=True, step=checkpoint)

        found = [answer.result() for answer in [pool.submit(ask, *one) for one in asked]]
    assert all(event.advantage is not None for timeline in found for event in timeline.events)
    assert set(most) == {1}


def test_an_open_run_joins_everything_in_one_time_line(place: RunPlace) -> None:
    with OpenRuns([place.path]) as runs:
        name = episodes_of(place, 2)[0].episode_id
        plain = runs.timeline("run", name)
        assert plain.events[0].credit is None and plain.events[0].ratio is None
        learned = runs.timeline("run", name, credit=True, step=2)
        assert learned.events[0].advantage is not None and learned.events[0].ratio is not None
        assert learned.events[0].members[0].tokens.current
        assert runs.timeline("run", name, credit=True, step=2) == learned  # from memory this time
        with pytest.raises(CheckpointError, match="no checkpoint of step 9"):
            runs.timeline("run", name, step=9)
        with pytest.raises(UnknownIdError, match="no stored episode 'nobody'"):
            runs.timeline("run", "nobody")
