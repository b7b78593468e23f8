"""Alarms: rules over a run's metrics that say when training goes wrong, while it does.

A rule is a function of the metrics so far and nothing else, so that a stored run can be judged as a live one is::

    alarms = Alarms(AlarmsConfig(), read_metrics("runs/mine"))
    for line in new_lines:
        for alarm in alarms.check(line):
            print(alarm.message)
"""

from srpo_train.alarms.settings import AlarmsConfig
from srpo_train.alarms.watch import Alarm, Alarms

__all__ = ["Alarm", "Alarms", "AlarmsConfig"]
