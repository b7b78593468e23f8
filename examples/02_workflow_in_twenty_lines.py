r"""A workflow of your own: a debate with two sides and a judge, and its conformance check."""

from srpo_envs import Role, SetEnv, check_set_env, register
from srpo_envs.parsing import parse_boxed_answer
from srpo_envs.tasks.arithmetic import Arithmetic


class Debate(SetEnv):
    """Two debaters answer at once, see each other once, and a judge decides."""

    def __init__(self, level=1, split="train", rounds=2):
        self.rounds = rounds
        debater = "$question$context\nSolve."
        super().__init__(
            Arithmetic(level, split),
            roles=(
                Role("debater", prompt=debater, parse=parse_boxed_answer, seats=2, max_new_tokens=40),
                Role("judge", prompt="$question$context\nAnswer.", parse=parse_boxed_answer, max_new_tokens=10),
            ),
        )

    def schedule(self, task):
        drafts = []
        for _ in range(self.rounds):
            drafts += yield self.ask("debater", count=2, context=self.context(drafts))  # one event, K = 2
        (final,) = yield self.ask("judge", context=self.context(drafts))  # one event, K = 1
        return self.outcome(final)  # graded: the team reward


register("examples/Debate-v0", Debate)

if __name__ == "__main__":
    print(check_set_env(Debate))
