"""The ``[alarms]`` section of a recipe: thresholds, and what is done."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from srpo_train.section import Section

Action = Literal["off", "warn", "lower_lr", "rollback", "stop"]
"""What an alarm does: nothing; be printed and logged; and further lower the learning rate, return to the last good
checkpoint at a lower rate, or end the run."""

_Share = Annotated[float, Field(ge=0, le=1)]
_Factor = Annotated[float, Field(gt=1)]


class _Alarm(Section):
    """What all alarms have."""

    action: Action = "warn"
    """What is done: `off`, `warn`, `lower_lr`, `rollback` or `stop`."""


class CliffAlarm(_Alarm):
    """Held-out Avg@k falls from its peak and noise does not explain it."""

    drop: _Share = 0.1
    """Smallest fall below the best evaluation so far."""
    num_errors: PositiveFloat = 3.0
    """The fall is also this many standard errors, the binomial ones of both evaluations together."""


class AmplificationAlarm(_Alarm):
    """Members of one role pull together and their role's gradient outgrows what it was."""

    growth: _Factor = 3.0
    """Norm of the role's gradient over its median so far."""
    alignment: _Factor = 1.2
    """Norm of the members' summed gradients over that of unrelated ones (`train/member_grad_amplification/{role}`)."""
    perplexity: _Factor = 1.03
    """The role's perplexity over its lowest so far; in a run that goes well it falls."""
    patience: PositiveInt = 3
    """Measurements over which the alignment is averaged; each is of a few events only."""


class CaptureAlarm(_Alarm):
    """A role writes as another role used to."""

    share: _Share = 0.5
    """Responses of the role that read as another's at the start of the run, beyond those that did so then."""
    patience: PositiveInt = 3
    """Steps over which that is averaged."""


class EntropyAlarm(_Alarm):
    """A role has stopped exploring before the task is solved."""

    share: _Share = 0.02
    """Entropy of the role over what it was at the start of the run."""
    solved: _Share = 0.8
    """Training accuracy from which on a sure policy is what one wants."""
    patience: PositiveInt = 5
    """Steps over which both are averaged."""


class LengthAlarm(_Alarm):
    """Responses of a role grow without bound, or into their limit."""

    growth: _Factor = 2.0
    """Length of its responses over what it was at the start of the run."""
    cut: _Share = 0.5
    """Share of its responses that run into the limit, beyond the share that did so at the start."""
    patience: PositiveInt = 3
    """Steps over which both are averaged."""


class SilenceAlarm(_Alarm):
    """Batches in which almost no event has an advantage, so that almost nothing is learned."""

    share: _Share = 0.9
    """Share of trained events with advantage 0."""
    solved: _Share = 0.95
    """Training accuracy from which on there is nothing left to learn."""
    patience: PositiveInt = 5
    """Steps over which both are averaged."""


class AlarmsConfig(Section):
    """When training is taken to go wrong, and what is done then."""

    validation_cliff: CliffAlarm = CliffAlarm()
    amplification: AmplificationAlarm = AmplificationAlarm()
    role_capture: CaptureAlarm = CaptureAlarm()
    entropy_collapse: EntropyAlarm = EntropyAlarm()
    length_runaway: LengthAlarm = LengthAlarm()
    silent_batches: SilenceAlarm = SilenceAlarm()
    lr_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """What `lower_lr` and `rollback` multiply the learning rate with, each time."""

    def action_of(self, alarm: str) -> Action:
        """Return what an alarm does; those without settings of their own only warn."""
        settings = getattr(self, alarm, None)
        return settings.action if isinstance(settings, _Alarm) else "warn"

    @property
    def needs_good_checkpoint(self) -> bool:
        """Whether some alarm returns to the best checkpoint, which must then be kept."""
        return any(self.action_of(name) == "rollback" for name in type(self).model_fields)
