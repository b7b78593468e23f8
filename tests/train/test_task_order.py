"""Task order: whole epochs, no memory, distinct ids."""

from __future__ import annotations

from srpo_train.task_order import TaskOrder, step_jobs


def test_every_epoch_is_a_permutation_and_epochs_differ():
    order = TaskOrder(num_tasks=7, seed=3)
    epochs = [[order.task_at(epoch * 7 + place) for place in range(7)] for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(7))] * 3
    assert epochs[0] != epochs[1]


def test_a_position_means_the_same_task_for_a_fresh_object_at_an_epoch_boundary():
    whole = TaskOrder(num_tasks=5, seed=1)
    walked = [whole.task_at(position) for position in range(12)]
    assert [TaskOrder(num_tasks=5, seed=1).task_at(position) for position in range(12)] == walked


def test_another_seed_gives_another_order():
    assert [TaskOrder(50, 0).task_at(i) for i in range(50)] != [TaskOrder(50, 1).task_at(i) for i in range(50)]


def test_a_group_shares_task_and_world_but_no_id():
    jobs = step_jobs(TaskOrder(4, 0), step=2, prompts_per_step=3, group_size=2, seed=0)
    assert len({job.episode_id for job in jobs}) == 6
    for first, second in zip(jobs[::2], jobs[1::2], strict=True):
        assert (first.group_id, first.task_index, first.env_seed) == (
            second.group_id,
            second.task_index,
            second.env_seed,
        )


def test_a_task_repeated_within_a_step_makes_two_groups():
    jobs = step_jobs(TaskOrder(1, 0), step=1, prompts_per_step=2, group_size=1, seed=0)
    assert jobs[0].task_index == jobs[1].task_index == 0
    assert jobs[0].group_id != jobs[1].group_id
    assert jobs[0].env_seed != jobs[1].env_seed


def test_steps_walk_through_an_epoch_without_repeating_a_task():
    order = TaskOrder(6, 2)
    steps = [step_jobs(order, step=step, prompts_per_step=2, group_size=1, seed=0) for step in (1, 2, 3)]
    assert sorted(job.task_index for jobs in steps for job in jobs) == list(range(6))
