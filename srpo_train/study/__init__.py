"""When does training a team pay? A grid of workflows, tasks, models and ways to share policies, against two controls.

Each workflow is compared with the model it starts from and with a single agent that is trained on the same task with
the same recipe. A study is a sweep whose cells are made from a short file; `srpo study` trains it and writes tables of
peak, end, gain and fall, and a picture.
"""

from srpo_train.study.grid import list_study_runs
from srpo_train.study.results import StudyResult, read_study, write_study
from srpo_train.study.spec import Study, Workflow, load_study

__all__ = ["Study", "StudyResult", "Workflow", "list_study_runs", "load_study", "read_study", "write_study"]
