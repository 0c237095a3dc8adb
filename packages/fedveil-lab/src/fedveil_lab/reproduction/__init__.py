"""The papers' tables and figures, run again at their own noise and at proved noise.

`fedveil reproduce` and `fedveil account --paper` find it where fedveil-lab is installed.

claims/        the papers' formulas as printed, never certified, beside what holds instead
case.py        one training run, decided to the last number
run_case.py    runs it and writes down what was seen, and what it costs: claimed and proved
experiment.py  a page: the paper's setting, our differences, the grid of cases, how to show them
runs.py        runs what is missing of a page, or stale; means and deviations over seeds
findings.py    what comes out, in sentences
writing.py     results/NAME.json and NAME.md;  charts.py  NAME.svg
pages/         the papers' experiments
"""
