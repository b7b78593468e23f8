"""The worlds: event records, the set-valued environment contract, workflows, tasks, grading and standard views."""
