from __future__ import annotations

import dataclasses
import re
from collections import Counter

import numpy as np
import pytest

from srpo_envs.tasks.generated import split_of
from srpo_envs.tasks.village import RELATIONS, facts, people
from srpo_train.tiny.village.curriculum import CLEAN, SPOILED, VILLAGE, play, rename
from srpo_train.tiny.warm_start import make_examples

FACT = re.compile(r"The (\w+) of (\w+) is (\w+)\.")


@pytest.fixture(scope="module")
def pools():
    phase = dataclasses.replace(VILLAGE.phases[-1], habits=CLEAN, num_episodes=120)
    return make_examples(VILLAGE, phase, np.random.default_rng(0))


def test_renaming_exchanges_names_and_nothing_else():
    text = "Name the boss of Bako.\nThe boss of Bako is Demi.\nStep 1 of 2."
    exchanged = rename(text, {"Bako": "Demi", "Demi": "Tuvo"})
    assert exchanged == "Name the boss of Demi.\nThe boss of Demi is Tuvo.\nStep 1 of 2."


def test_facts_cannot_be_learnt_by_heart(pools):
    told = Counter(FACT.findall("".join(item.prompt for pool in pools.values() for item in pool)))
    real = sum(count for (relation, name, value), count in told.items() if facts()[name][relation] == value)
    assert {name for _, name, _ in told} <= set(people())
    assert sum(told.values()) > 500
    assert real < 0.03 * sum(told.values())  # one value in 200 of a person and one age in 90 is right by chance


def test_answers_follow_from_what_the_prompt_tells(pools):
    right = 0
    for item in pools["answerer"]:
        answer = item.response.partition("<answer> ")[2].removesuffix("</answer>")
        if answer != "unknown":
            assert set(answer.split(" and ")) <= {value for _, _, value in FACT.findall(item.prompt)}
            right += 1
    assert right > 60


def test_one_episode_has_one_set_of_names():
    for seed in range(20):
        told = FACT.findall("\n".join(item.prompt for item in play(4, SPOILED, np.random.default_rng(seed))))
        values = {(relation, name): value for relation, name, value in told}
        assert all(values[relation, name] == value for relation, name, value in told)
        assert {relation for relation, _ in values} <= set(RELATIONS)


def test_the_episodes_behind_the_examples_are_of_the_training_split(monkeypatch):
    import srpo_train.tiny.village.curriculum as module

    monkeypatch.setattr(module, "rename", lambda text, new_names: text)
    for seed in range(30):
        for item in play(4, CLEAN, np.random.default_rng(seed)):
            assert split_of(item.prompt.splitlines()[0]) == "train"
