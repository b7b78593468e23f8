r"""Play a search episode by hand: a router, searchers who ask at once, a verdict, a refinement, an answer.

What a search brings is shown to whoever acts next; it is never a member of a set. Two queries that find four passages
are one event with K = 2, and the audit says so.
"""

from srpo_envs.audit import format_event_table
from srpo_envs.search import Passage, ScriptedRetriever
from srpo_envs.tasks.base import Task
from srpo_envs.tasks.question_answering import QuestionAnswering
from srpo_envs.workflows.search import Search

FILM = Passage(id="film", title="Silver Tide", text="Silver Tide is a film of 1961, directed by Ana Orlova.")
ORLOVA = Passage(id="orlova", title="Ana Orlova", text="Ana Orlova, born in Varna, Bulgaria, made nine films.")
SOFIA = Passage(id="sofia", title="Sofia", text="Sofia is the capital of Bulgaria.")

# A dictionary stands in for the search engine. By name it would be retriever="bm25:facts", or a server's URL.
engine = ScriptedRetriever(
    {
        "Silver Tide film director": [FILM, ORLOVA],
        "Ana Orlova birthplace": [ORLOVA, FILM],
        "capital of Bulgaria": [SOFIA],
    }
)
task = Task(
    task_id="by-hand",
    question="What is the capital of the country where the director of Silver Tide was born?",
    gold=["Sofia"],
    info={"gold_passage_ids": ["film", "orlova", "sofia"]},
)
script = [
    ["Everybody, please!"],  # malformed: neither STOP nor all of them; it costs a penalty and the turn
    ["Film and birthplace can be looked up at once. <route>1, 3</route>"],
    [
        "<think>Who made it?</think><search>Silver Tide film director</search>",
        "<think>It was Orlova, I think.</think><search>Ana Orlova birthplace</search>",
    ],
    ["Born in Varna, Bulgaria; its capital is missing. <verify>reject</verify>"],
    ["One fact is missing. <route>2</route>"],
    ["<think>The capital is missing.</think><search>capital of Bulgaria</search>"],
    ["Every fact is stated. <verify>approve</verify>"],
    ["<route>STOP</route>"],
    ["<think>The last passage says it.</think><answer>Sofia</answer>"],
]

env = Search(QuestionAnswering(), retriever=engine, num_searchers=3, max_turns=4)
active = env.reset(seed=0, options={"task": task})
for texts in script:
    if active.event_type == "answerer":
        print(active.members[0].prompt, end="\n\n")
    active = env.step(active.outputs(texts)).next

print(format_event_table(env.episode))
print(f"\nteam reward {env.episode.reward}, penalties {env.episode.penalty}, ended by {env.episode.info['stopped_by']}")
for name, value in env.episode.info["metrics"].items():
    print(f"  {name} {value:.2f}")
