"""Is a team that searches well worth its searches: gold titles as queries, against the question as the only query.

Both play the same routed search over the same BM25 index, scripted, for one turn. The oracle team knows the titles of
the gold passages and sends each as a query of its own, all in one set; the baseline sends the question. Their answerer
knows the golden answer and may give it only where the evidence holds it: where it stands in a retrieved passage, or,
for yes and no, where all gold passages were found. So the team reward is the share of questions that a perfect reader
could answer from what was retrieved. The baseline is also given as many passages as the oracle gets in all.

    python benchmarks/oracle_search.py --questions FILE --corpus FILE

Without arguments: ``questions.jsonl`` and ``corpus.jsonl`` in ``$SRPO_DATA/hotpotqa``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.pop(0)  # this folder, in which `retrieval` would be another benchmark

from retrieval.bm25 import Bm25Index
from srpo_envs.evidence import supports
from srpo_envs.records import ActiveSet, Episode
from srpo_envs.search import Passage, Retriever
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.question_answering import QuestionAnswering
from srpo_envs.workflows.search import Search

DATA = Path(os.environ.get("SRPO_DATA", "data")) / "hotpotqa"
YES_OR_NO = ("yes", "no")


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """What is searched for, and how many passages each query brings."""

    name: str
    queries: Callable[[Task], Sequence[str]]
    top_k: int


def gold_titles(task: Task) -> Sequence[str]:
    """Return the titles of the gold passages: what the oracle team asks."""
    return tuple(dict.fromkeys(task.info["gold_titles"]))


def question(task: Task) -> Sequence[str]:
    """Return the question: what the baseline asks."""
    return (task.question,)


STRATEGIES = (
    Strategy(name="gold titles, top 3", queries=gold_titles, top_k=3),
    Strategy(name="gold titles, top 1", queries=gold_titles, top_k=1),
    Strategy(name="question, top 3", queries=question, top_k=3),
    Strategy(name="question, top 6", queries=question, top_k=6),
)


def play(tasks: QuestionAnswering, retriever: Retriever, strategy: Strategy) -> list[Episode]:
    """Play every task once."""
    queries = [strategy.queries(tasks.task(index)) for index in range(tasks.num_tasks)]
    env = Search(tasks, retriever=retriever, num_searchers=max(map(len, queries)), top_k=strategy.top_k)
    episodes = []
    for index, asked in enumerate(queries):
        active: ActiveSet | None = env.reset(
            seed=0, options={"task_index": index, "episode_id": f"{strategy.name}/{index}"}
        )
        while active is not None:
            active = env.step(active.outputs(act(active, tasks.task(index), asked, env.episode))).next
        episodes.append(env.episode)
    return episodes


def act(active: ActiveSet, task: Task, queries: Sequence[str], episode: Episode) -> list[str]:
    """Return what the scripted team says to one event."""
    if active.event_type == "router":
        numbers = ", ".join(str(number + 1) for number in range(len(queries)))
        return [f"<route>{'STOP' if episode.events else numbers}</route>"]
    if active.event_type == "searcher":
        return [f"<think>One fact each.</think><search>{query}</search>" for query in queries]
    can_answer = is_answerable(task, passages_of(episode))
    if active.event_type == "verifier":
        return [f"<verify>{'approve' if can_answer else 'reject'}</verify>"]
    return [f"<think>From the evidence.</think><answer>{task.golds[0] if can_answer else 'unknown'}</answer>"]


def passages_of(episode: Episode) -> list[Passage]:
    """Return the passages that an episode's searches brought, from its record."""
    calls = [call for event in episode.events for call in event.tool_calls if call.name == "search"]
    return [Passage(**fields) for call in calls for fields in call.result]


def is_answerable(task: Task, passages: Sequence[Passage]) -> bool:
    """Say whether a perfect reader finds the answer in the passages."""
    if task.golds[0].casefold() in YES_OR_NO:
        return set(gold_titles(task)) <= {passage.title for passage in passages}
    return supports(passages, task.golds)


def row(name: str, episodes: Sequence[Episode]) -> str:
    """Return one line of the table."""
    recalls = [episode.info["metrics"]["gold_passage_recall"] for episode in episodes]
    cells = [
        statistics.mean(len(episode.events[1].members) for episode in episodes),
        statistics.mean(len({passage.id for passage in passages_of(episode)}) for episode in episodes),
        statistics.mean(recalls),
        statistics.mean(recall == 1.0 for recall in recalls),
        statistics.mean(episode.info["metrics"]["evidence_support"] for episode in episodes),
        statistics.mean(episode.reward for episode in episodes),
    ]
    return f"| {name} | {len(episodes)} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |"


def table(tasks: QuestionAnswering, retriever: Retriever) -> list[str]:
    """Return the Markdown table of all strategies, over all questions and by their type."""
    lines = [
        "| queries | questions | K | passages | gold recall | all gold found | answer in evidence | team reward |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for strategy in STRATEGIES:
        episodes = play(tasks, retriever, strategy)
        lines.append(row(strategy.name, episodes))
        kinds = sorted({str(episode.task["info"].get("type", "")) for episode in episodes})
        for kind in kinds if len(kinds) > 1 else ():
            chosen = [episode for episode in episodes if episode.task["info"].get("type", "") == kind]
            lines.append(row(f"- {kind}", chosen))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, default=DATA / "questions.jsonl", help="with titles of gold passages")
    parser.add_argument("--corpus", type=Path, default=DATA / "corpus.jsonl", help="passages in Search-R1's format")
    args = parser.parse_args()
    for path in (args.questions, args.corpus):
        if not path.is_file():
            print(
                f"skipped: no file {path}; give --questions and --corpus, or set SRPO_DATA to the folder of hotpotqa/"
            )
            return
    tasks, index = QuestionAnswering("custom", path=args.questions), Bm25Index.from_corpus(args.corpus)
    print(f"{tasks.num_tasks} questions over {index.num_passages:,} passages, one turn of search\n")
    print(*table(tasks, index), sep="\n")


if __name__ == "__main__":
    main()
