"""Reports: what runs and evaluations found, as pictures and tables in the paper's layout.

`run_report` tells of one run, `comparison` sets several side by side, `dynamics` shows how training behaved. Tables are
made once (`tables`) and written as Markdown, LaTeX or HTML; the paper's own numbers ship as data (`paper`).
"""
