"""`srpo_train.reporting.paper`: the paper's numbers agree with each other as far as the paper's own do."""

from __future__ import annotations

from statistics import fmean

import pytest

from srpo_train.reporting.paper import QuotedRow, benchmark_label, paper
from srpo_train.reporting.paper_tables import dynamics_table, paper_section, quoted_blocks, score_table

ROWS = [(table, row) for table in paper().score_tables for row in table.rows]


@pytest.mark.parametrize(
    ("table", "row"), ROWS, ids=lambda item: f"{item.model} {item.method}" if isinstance(item, QuotedRow) else ""
)
def test_every_printed_average_is_the_mean_of_its_columns(table, row) -> None:
    # Columns are rounded to 0.1, and so is the average: they may differ by 0.05 + 0.05. All 48 averages stay within
    # half of that, so no row of the paper contradicts itself here.
    assert len(row.avg_at_k) == len(row.pass_at_k) == len(table.benchmarks) == len(table.labels)
    assert abs(fmean(row.avg_at_k) - row.macro_avg_at_k) < 0.0501
    assert abs(fmean(row.pass_at_k) - row.macro_pass_at_k) < 0.0501


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_only_rows_of_several_seeds_have_deviations_and_no_query_is_solved_less_often_than_on_average(
    table, row
) -> None:
    width = len(table.benchmarks) if row.num_seeds > 1 else 0
    assert len(row.avg_at_k_std) == len(row.pass_at_k_std) == width
    assert (row.macro_avg_at_k_std is None) == (row.macro_pass_at_k_std is None) == (row.num_seeds == 1)
    assert all(a <= p <= 100 for a, p in zip(row.avg_at_k, row.pass_at_k, strict=True))


def test_both_tables_have_six_methods_for_each_of_two_models() -> None:
    for table in paper().score_tables:
        by_model = {
            model: [row.name for row in table.rows if row.model == model] for model in {r.model for r in table.rows}
        }
        assert len(by_model) == 2
        for names in by_model.values():
            assert names == [
                "Single-agent GRPO",
                "LLM sharing GRPO",
                "LLM sharing Dr. MAS",
                "LLM non-sharing GRPO",
                "LLM non-sharing Dr. MAS",
                "Setwise SRPO (n=3)",
            ]


def row_of(model: str, method: str) -> QuotedRow:
    return next(row for _, row in ROWS if row.model == model and row.method == method)


def test_what_the_text_says_of_the_tables_holds_but_for_one_figure() -> None:
    # Section 5.1 and 5.2 give SRPO's lead over "the strongest displayed Dr. MAS rows".
    def lead(model: str) -> tuple[float, float]:
        rivals = [row_of(model, method) for method in ("LLM sharing Dr. MAS", "LLM non-sharing Dr. MAS")]
        ours = row_of(model, "Setwise SRPO")
        return (
            round(ours.macro_avg_at_k - max(row.macro_avg_at_k for row in rivals), 1),
            round(ours.macro_pass_at_k - max(row.macro_pass_at_k for row in rivals), 1),
        )

    assert lead("Qwen3-4B") == lead("Qwen3-8B") == (0.2, 0.2)
    assert lead("Qwen2.5-7B") == (1.8, 3.3)
    assert lead("Qwen2.5-3B") == (3.2, 2.3)  # the text says 3.1, the distance to the other Dr. MAS row
    assert any("3.1 points" in remark and "2.3" in remark for remark in paper().source.remarks)


def test_table_3_ends_with_the_row_of_table_2_and_keeps_the_gains_of_the_text() -> None:
    rows = {row.variant: row for row in paper().ablation.rows}
    ours, search = rows["SRPO"], row_of("Qwen2.5-3B", "Setwise SRPO")
    assert (ours.avg_at_k, ours.pass_at_k) == (search.macro_avg_at_k, search.macro_pass_at_k)
    assert (ours.avg_at_k_std, ours.pass_at_k_std) == (search.macro_avg_at_k_std, search.macro_pass_at_k_std)
    gains = {"Singleton boundary": (2.9, 3.7), "Joint sum": (1.5, 1.8), "Joint mean": (5.4, 7.5)}
    for variant, (avg, passed) in gains.items():
        assert round(ours.avg_at_k - rows[variant].avg_at_k, 1) == avg
        assert round(ours.pass_at_k - rows[variant].pass_at_k, 1) == passed


def test_dynamics_and_router_agree_with_each_other() -> None:
    runs = {row.run: row for row in paper().dynamics.rows}
    event = runs["8B, event-reduced"]
    assert event.grad_norm_min < event.grad_norm_mean < event.grad_norm_max
    assert event.grad_norm_cv < runs["8B, token-reduced"].grad_norm_cv
    assert runs["learned router"].active_set_last == paper().router.active_set_last == 1.638
    assert all(row.proxy_last < row.proxy_first for row in runs.values())


def test_the_largest_figure_is_bold_whosever_it_is() -> None:
    block = next(block for block in quoted_blocks(paper().score_tables[0]) if block.title.startswith("Qwen3-4B"))
    bold = {row.name: [cell.is_best for cell in row.cells] for row in block.rows}
    assert bold["LLM non-sharing Dr. MAS"][:2] == [True, True]  # AIME'24: 46.9 and 80.0
    assert bold["Setwise SRPO (n=3)"] == [False] * 6 + [True] * 8
    assert bold["LLM sharing Dr. MAS"][2] and bold["LLM non-sharing Dr. MAS"][2]  # AIME'25: 38.1 both
    assert not any(bold["Single-agent GRPO"])


def test_the_section_quotes_every_table_and_leaves_out_what_stands_elsewhere() -> None:
    first, second = paper().score_tables
    whole = paper_section()
    assert len(whole.tables) == 6
    assert "Nothing in this section was run here." in whole.paragraphs[0]
    fewer = paper_section(without=[first])
    assert score_table(first) not in fewer.tables
    assert score_table(second) in fewer.tables


def test_the_papers_training_statistics_are_shown_as_they_are_printed() -> None:
    cells = {row.name: [cell.text for cell in row.cells] for row in dynamics_table().blocks[0].rows}
    assert cells["8B, event-reduced"] == [
        "–", "53.2", "72.1", "[56.97, 108.10]", "0.107", "2.233", "2.421", "100.0", "2,488", "1,963",
    ]  # fmt: skip


def test_benchmarks_have_the_papers_headings_and_others_keep_their_names() -> None:
    assert benchmark_label("aime24") == "AIME'24"
    assert benchmark_label("olympiadbench") == "Olympiad"
    assert benchmark_label("my-own") == "my-own"
